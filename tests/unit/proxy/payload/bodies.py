"""Bodies of requests for tests: random, large and hostile ones, and the reading of a body in slices."""

from hypothesis import strategies as st

from pdx_proxy.payload.body import Body, read_large_body
from pdx_proxy.payload.features import PromptReader
from pdx_proxy.payload.json_scanner import MAX_GAP_BYTES, SLICE_BYTES, JSONScanner
from pdx_proxy.payload.structure import MAX_BRACKETS, MAX_DEPTH, MAX_MEMBERS

FORBIDDEN = ("kv_transfer_params", "ec_transfer_params", "request_id")
KEYS = st.sampled_from([*FORBIDDEN, "prompt", "vllm_xargs", "messages", "n", "stream", "KV_TRANSFER_PARAMS"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)
BODIES = st.dictionaries(KEYS | st.text(max_size=4), VALUES, max_size=8)
JSON = "application/json"
TEXT = "/v1/completions"
CHAT = "/v1/chat/completions"
READER = PromptReader(key=True, limit=0)


def read_in_slices(raw: bytes, slice_bytes: int = SLICE_BYTES, window_bytes: int = 128 * 1024) -> tuple[Body, int]:
    """A body read in slices, and the largest slice."""
    slices = read_large_body(raw, JSON, TEXT, READER, JSONScanner(raw, slice_bytes, window_bytes))
    largest = 0
    while True:
        try:
            largest = max(largest, next(slices))
        except StopIteration as end:
            return end.value, largest


MIB = 1024 * 1024


def filled(head: bytes, unit: bytes, tail: bytes, size: int = 3 * MIB) -> bytes:
    return head + unit * ((size - len(head) - len(tail)) // len(unit)) + tail


HOSTILE = {
    "objects": (filled(b'{"a":[{}', b",{}", b"]}"), f"more than {MAX_BRACKETS} arrays"),
    "a list": (filled(b"[{}", b",{}", b"]"), "not a valid JSON object"),
    "members": (filled(b'{"a":1', b',"a":1', b"}"), f"more than {MAX_MEMBERS} members"),
    "members of xargs": (filled(b'{"vllm_xargs":{"a":1', b',"a":1', b"}}"), f"more than {MAX_MEMBERS} members"),
    "truncated": (filled(b'{"a":[1', b',"b"', b""), "not a valid JSON object"),
    "truncated text": (filled(b'{"a":"', b"b", b""), "not a valid JSON object"),
    "backslashes": (filled(b'{"a":"', b"\\", b'q\\q"}'), "not a valid JSON object"),
    "continuation bytes": (filled(b'{"a":"', b"\x80", b'"}'), "not a valid JSON object"),
    "depth": (filled(b'{"a":', b"[", b""), f"deeper than {MAX_DEPTH} levels"),
    "depth late": (filled(b'{"a":[1', b",12345", b"," + b"[" * 249 + b"]" * 250 + b"}"), f"deeper than {MAX_DEPTH}"),
    "spaces": (filled(b'{"a":', b" ", b"1}"), f"longer than {MAX_GAP_BYTES} bytes"),
    "spaces in a list": (filled(b'{"a":["x",', b" ", b"1]}"), f"longer than {MAX_GAP_BYTES} bytes"),
    "a number": (filled(b'{"a":', b"1", b"}"), f"longer than {MAX_GAP_BYTES} bytes"),
    "a name": (filled(b'{"', b"a", b'":1}'), f"longer than {MAX_GAP_BYTES} bytes"),
    "an error at the end": (filled(b'{"a":[1', b",1", b",]}"), "not a valid JSON object"),
    "a missing value": (filled(b'{"a":[1', b",1", b",,1]}"), "not a valid JSON object"),
    "the wrong bracket": (filled(b'{"a":[1', b",1", b"}}"), "not a valid JSON object"),
    "a bad key": (filled(b'{"a":{"b":1', b',"c":"d"', b',"e":1,2:3}}'), "not a valid JSON object"),
}
