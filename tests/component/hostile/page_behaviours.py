"""What a hostile engine answers to `/metrics`, `/v1/models`, `/version` and `/health`. One function, one behaviour."""

import asyncio
import gzip
from collections.abc import Callable
from typing import Any, Final

from tests.component.hostile.engines import Ask, Behaviour, Page, dumped
from tests.random_pages import random_page

_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
_GAUGES: Final = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
_COUNTERS: Final = ("prompt_tokens_total", "generation_tokens_total", "request_success_total")
_SUMS: Final = ("time_to_first_token_seconds", "inter_token_latency_seconds", "e2e_request_latency_seconds")
_NAMES: Final = (*_GAUGES, *_COUNTERS, *(f"{name}_{end}" for name in _SUMS for end in ("sum", "count")))


def lines(value: str, label: str = 'engine="0"') -> bytes:
    """A page with one value for every metric."""
    return "".join(f"vllm:{name}{{{label}}} {value}\n" for name in _NAMES).encode(errors="surrogateescape")


def _answers(kind: str, page: Page) -> Callable[[Callable[[Ask], bytes]], Behaviour]:
    """A behaviour that answers 200 with these bytes."""

    def of(body: Callable[[Ask], bytes]) -> Behaviour:
        async def behave(ask: Ask) -> None:
            ask.stays = True
            await ask.whole(body(ask), kind=kind)

        behave.__name__ = body.__name__
        behave.__doc__ = body.__doc__
        PAGES[page].append(behave)
        return behave

    return of


def _behaves(page: Page) -> Callable[[Behaviour], Behaviour]:
    def of(behaviour: Behaviour) -> Behaviour:
        PAGES[page].append(behaviour)
        return behaviour

    return of


PAGES: Final[dict[Page, list[Behaviour]]] = {page: [] for page in Page if page is not Page.ANSWER}
_metrics, _models = _answers(_TEXT, Page.METRICS), _answers("application/json", Page.MODELS)
_version = _answers("application/json", Page.VERSION)


@_metrics
def metrics_huge(ask: Ask) -> bytes:
    return lines("1.0") + b"vllm:other_total 1.0\n" * (12 << 20 >> 4)


@_metrics
def metrics_empty(ask: Ask) -> bytes:
    return b""


@_metrics
def metrics_not_finite(ask: Ask) -> bytes:
    return lines(ask.rng.choice(("NaN", "+Inf", "-Inf", "1e999")))


@_metrics
def metrics_negative(ask: Ask) -> bytes:
    return lines(ask.rng.choice(("-1", "-1e308", "-0.0", "-1e-320")))


@_metrics
def metrics_greatest_twice(ask: Ask) -> bytes:
    return lines("1e308") + lines("1e308", 'engine="1"')


@_metrics
def metrics_just_plausible(ask: Ask) -> bytes:
    """The greatest values that might be true."""
    return lines("999999999999") + lines("999999999999", 'engine="1"')


@_metrics
def metrics_half_missing(ask: Ask) -> bytes:
    return b"".join(line + b"\n" for line in lines("2").splitlines() if ask.rng.random() < 0.5)


@_metrics
def metrics_duplicates(ask: Ask) -> bytes:
    return lines("1") * 20_000


@_metrics
def metrics_wrong_types(ask: Ask) -> bytes:
    return lines(ask.rng.choice(("true", "[]", "{}", "None", '"1"', "1,0", "0x1f", "\u0661", "1_000", "--1")))


@_metrics
def metrics_many_labels(ask: Ask) -> bytes:
    """Each line has its own labels."""
    return b"".join(b'vllm:num_requests_running{engine="%d",a%d="b"} 1\n' % (each, each) for each in range(100_000))


@_metrics
def metrics_million_labels_in_a_line(ask: Ask) -> bytes:
    return b"vllm:num_requests_running{" + b'a="b",' * 1_000_000 + b'engine="0"} 1\n'


@_metrics
def metrics_open_label(ask: Ask) -> bytes:
    return lines("1") + b'vllm:cache_config_info{block_size="' + b'\\"' * (4 << 20)


@_metrics
def metrics_broken_utf8(ask: Ask) -> bytes:
    return lines("1").replace(b"engine", b"\xff\xfe\xc3") + b"\xf0\x9f" * 1000


@_metrics
def metrics_random(ask: Ask) -> bytes:
    return random_page(ask.rng)


@_metrics
def metrics_binary(ask: Ask) -> bytes:
    return ask.rng.randbytes(300_000)


@_metrics
def metrics_long_numbers(ask: Ask) -> bytes:
    return lines("9" * 500_000) + lines("0." + "1" * 500_000)


@_metrics
def metrics_exponents(ask: Ask) -> bytes:
    return lines(ask.rng.choice(("1e99999999999", "1e-99999999999", "9e307", "1E+400")))


