"""Checks before every run that the fake engines refuse violations of the protocol."""

import http.client
import json
import re
from typing import Any, Final

from benchmarks.gateway import processes
from benchmarks.gateway.gateways import Engines

_PREFILL_PARAMS: Final = {"do_remote_decode": True, "do_remote_prefill": False}
_PROMPT: Final = "24:0:1:" + "x" * 17
_FINISHED: Final = re.compile(r"^vllm:request_success_total\{[^}]*\} (\S+)", re.MULTILINE)


def check(engines: Engines) -> list[str]:
    """The requests that the engines wrongly accepted or refused, each sent to the engine's own port."""
    prefill, decode = engines.prefill[-1], engines.decode[0]
    wrong = []
    status, answer = _post(prefill, kv_transfer_params=_PREFILL_PARAMS, max_tokens=1)
    params = answer.get("kv_transfer_params")
    if status != 200 or not params:
        return ["a proper prefill leg was refused"]
    refused: dict[str, tuple[int, dict[str, Any]]] = {
        "a streaming prefill leg": (prefill, {"kv_transfer_params": _PREFILL_PARAMS, "max_tokens": 1, "stream": True}),
        "a prefill leg of two tokens": (prefill, {"kv_transfer_params": _PREFILL_PARAMS, "max_tokens": 2}),
        "parameters of no prefill": (decode, {"kv_transfer_params": {**params, "remote_request_id": "cmpl-x"}}),
        "another engine's id": (decode, {"kv_transfer_params": {**params, "remote_engine_id": "bench-engine-0"}}),
        "another engine's port": (decode, {"kv_transfer_params": {**params, "remote_port": 5600}}),
        "other blocks": (decode, {"kv_transfer_params": {**params, "remote_block_ids": [[1, 2, 3, 5]]}}),
        "a prompt that was cut": (decode, {"prompt": _PROMPT[:-1]}),
    }
    wrong += [name for name, (port, body) in refused.items() if _post(port, **body)[0] != 400]
    if _post(decode, kv_transfer_params=params)[0] != 200:
        wrong.append("a proper decode leg was refused")
    if _post(decode, kv_transfer_params=params)[0] != 400:
        wrong.append("the same prefill, fetched twice")
    return wrong


def _post(port: int, **body: Any) -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        document = json.dumps({"model": "bench", "prompt": _PROMPT, "max_tokens": 2, **body})
        connection.request("POST", "/v1/completions", document, {"Content-Type": "application/json"})
        response = connection.getresponse()
        answer = response.read()
        return response.status, json.loads(answer) if response.status == 200 and answer[:1] == b"{" else {}
    finally:
        connection.close()


def check_pages(silent: Engines, reporting: Engines) -> list[str]:
    """What the engines' metrics pages do not have right: the pages of `silent` are 404, those of `reporting` count."""
    wrong = (
        ["a metrics page that should be 404"] if "running" in processes.get_text(silent.decode[0], "/metrics") else []
    )
    port = reporting.decode[0]
    before = processes.get_text(port, "/metrics")
    _post(port)
    after = processes.get_text(port, "/metrics")
    if (
        _finished(after) != _finished(before) + 1
        or 'num_requests_running{engine="0",model_name="bench"} 0\n' not in after
    ):
        wrong.append("a metrics page without the true load")
    return wrong


def _finished(page: str) -> float:
    found = _FINISHED.search(page)
    return float(found[1]) if found else float("nan")
