"""The first requests to a server, which warm it up: its model, how long its tokens are, and how fast it is."""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from pdx_cli.bench.arguments import SERVER
from pdx_cli.bench.load.connection import Server
from pdx_cli.bench.load.generator import Generator, Shape, Step
from pdx_cli.bench.load.records import Failure
from pdx_cli.bench.load.workload import Planned, Workload
from pdx_cli.bench.statistics import mean
from pdx_cli.errors import CommandError, ExitCode
from pdx_cli.sources.client import AnswerError, Client

_SAMPLE_TOKENS: Final = 400
"""Of the request that shows how many tokens a text has."""
FIRST_REQUESTS: Final = 4
"""Requests of the workload, one after the other, that are not counted."""
_SECONDS: Final = 600.0
"""Limit for them: an engine's first forward pass may compile."""
_MODELS_SECONDS: Final = 10.0
_KEY: Final = "set OPENAI_API_KEY"


@dataclass(frozen=True, slots=True)
class Calibrated:
    """What the first requests have shown."""

    shape: Shape
    ttft: float
    """Mean seconds of a request that is alone."""
    latency: float


async def model_of(server: Server, headers: Mapping[str, str]) -> str:
    """Return the first model that the server serves; raises CommandError."""
    url = f"{server.url}/v1/models"
    try:
        async with Client(headers) as client:
            body = await client.json(url, seconds=_MODELS_SECONDS)
            return str(body["data"][0]["id"])
    except AnswerError as error:
        remedy = _KEY if " answered 401" in str(error) else SERVER
        raise CommandError(f"{str(error).rstrip('.')}; {remedy}.", code=ExitCode.INVALID) from error
    except (KeyError, IndexError, TypeError) as error:
        sentence = f"{url} lists no model; name it with --model, or {SERVER}."
        raise CommandError(sentence, code=ExitCode.INVALID) from error


async def calibrate(server: Server, shape: Shape, load: Workload, rng: random.Random, salt: str) -> Calibrated:
    """Send the first requests; raises CommandError if the server does not answer them."""
    sample = Planned(0, 0.0, _SAMPLE_TOKENS, 1, ())
    if load.mean_prompt < _SAMPLE_TOKENS:
        sample = replace(sample, prompt=max(16, int(load.mean_prompt)))
    found = await _send(server, shape, iter((sample,)), f"{salt}/sample")
    tokens = found[0][2]
    terms = sample.prompt / tokens if tokens else 1.0
    # A chat template adds tokens; a text of one token per word is the usual case.
    shape = replace(shape, terms_per_token=shape.terms_per_token * terms if not 0.97 < terms < 1.03 else 1.0)
    times = []
    for number, planned in enumerate(_some(load, rng)):
        times += await _send(server, shape, iter((replace(planned, index=0, at=0.0),)), f"{salt}/{number}")
    return Calibrated(shape, mean([ttft for ttft, _, _ in times]), mean([latency for _, latency, _ in times]))


def _some(load: Workload, rng: random.Random) -> Iterator[Planned]:
    for number, planned in enumerate(load.requests(1.0, 1e6, rng, 0)):
        if number == FIRST_REQUESTS:
            return
        yield planned


def _sentence(server: Server, failure: Failure, detail: str) -> str:
    """Why a first request failed, and what to write instead."""
    detail = detail.rstrip(".")
    match failure:
        case Failure.CONNECTION:
            return f"A first request to {server.url} got no answer: {detail}; {SERVER}."
        case Failure.STATUS:
            remedy = f"; {_KEY}" if detail.startswith("401") else ""
            return f"{server.url} refuses a first request with {detail}{remedy}."
        case Failure.UNFINISHED:
            return f"A first request to {server.url} had no answer after {_SECONDS:g} s; {SERVER}."
        case _:
            return f"{server.url} failed a first request: {detail}."


async def _send(server: Server, shape: Shape, planned: Iterator[Planned], salt: str) -> list[tuple[float, float, int]]:
    """TTFT, latency and prompt tokens of requests that are not counted."""
    generator = Generator(server, shape)
    try:
        outcome = await generator.run(Step(planned, 1.0, 0.0, _SECONDS, salt))
    finally:
        generator.close()
    for record in outcome.records:
        if record.failure is not None:
            code = ExitCode.INVALID if record.failure is Failure.CONNECTION else ExitCode.FAILED
            raise CommandError(_sentence(server, record.failure, record.detail), code=code)
    return [(record.ttft, record.latency, record.prompt_tokens) for record in outcome.records]
