"""What each kind of assumption reads in vLLM's code."""

import ast

import pytest

from pdx_cli.contract.lookups import LOOKUPS, Value, token

CODE = '''
"""Documentation with `a text`."""
from enum import Enum

VERSION: int = 14
KVProducer = Literal["kv_producer", "kv_both"]
NAMES = ("b", "a")

class Kind(Enum):
    STOP = 0
    ABORT = 1

class Request(Base):
    stream: bool | None = False
    n: int = Field(default=1, ge=1)
    prompt: str = Field(...)

    def __init__(self, config, *, role):
        """Documentation with `another text`."""
        self._interval = config.lease // 6
        self.lease = config.get_from_extra_config("lease", 30)

    def finished(self, params):
        if params.get("remote"):
            return params["host"]
        return dict(host=self.host, remote=True)

KVConnectorFactory.register_connector("Nixl", "vllm.distributed.kv_transfer.kv_connector.v1.nixl", "NixlConnector")
group.add_argument("--tensor-parallel-size", "-tp", **kwargs)
group.add_argument("--dtype", **kwargs)
check_version("1.5.0")
environment_variables = {"VLLM_PORT": lambda: 1, "VLLM_NEW": lambda: 2}
if TYPE_CHECKING:
    VLLM_PORT: int = 5600
    VLLM_OLD: int = 1

@router.post("/v1/things", responses={})
async def things():
    raise Error(status_code=503, text=f"no {thing} " "is left")

gauge = self._gauge_cls(name="vllm:running", documentation="a text")
'''


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        ("answers", "Request.finished", ["host", "remote"]),
        ("bases", "Request", ["Base"]),
        ("call", "check_version", "1.5.0"),
        ("connector", "Nixl", "nixl:NixlConnector"),
        ("constant", "VERSION", 14),
        ("constant", "KVProducer", "Literal['kv_producer', 'kv_both']"),
        ("constant", "NAMES", ["a", "b"]),
        ("constant", "Kind.ABORT", 1),
        ("constant", "Request.__init__._interval", "config.lease // 6"),
        ("environment", "VLLM_PORT", "5600"),
        ("environment", "VLLM_NEW", True),
        ("environment", "VLLM_OLD", None),
        ("field", "Request.stream", "bool | None = False"),
        ("field", "Request.n", "int = 1"),
        ("field", "Request.prompt", "str"),
        ("flag", "--tensor-parallel-size", ["--tensor-parallel-size", "-tp"]),
        ("flag", "--dtype", True),
        ("members", "Kind", ["ABORT", "STOP"]),
        ("method", "Request.__init__", ["self", "config", "role"]),
        ("metric", "vllm:running", "gauge"),
        ("option", "lease", "30"),
        ("reads", "Request.finished:remote", True),
        ("reads", "Request.finished:host", True),
        ("route", "POST /v1/things", True),
        ("route", "GET /v1/things", None),
        ("says", "things:no {} is left", True),
        ("says", "Request.finished:no {} is left", None),
        ("statuses", "things", ["503"]),
        ("text", "a text", True),
        ("text", "another text", None),
        ("uses", "Request.__init__:_interval", True),
        ("uses", "Request.finished:_interval", None),
    ],
)
def test_a_kind_reads(kind: str, name: str, value: Value) -> None:
    assert LOOKUPS[kind](ast.parse(CODE), name) == value
    assert value is None or token(kind, name) in CODE


@pytest.mark.parametrize("kind", LOOKUPS)
def test_what_is_not_there_has_no_value(kind: str) -> None:
    assert LOOKUPS[kind](ast.parse(CODE), "Absent.absent:absent") is None
