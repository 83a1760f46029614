"""The loads of the generator."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Load:
    """A closed loop of so many connections."""

    name: str
    connections: int = 64
    prompt: int = 4096
    """Bytes of a prompt."""
    tokens: int = 16
    """Events of a stream."""
    stream: bool = False
    rate: float = 0
    """Events per second of each stream; 0: as fast as the connection takes them."""
    burst: int = 1
    """Events that an engine writes at once, when there is no rate."""
    pause: float = 0
    """Seconds at most, a random part of which passes before a connection's next request. Without it streams of one
    length that were delayed together once stay synchronous, and the times to the first token show their number."""
    seconds: float | None = None
    """How long it is measured; None: the time of the run."""
    warmup: float = 1.0
    """Seconds before; connections are opened in the first half of it."""
    times: int = 1
    """How often a round measures it, all gateways one after the other: other activity of the machine costs a run some
    percent, and affects some of the few requests of a p99."""
    only: frozenset[str] = frozenset()
    """The gateways that it is for; empty: all."""

    settles: bool = False
    """Whether it measures PDX's default limits: how many requests waited in the queue is reported."""

    def arguments(self, ports: tuple[int, ...], seconds: float) -> list[str]:
        """The generator's command line behind its name."""
        options = {
            "ports": ",".join(map(str, ports)),
            "connections": self.connections,
            "prompt": self.prompt,
            "tokens": self.tokens,
            "stream": int(self.stream),
            "rate": self.rate,
            "burst": self.burst,
            "pause": self.pause,
            "seconds": self.seconds or seconds,
            "warmup": self.warmup,
        }
        return [f"{key}={value}" for key, value in options.items()]


_ONE: Final = frozenset({"direct", "pdx", "vllm-router", "sglang-router", "nginx"})
_UNBOUNDED: Final = _ONE | {"pdx-2", "pdx-pure"}
_PDX: Final = frozenset({"direct", "pdx"})
PACED_TIMES: Final = 4
PACED_SECONDS: Final = 2.0
"""How often a round measures the loads for times to the first token and gaps, and how long each time."""

_SETTLED: Final = frozenset({"direct", "pdx-defaults", "pdx-2109863", "vllm-router", "sglang-router"})
_SETTLING_SECONDS: Final = 5.0
"""In this time, PDX's limits of these engines settle: they change at each report, once a second."""

LOADS: Final = (
    *(
        Load(f"settled-{connections}", connections=connections, warmup=_SETTLING_SECONDS, only=_SETTLED, settles=True)
        for connections in (8, 64)
    ),
    Load("plain", times=3, only=_UNBOUNDED),
    Load("stream", stream=True, tokens=128, burst=4, only=_ONE),
    Load("stream-single", stream=True, tokens=128, only=_ONE),
    *(
        Load(
            f"paced-{streams}",
            connections=streams,
            stream=True,
            tokens=50,
            rate=50,
            pause=0.1,
            seconds=PACED_SECONDS,
            times=PACED_TIMES,
            only=_ONE,
        )
        for streams in (64, 256)
    ),
    Load("prompt-100k", prompt=100_000, only=_ONE),
    Load("prompt-1m", prompt=1_000_000, only=_ONE),
    Load("open-2000", connections=2000, stream=True, tokens=40, rate=10, warmup=5, only=_ONE),
    Load("open-5000", connections=5000, stream=True, tokens=40, rate=10, warmup=5, only=_PDX),
)
