"""Which requests are sent, and when: equal requests or a trace's, with Poisson arrivals or the trace's own. Pure."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Protocol

from pdx_cli.bench.load.traces import Trace


@dataclass(frozen=True, slots=True)
class Planned:
    """One request to send."""

    index: int
    at: float
    """Seconds since the step begins."""
    prompt: int
    """Tokens."""
    output: int
    blocks: tuple[tuple[int, int], ...]
    """Key and end of each block of the prompt; equal keys are equal beginnings."""


class Workload(Protocol):
    """Makes the requests of a step."""

    @property
    def name(self) -> str:
        """What it is, for the user."""

    @property
    def mean_prompt(self) -> float:
        """Mean tokens of its prompts."""

    @property
    def mean_output(self) -> float:
        """Mean tokens of its answers."""

    def requests(self, rate: float, seconds: float, rng: random.Random, repeat: int) -> Iterator[Planned]:
        """The requests of a step, at `rate` per second. `repeat` counts repetitions, which use different requests."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """Prompts and answers of one length, with Poisson arrivals. Nothing is shared."""

    prompt: int
    output: int

    @property
    def name(self) -> str:
        """See `Workload`."""
        return f"prompts of {self.prompt} tokens, answers of {self.output}"

    @property
    def mean_prompt(self) -> float:
        """See `Workload`."""
        return float(self.prompt)

    @property
    def mean_output(self) -> float:
        """See `Workload`."""
        return float(self.output)

    def requests(self, rate: float, seconds: float, rng: random.Random, repeat: int) -> Iterator[Planned]:
        """See `Workload`."""
        for index, at in enumerate(poisson(rate, seconds, rng)):
            yield Planned(index, at, self.prompt, self.output, ((-1 - index, self.prompt),))


@dataclass(frozen=True, slots=True)
class Traced:
    """The requests of a trace, with its own arrivals, faster or slower, or with Poisson arrivals."""

    trace: Trace
    token_scale: float = 1.0
    """Factor on the tokens of prompts and answers."""
    poisson: bool = False
    """Whether the arrivals of the trace are replaced."""

    @property
    def name(self) -> str:
        """See `Workload`."""
        scaled = f", tokens x {self.token_scale:.4g}" if self.token_scale != 1 else ""
        return f"trace {self.trace.name}{scaled}{', Poisson arrivals' if self.poisson else ''}"

    @property
    def mean_prompt(self) -> float:
        """See `Workload`."""
        requests = self.trace.requests
        return sum(_scaled(each.prompt, self.token_scale) for each in requests) / len(requests)

    @property
    def mean_output(self) -> float:
        """See `Workload`."""
        requests = self.trace.requests
        return sum(_scaled(each.output, self.token_scale) for each in requests) / len(requests)

    def requests(self, rate: float, seconds: float, rng: random.Random, repeat: int) -> Iterator[Planned]:
        """See `Workload`. Each repeat begins elsewhere in the trace, and goes on at its beginning."""
        requests, factor = self.trace.requests, self.trace.rate / rate
        first = (repeat * 7919) % len(requests)
        span = requests[-1].at + 1 / self.trace.rate
        begin = requests[first].at
        times = poisson(rate, seconds, rng) if self.poisson else None
        for number, request in enumerate(islice(cycle(requests), first, None)):
            rounds = (first + number) // len(requests)
            at = next(times, seconds) if times else (request.at + rounds * span - begin) * factor
            if at >= seconds:
                return
            blocks = tuple((key, _scaled(end, self.token_scale)) for key, end in request.prefix)
            prompt = _scaled(request.prompt, self.token_scale)
            yield Planned(number, at, prompt, _scaled(request.output, self.token_scale), _fitting(blocks, prompt))


def poisson(rate: float, seconds: float, rng: random.Random) -> Iterator[float]:
    """Arrivals of a Poisson process of so many per second."""
    at = rng.expovariate(rate)
    while at < seconds:
        yield at
        at += rng.expovariate(rate)


def _scaled(tokens: int, scale: float) -> int:
    return max(1, round(tokens * scale))


def _fitting(blocks: tuple[tuple[int, int], ...], prompt: int) -> tuple[tuple[int, int], ...]:
    """The blocks whose ends grow and stay within the prompt: scaling may have made some empty."""
    found: list[tuple[int, int]] = []
    for key, end in blocks:
        if end <= prompt and end > (found[-1][1] if found else 0):
            found.append((key, end))
    return tuple(found)
