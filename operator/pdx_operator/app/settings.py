"""What the operator is told when it starts."""

from dataclasses import dataclass

from pdx_api.names import LogFormat


@dataclass(frozen=True, slots=True)
class Intervals:
    """How fast the operator turns, looks again and gives way; all in seconds."""

    turn: float = 0.3
    """Between two turns of one object whose spec has not changed: a burst of events is one turn."""
    counts: float = 2.0
    """Before a status is written that differs in counts alone; doubles with every such write, up to `counts_most`."""
    counts_most: float = 30.0
    look: float = 10.0
    """Before the pods of an object that is not ready are listed; doubles up to `look_most` while nothing changes."""
    look_most: float = 60.0
    retry: float = 0.5
    """Before a turn that failed is tried again; doubles up to `retry_most`, and each time varies by half."""
    retry_most: float = 60.0


@dataclass(frozen=True, slots=True)
class Settings:
    """One operator."""

    gateway_image: str
    """Image of gateways whose spec names none."""
    operator_namespace: str = ""
    """Where its own pod runs: gateways let it reach their admin port. Empty: in no pod."""
    namespaces: tuple[str, ...] = ()
    """Where it works; empty means everywhere."""
    health_port: int = 8081
    """Port of /healthz, /readyz and /metrics; 0 means none."""
    log_format: LogFormat = LogFormat.TEXT
    verbose: bool = False
    """Log what is decided and asked, not only what is changed."""
    turns: int = 16
    """Objects that are worked on at the same time; bounds memory."""
    requests: int = 32
    """Requests that are open at the API server at the same time, watches aside."""
    pace: Intervals = Intervals()
