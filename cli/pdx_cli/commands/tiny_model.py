"""`pdx tiny-model`: creates a Llama with 2 million random weights and a tokenizer, in seconds and without a network.

Its text has no meaning, but the greedy text depends on the whole prompt, and in float32 it has no ties: equal texts
mean equal KV.
"""

import argparse
import importlib
import json
import os
import secrets
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NoReturn

from pdx_cli import interrupts, usage
from pdx_cli.errors import CommandError, InputError
from pdx_cli.local.engines import ENGINE_EXTRA

EPILOG: Final = """\
examples:
  pdx tiny-model /tmp/pdx/models/tiny
  pdx up examples/tiny-cpu.yaml"""

VOCABULARY: Final = 512
CONTEXT: Final = 4096
"""Longest prompt plus answer, in tokens."""
SEED: Final = 0
SPREAD: Final = 0.15
"""Standard deviation of the weights. Larger than Llama's 0.02, so that attention, and so the prompt, has effect."""

SYLLABLES: Final = ("ba", "de", "fi", "go", "hu", "ka", "le", "mi", "no", "pu", "ra", "se", "ti", "vo", "zu")

CHAT_TEMPLATE: Final = (
    "{% for m in messages %}{{ m['role'] }}: "
    "{% if m['content'] is string %}{{ m['content'] }}"
    "{% elif m['content'] %}{% for part in m['content'] %}{{ part['text'] }}{% endfor %}{% endif %}{{ '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `pdx tiny-model`."""
    parser.add_argument(
        "directory", metavar="DIR", type=usage.directory, help="directory for the model; must be new or empty"
    )
    parser.epilog = EPILOG


def run(args: argparse.Namespace) -> int:
    """Create the model in a temporary directory and move it to its place when it is complete."""
    target: Path = args.directory.absolute()
    if usage.is_taken(target):
        raise InputError(f"{target} exists already; remove it, or name another directory.")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _import_libraries(target.parent)
        incomplete = target.parent / f".{target.name}.{secrets.token_hex(4)}"
        with interrupts.handled(lambda number: _abandon(incomplete, number)):
            _write(incomplete, target)
    except OSError as error:
        raise CommandError(f"{target} cannot be written: {error.strerror}.") from error
    print(f"The tiny model is in {target}")
    return 0


def _import_libraries(existing: Path) -> None:
    """Import what takes seconds before there is a directory to remove."""
    # Torch creates its compiler's cache at import (torch/_dynamo/package.py). Nothing is compiled here.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(existing))
    # Transformers reads these variables at import.
    os.environ.update({"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "TRANSFORMERS_VERBOSITY": "error"})
    try:
        for name in ("tokenizers", "torch", "transformers"):
            importlib.import_module(name)
    except ImportError as error:
        raise CommandError(f"{error.name}, which vLLM needs too, is not installed. {ENGINE_EXTRA}") from error


def _write(incomplete: Path, target: Path) -> None:
    try:
        incomplete.mkdir()
        _make_weights(incomplete, silent=_make_tokenizer(incomplete))
        _make_readable(incomplete)
        incomplete.replace(target)
    finally:
        shutil.rmtree(incomplete, ignore_errors=True)


def _abandon(incomplete: Path, number: signal.Signals) -> NoReturn:
    shutil.rmtree(incomplete, ignore_errors=True)
    interrupts.end_by(number)


def _make_weights(directory: Path, silent: list[int]) -> None:
    """Create the weights. `silent` tokens get the logit 0, which is never the largest: greedy text has none of them."""
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(SEED)
    config = transformers.LlamaConfig(
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        vocab_size=VOCABULARY,
        max_position_embeddings=CONTEXT,
        initializer_range=SPREAD,
        bos_token_id=0,
        eos_token_id=1,
        torch_dtype="float32",
    )
    model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        model.lm_head.weight[silent] = 0
    model.save_pretrained(directory)


def _make_tokenizer(directory: Path) -> list[int]:
    """Create a byte-level BPE with a full vocabulary; return the tokens that decode to no visible text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer: Any = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<|begin|>", "<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    assert tokenizer.get_vocab_size() == VOCABULARY, "a token without an entry decodes to nothing"
    try:
        tokenizer.save(str(directory / "tokenizer.json"))
    except Exception as error:  # tokenizers has no class of its own, also for a full disk
        raise CommandError(f"{directory.parent} cannot be written: {error}.") from error
    described = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|begin|>",
        "eos_token": "<|end|>",
        "model_max_length": CONTEXT,
        "chat_template": CHAT_TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(described, indent=2) + "\n")
    texts = [tokenizer.decode([token]) for token in range(VOCABULARY)]
    return [token for token, text in enumerate(texts) if not text or not text.isprintable() or "\ufffd" in text]


def _corpus() -> Iterator[str]:
    """Yield each pair of syllables once: 225 of them, more than the vocabulary can hold."""
    for first in SYLLABLES:
        yield " ".join(first + second for second in SYLLABLES)


def _make_readable(directory: Path) -> None:
    """Let all users read it: mkdtemp creates a directory for its owner only, and engines may run as another user."""
    directory.chmod(0o755)
    for path in directory.iterdir():
        path.chmod(0o644)