@_metrics
def metrics_counters_jump(ask: Ask) -> bytes:
    """Counters go up and down by orders of magnitude."""
    return lines(repr(10.0 ** ask.rng.randrange(-9, 12)))


@_metrics
def metrics_timestamps(ask: Ask) -> bytes:
    return lines("1 99999999999999999999") + lines('1 -1 # {trace_id="a"} 1')


@_metrics
def metrics_cache_settings(ask: Ask) -> bytes:
    """A cache of an absurd size, or of none."""
    sizes = ask.rng.choice(("9" * 18, "0", "-1", "1e9", "None", ""))
    return lines("0") + f'vllm:cache_config_info{{block_size="{sizes}",num_gpu_blocks="{sizes}"}} 1.0\n'.encode()


@_metrics
def metrics_idle_lie(ask: Ask) -> bytes:
    """It never has work: a lie within plausible values."""
    return lines("0.0")


@_metrics
def metrics_busy_lie(ask: Ask) -> bytes:
    return lines("100000.0").replace(b'perc{engine="0"} 100000.0', b'perc{engine="0"} 1.0')


@_metrics
def metrics_comments(ask: Ask) -> bytes:
    return b"# HELP vllm:num_requests_running\n#\n" * 400_000 + lines("1")


@_metrics
def metrics_lines_end_oddly(ask: Ask) -> bytes:
    return lines("1").replace(b"\n", ask.rng.choice((b"\r", b"\x00", b"\x0b", b"\xe2\x80\xa8", b"\r\r\n")))


@_behaves(Page.METRICS)
async def metrics_endless(ask: Ask) -> None:
    await ask.head(kind=_TEXT)
    piece = lines("1") * 50
    await ask.flood(b"%x\r\n%b\r\n" % (len(piece), piece))


@_behaves(Page.METRICS)
async def metrics_drip(ask: Ask) -> None:
    await ask.head(kind=_TEXT)
    for _ in range(400):
        await ask.chunk(b"v")
        await asyncio.sleep(0.05)


@_behaves(Page.METRICS)
async def metrics_compressed(ask: Ask) -> None:
    """A bomb: 100 MiB of zeros in 100 KiB."""
    bomb = await asyncio.to_thread(gzip.compress, bytes(100 << 20))
    await ask.whole(bomb, kind=_TEXT, more="Content-Encoding: gzip\r\n")


@_behaves(Page.METRICS)
async def metrics_too_short(ask: Ask) -> None:
    await ask.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + lines("1"))


@_models
def models_deep(ask: Ask) -> bytes:
    depth = ask.rng.choice((33, 600, 5000, 200_000))
    return b'{"object":"list","data":[{"id":"sim","object":"model","x":' + b"[" * depth + b"]" * depth + b"}]}"


@_models
def models_deep_objects(ask: Ask) -> bytes:
    depth = ask.rng.choice((40, 900, 100_000))
    return b'{"data":[{"id":"sim","x":' + b'{"a":' * depth + b"1" + b"}" * depth + b"}]}"


@_models
def models_integers(ask: Ask) -> bytes:
    number = ask.rng.choice((2**63, 2**64, 10**23, -(10**30), 10**4000))
    return b'{"object":"list","data":[{"id":"sim","object":"model","x":%d,"created":%d}]}' % (number, number)


@_models
def models_numbers(ask: Ask) -> bytes:
    return b'{"object":"list","data":[{"id":"sim","x":%b}]}' % ask.rng.choice(
        (b"NaN", b"-Infinity", b"1e999", b"1e308")
    )


@_models
def models_big(ask: Ask) -> bytes:
    return b'{"object":"list","data":[{"id":"sim","x":"' + b"y" * (15 << 20) + b'"}]}'


@_models
def models_many(ask: Ask) -> bytes:
    return b'{"object":"list","data":[' + b",".join(b'{"id":"m%d"}' % each for each in range(200_000)) + b"]}"


@_models
def models_thousand_large(ask: Ask) -> bytes:
    """As many and as large as may be."""
    card = b'{"id":"m%d","x":"' + b"y" * 15_000 + b'"}'
    return b'{"object":"list","data":[{"id":"sim"},' + b",".join(card % each for each in range(900)) + b"]}"


@_models
def models_types(ask: Ask) -> bytes:
    odd: tuple[Any, ...] = (None, 5, "x", {}, [[]], [None], [5], [{"id": 5}], [{"id": None}], [{"id": ["a"]}], [{}])
    return dumped({"object": "list", "data": ask.rng.choice(odd)})


@_models
def models_no_object(ask: Ask) -> bytes:
    return ask.rng.choice((b"[]", b"null", b"5", b'"x"', b"{}", b"", b"{", b"<html></html>", b"\x00"))


