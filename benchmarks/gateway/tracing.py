"""`python -m benchmarks.gateway.tracing`: what tracing costs a request that is not sampled, in the compiled gateway.

It prints the time of the call that decides, for a request without a trace context and for one whose client does not
sample it, less the time of an empty loop. A process of its own runs the compiled copy of the gateway.
"""

import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
_MEASURE: Final = """
import random, time
from pdx_proxy.telemetry import trace_context
assert trace_context.__file__.endswith(".so"), "not compiled"
COUNT = 200_000
sample = trace_context.TraceSampler(0.1 ** 9, random.Random(1).getrandbits).sample
plain = {f"x-header-{number}": "value" for number in range(15)}
parent = {**plain, "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00", "tracestate": "a=b"}

def loop(headers):
    began = time.perf_counter()
    for _ in range(COUNT):
        sample(headers)
    return time.perf_counter() - began

def empty():
    began = time.perf_counter()
    for _ in range(COUNT):
        pass
    return time.perf_counter() - began

for name, headers in (("no traceparent", plain), ("traceparent, not sampled", parent)):
    nanoseconds = (min(loop(headers) for _ in range(20)) - min(empty() for _ in range(20))) / COUNT * 1e9
    print(f"{name}: {nanoseconds:.0f} ns")
"""


def main() -> None:
    """Compile the gateway, or take the cached copy, and print the times."""
    sys.path.insert(0, str(ROOT / "proxy"))
    from benchmarks.gateway.cache import compile_gateway

    copy = compile_gateway(ROOT)
    command = [sys.executable, "-c", _MEASURE]
    subprocess.run(command, check=True, env={"PYTHONPATH": f"{copy}:{ROOT / 'api'}"})


if __name__ == "__main__":
    main()
