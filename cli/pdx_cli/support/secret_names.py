"""Which names of fields, flags, headers and variables have a secret, or text of users, as their value. Pure."""

import re
from typing import Final

from pdx_cli.support.harmless_variables import OTHERS, VLLM

TEXT_NAMES: Final = frozenset(
    {
        *("prompt", "prompts", "prompt_token_ids", "prompt_embeds", "messages", "content"),
        *("input", "inputs", "text", "suffix", "completion", "reasoning_content"),
        *("output_text", "generated_text", "instructions", "documents", "query", "user"),
    }
)
"""Names of fields with text of users or of the model, in OpenAI's API and in vLLM's logs."""

_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_SEPARATORS: Final = re.compile(r"[^A-Za-z0-9]+")
_ALWAYS: Final = re.compile(
    r"passw|passphrase|passcode|secret|credential|privatekey|apikey|accesskey|accountkey|authorization|bearer|cookie|"
    r"connectionstring|dockerconfig|accesstoken|authtoken|refreshtoken|sessiontoken|idtoken"
)
"""Parts of a name, without its separators, that mean a secret."""
_WORDS: Final = frozenset(
    {"auth", "oauth", "cred", "creds", "jwt", "pat", "dsn", "sas", "pass", "pwd", "pw", "pin", "otp"}
)
_REFERENCES: Final = frozenset(
    {
        *("ref", "refs", "name", "names", "namespace", "exists", "kind", "path", "file", "dir", "mount", "volume"),
        *(
            "py",
            "go",
            "count",
            "counts",
            "error",
            "errors",
            "type",
            "types",
            "version",
            "enabled",
            "class",
            "mode",
            "missing",
        ),
    }
)
"""Last words of names that only refer to a secret, or say something about it."""
_MODEL_TOKENS: Final = frozenset(
    {
        *("eos", "bos", "pad", "unk", "sep", "cls", "mask", "stop", "first", "next", "last", "per", "output", "input"),
        *(
            "prompt",
            "image",
            "audio",
            "special",
            "max",
            "min",
            "num",
            "inter",
            "each",
            "new",
            "draft",
            "decode",
            "prefill",
        ),
        *("generated", "generation", "sampled", "cached", "total", "sub", "by", "single", "one", "ids", "placeholder"),
    }
)
"""Words before `token` that mean a token of a model."""
_AFTER_TOKEN: Final = frozenset(
    {
        *("id", "ids", "budget", "limit", "latency", "length", "len", "rate", "ratio", "usage", "per", "throughput"),
        *("time", "times", "seconds", "embeddings", "embeds", "logprob", "logprobs", "prob", "probs", "mask", "offset"),
        *("offsets", "position", "positions", "index", "indices", "size", "block", "blocks", "group", "parallel"),
    }
)
_HARMLESS_KEYS: Final = frozenset(
    {
        *("cache", "sort", "primary", "partition", "group", "public", "prefix", "merge", "label", "block", "routing"),
        *("object", "foreign", "hash", "topology", "kv", "query", "index", "lookup", "field", "map", "dict", "config"),
        *(
            "tenant",
            "row",
            "the",
            "a",
            "each",
            "no",
            "unknown",
            "missing",
            "json",
            "state",
            "match",
            "mon",
            "tur",
            "hot",
        ),
    }
)
"""Words before `key` that mean no secret."""
_AFTER_KEY: Final = frozenset(
    {
        *("value", "values", "prefix", "cache", "dtype", "heads", "head", "size", "len", "length", "hash", "states"),
        *("space", "index", "interrupt", "scale", "proj", "padding", "quant", "dim", "usages", "rotation"),
    }
)
_SECRET_PLURALS: Final = frozenset(
    {"api", "access", "auth", "bearer", "client", "encryption", "hf", "master", "private", "refresh", "signing", "ssh"}
)
"""Words before `keys` and `tokens` that mean secrets."""

_HARMLESS_VARIABLES: Final = re.compile(
    r"(OMP|MKL|OPENBLAS|NUMEXPR)_NUM_THREADS|OMP_\w+|KMP_\w+|CUDA_(VISIBLE_DEVICES|DEVICE_ORDER|LAUNCH_BLOCKING|HOME)|"
    r"NVIDIA_(VISIBLE_DEVICES|DRIVER_CAPABILITIES)|NCCL_\w+|UCX_\w+|GLOO_\w+|TORCH_\w+|PYTORCH_\w+|TRITON_\w+|"
    r"HF_(HOME|HUB_OFFLINE|HUB_ENABLE_HF_TRANSFER|HUB_CACHE|ENDPOINT)|HUGGINGFACE_HUB_CACHE|TRANSFORMERS_(CACHE|OFFLINE)|"
    r"TOKENIZERS_PARALLELISM|PYTHON\w+|MALLOC_\w+|"
    r"LD_LIBRARY_PATH|LD_PRELOAD|PATH|HOME|LANG|LC_\w+|TZ|TMPDIR|XDG_\w+|HOSTNAME|"
    r"(POD|NODE|HOST)_(IP|NAME|NAMESPACE|UID)|LOG_LEVEL|DO_NOT_TRACK"
)
"""Further variables whose value may be shown, unless the name is that of a secret."""


def is_secret(name: str) -> bool:
    """Whether a field, flag, header or variable of this name has a secret as its value."""
    words = [word.lower() for word in _SEPARATORS.split(_CAMEL.sub("_", name)) if word]
    if name == "KEY":
        return True
    if not words or words[-1] in _REFERENCES or words == ["automount", "service", "account", "token"]:
        return False
    if _ALWAYS.search("".join(words)):
        return True
    previous = ["", *words]
    following = [*words[1:], ""]
    return any(_is_secret_word(*neighbours) for neighbours in zip(words, previous, following, strict=False))


def _is_secret_word(word: str, before: str, after: str) -> bool:
    if word in _WORDS:
        return before not in ("forward", "backward", "first", "second", "single", "multi")
    if word in ("tokens", "keys"):
        return before in _SECRET_PLURALS
    if word.endswith("token"):
        return word[:-5] not in _MODEL_TOKENS and before not in _MODEL_TOKENS and after not in _AFTER_TOKEN
    if word == "key":
        return bool(before or after) and before not in _HARMLESS_KEYS and after not in _AFTER_KEY
    if word.endswith("key"):
        return word[:-3] not in _HARMLESS_KEYS
    return word.endswith(("pwd", "pass")) and word not in ("bypass", "compass", "encompass", "surpass")


def is_harmless_variable(name: str) -> bool:
    """Whether the value of an environment variable may be shown."""
    known = name in VLLM or name in OTHERS or _HARMLESS_VARIABLES.fullmatch(name) is not None
    return known and not is_secret(name)
