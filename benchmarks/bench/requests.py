"""Requests that both tools send: the same texts and lengths at the same times, as `vllm bench serve` draws them."""

import csv
import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from pdx_cli.bench.load.generator import Shape
from pdx_cli.bench.load.prompts import VOCABULARY
from pdx_cli.bench.load.traces import read
from pdx_cli.bench.load.workload import Traced
from pdx_cli.bench.measure import salt_of

ARM: Final = "the server"
"""Name of the arm of a server of which only the URL is given (`pdx_cli.bench.targets.by_url`)."""
LEAD: Final = 1.0
"""Seconds before the requests that count, after one that does not."""
SEED: Final = 7


@dataclass(frozen=True, slots=True)
class Requests:
    """Files for both tools."""

    trace: Path
    """For `pdx bench --trace`."""
    dataset: Path
    """For `vllm bench serve --dataset-name sharegpt`, which needs no package that vLLM does not."""
    tokenizer: Path
    count: int
    rate: float
    seconds: float
    """From the lead until the next round of the trace would begin."""


def send_times(count: int, rate: float, seed: int) -> list[float]:
    """The times of `vllm bench serve --request-rate --seed` (benchmarks/serve.py, `get_request`)."""
    state = np.random.RandomState(seed)
    times = np.cumsum([state.gamma(shape=1.0, scale=1.0 / rate) for _ in range(count)])
    return [float(each) for each in times * (count / rate / times[-1])]


def make(folder: Path, count: int, rate: float, prompts: tuple[int, int], answers: tuple[int, int]) -> Path:
    """Write the trace, whose first request is not counted; lengths are between the given ones."""
    rng = random.Random(SEED)
    rows = [(0.0, prompts[0], 1)]
    rows += [(LEAD + at, rng.randint(*prompts), rng.randint(*answers)) for at in send_times(count, rate, SEED)]
    path = folder / "trace.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("arrival_ms", "input_tokens", "output_tokens"))
        writer.writerows((f"{1000 * at:.6f}", prompt, answer) for at, prompt, answer in rows)
    return path


def for_both(trace: Path, shape: Shape, count: int, rate: float) -> Requests:
    """Write the texts that `pdx bench` makes of the trace for a server with this shape."""
    load = Traced(read(trace))
    own = load.trace.rate
    seconds = load.trace.requests[-1].at + 0.5 / own
    salt = salt_of(0, ARM, 0, own, 0)
    planned = list(load.requests(own, seconds, random.Random(0), 0))[1:]
    assert len(planned) == count
    bodies = [json.loads(shape.body(each, salt)) for each in planned]
    path = trace.with_name("prompts.json")
    path.write_text(json.dumps([_conversation(each["prompt"], each["max_tokens"]) for each in bodies]))
    return Requests(trace, path, _tokenizer(trace.with_name("tokenizer")), count, rate, seconds - LEAD)


def _conversation(prompt: str, answer: int) -> dict[str, Any]:
    """A question, and an answer with as many words as tokens are to be generated."""
    return {"conversations": [{"value": prompt}, {"value": " ".join(VOCABULARY[:1] * answer)}]}


def _tokenizer(folder: Path) -> Path:
    """Write a tokenizer whose tokens are words: it counts the words of an answer, and the server counts tokens."""
    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(("?", *VOCABULARY))}, unk_token="?"))
    tokenizer.pre_tokenizer = Whitespace()
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    return folder
