# Starts and stops pairs of vLLM engines on one GPU: P on the given port, D on the next one.
#   bash engines.sh start NAME CONNECTOR PORT KV_BYTES MODEL [arguments of vllm serve]
#   bash engines.sh wait NAME SECONDS   wait until both answer; fails if one ends or time is up
#   bash engines.sh stop NAME           end both
# Variables: LOGS (directory of logs and process ids), TAIL (lines of a log that `wait` prints when it fails),
# DEVICE_ARGUMENTS (of vllm serve; empty on a CPU), UCX_TLS.
# Each engine is a session of its own, so it outlives the command that started it.
set -u
LOGS=${LOGS:-/tmp/engines}
mkdir -p "$LOGS"
action=$1
name=$2
shift 2

export HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 VLLM_USE_FLASHINFER_SAMPLER=0
# Two processes on one GPU: CUDA IPC moves the KV, shared memory and TCP carry the notifications.
export UCX_TLS=${UCX_TLS:-cuda_ipc,cuda_copy,sm,self,tcp}
export VLLM_NIXL_SIDE_CHANNEL_HOST=127.0.0.1

one() {
  role=$1 port=$2 connector=$3 kv_bytes=$4 model=$5
  shift 5
  # The share of the memory is a floor that must be free at the start; the bytes of the KV cache are given.
  VLLM_NIXL_SIDE_CHANNEL_PORT=$((port + 1000)) setsid python3 -m vllm.entrypoints.cli.main serve "$model" \
    --served-model-name m --host 127.0.0.1 --port "$port" ${DEVICE_ARGUMENTS---gpu-memory-utilization 0.05} \
    --kv-cache-memory-bytes "$kv_bytes" --no-enable-prefix-caching --enable-prompt-tokens-details \
    --kv-transfer-config "{\"kv_connector\":\"$connector\",\"kv_role\":\"$role\"}" \
    "$@" >"$LOGS/$name.$port.log" 2>&1 </dev/null &
  echo "$! $port" >>"$LOGS/$name.pids"
}

alive() { kill -0 -- "-$1" 2>/dev/null; }

case $action in
start)
  connector=$1 port=$2
  shift 2
  if [ -e "$LOGS/$name.pids" ]; then
    echo "$name runs already; stop it first" >&2
    exit 1
  fi
  one kv_producer "$port" "$connector" "$@"
  one kv_consumer "$((port + 1))" "$connector" "$@"
  ;;
wait)
  end=$(($(date +%s) + $1))
  while read -r pid port; do
    until python3 -c "import urllib.request as u; u.urlopen('http://127.0.0.1:$port/health', timeout=2)" 2>/dev/null; do
      if ! alive "$pid" || [ "$(date +%s)" -ge "$end" ]; then
        echo "$name: port $port does not answer; the end of its log:"
        tail -n "${TAIL:-40}" "$LOGS/$name.$port.log"
        exit 1
      fi
      sleep 1
    done
  done <"$LOGS/$name.pids"
  echo "$name: both answer"
  ;;
stop)
  while read -r pid port; do kill -TERM -- "-$pid" 2>/dev/null; done <"$LOGS/$name.pids"
  while read -r pid port; do
    for _ in $(seq 20); do alive "$pid" || break; sleep 1; done
    kill -KILL -- "-$pid" 2>/dev/null
  done <"$LOGS/$name.pids"
  rm "$LOGS/$name.pids"
  echo "$name: ended"
  ;;
*)
  echo "write start, wait or stop, not $action" >&2
  exit 2
  ;;
esac