@_models
def models_names(ask: Ask) -> bytes:
    names = (
        "\r\nX-Evil: 1",
        "../../etc/passwd",
        "\ud800",
        "a" * 1_000_000,
        "\x00",
        "",
        "\u202e\u2066",
        "{{7*7}}",
        "sim ",
    )
    return dumped({"object": "list", "data": [{"id": name, "object": "model"} for name in names]})


@_models
def models_lengths(ask: Ask) -> bytes:
    odd: Any = ask.rng.choice((0, -1, 1.5, "4096", True, None, [], {}, 10**30, 1e300, 1))
    return dumped({"object": "list", "data": [{"id": "sim", "object": "model", "max_model_len": odd}]})


@_models
def models_created(ask: Ask) -> bytes:
    odd = ask.rng.choice((-1, 1e300, "yesterday", None, True, 10**25, [1]))
    return dumped({"object": "list", "data": [{"id": "sim", "object": "model", "created": odd, "permission": odd}]})


@_models
def models_twice(ask: Ask) -> bytes:
    return b'{"data":[],"data":[' + b",".join([b'{"id":"sim","id":"sim","x":1,"x":2}'] * 500) + b'],"object":"list"}'


@_models
def models_others(ask: Ask) -> bytes:
    """A model that nobody else has."""
    return b'{"object":"list","data":[{"id":"other","object":"model"}]}'


@_models
def models_odd_members(ask: Ask) -> bytes:
    card = {"id": "sim", "__class__": "x", "__proto__": {}, "": "", "error": {"code": 500}, "\x00": 1, "a" * 60_000: 1}
    return dumped({"object": "list", "data": [card]})


@_models
def models_encoding(ask: Ask) -> bytes:
    page = '{"object":"list","data":[{"id":"sim"}]}'
    return ask.rng.choice((page.encode("utf-16"), page.encode("utf-32"), b"\xef\xbb\xbf" + page.encode(), b"\xff" * 99))


@_models
def models_brackets(ask: Ask) -> bytes:
    return b"[" * (8 << 20)


@_behaves(Page.MODELS)
async def models_endless(ask: Ask) -> None:
    await ask.head()
    await ask.flood(b"10\r\n" + b" " * 16 + b"\r\n")


@_behaves(Page.MODELS)
async def models_failure(ask: Ask) -> None:
    await ask.whole(
        b"x" * 100_000, ask.rng.choice(("500 X", "404 X", "301 X", "204 X", "401 X")), more="Location: /\r\n"
    )


@_version
def version_types(ask: Ask) -> bytes:
    return dumped({"version": ask.rng.choice((5, None, [], {"a": 1}, True, 10**30, 1.5, ""))})


@_version
def version_long(ask: Ask) -> bytes:
    return dumped({"version": "9." * (4 << 20)})


@_version
def version_control_characters(ask: Ask) -> bytes:
    return dumped({"version": "0.32.0\r\nX: y\x1b[31m\x00\u2028\ud800"})


@_version
def version_deep(ask: Ask) -> bytes:
    return b'{"version":' + b"[" * 100_000 + b"]" * 100_000 + b"}"


@_version
def version_no_object(ask: Ask) -> bytes:
    return ask.rng.choice((b"[]", b"5", b"null", b"", b"{", b"\xff", b'{"version":1' + b"0" * 5000 + b"}"))


@_behaves(Page.HEALTH)
async def health_flaps(ask: Ask) -> None:
    ask.stays = True
    await ask.whole(b"", ask.rng.choice(("200 OK", "503 X", "500 X")))


@_behaves(Page.HEALTH)
async def health_slow(ask: Ask) -> None:
    await asyncio.sleep(ask.rng.uniform(0.5, 3.0))
    await ask.whole(b"")


@_behaves(Page.HEALTH)
async def health_unavailable(ask: Ask) -> None:
    await ask.whole(b"", "503 Service Unavailable", more="Retry-After: 99999999999999999999\r\n")


@_behaves(Page.HEALTH)
async def health_redirects(ask: Ask) -> None:
    await ask.whole(b"", "307 Temporary Redirect", more="Location: /health\r\n")


@_behaves(Page.HEALTH)
async def health_endless(ask: Ask) -> None:
    await ask.head()
    await ask.flood(b"4\r\nabcd\r\n")


@_behaves(Page.HEALTH)
async def health_other_statuses(ask: Ask) -> None:
    await ask.whole(b"", ask.rng.choice(("201 X", "299 X", "404 X", "401 X", "418 X", "600 X", "999 X")))


@_behaves(Page.HEALTH)
async def health_silent(ask: Ask) -> None:
    await asyncio.sleep(20.0)
