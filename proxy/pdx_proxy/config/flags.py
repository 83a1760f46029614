"""The gateway's flags about requests, for every program that runs a gateway. Pure.

`pdx_api.render.gateway_flags` writes the same flags from a PDDeployment.
"""

import argparse
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import ip_network
from typing import Any, Final, NoReturn, TypeVar

from pdx_api.names import CLIENT_KEYS_FLAG, ENGINE_KEY_FLAG, LogFormat, Policy, PrefillFailure
from pdx_api.quantities import quantity
from pdx_proxy.config.settings import Settings

MAX_SECONDS: Final = 24 * 3600.0
_MAX_AMOUNT: Final = 1_000_000
_MAX_TOKENS: Final = 16_777_216
_SMALLEST, _LARGEST = 1024, 1024**4

Choice = TypeVar("Choice", bound=StrEnum)


class FlagsError(ValueError):
    """Flags that contradict each other. The text is one sentence without a full stop."""


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one sentence, without the list of all flags."""

    def error(self, message: str) -> NoReturn:
        """Write the message to stderr and exit with 2."""
        self.exit(2, f"{self.prog}: {message}\n")


class _Add(argparse.Action):
    """Adds the values of a repeated flag. Each is a tuple."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        setattr(namespace, self.dest, (*getattr(namespace, self.dest), *values))


def seconds(text: str) -> float:
    """Seconds, 0 or more; raises ArgumentTypeError."""
    return _seconds(text, least=0.0)


def _some_seconds(text: str) -> float:
    return _seconds(text, least=0.001)


def _seconds(text: str, least: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not least <= value <= MAX_SECONDS:
        raise argparse.ArgumentTypeError(f"{text} is not a time; write seconds from {least:g} to {MAX_SECONDS:g}")
    return value


def _whole(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit()) or len(text) > 12 or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text} is not possible; write a whole number from {least} to {most}")
        return int(text)

    return read


def _one_of(kind: type[Choice]) -> Callable[[str], Choice]:
    def read(text: str) -> Choice:
        if text not in list(kind):
            raise argparse.ArgumentTypeError(f"{text} does not exist; write one of: {', '.join(kind)}")
        return kind(text)

    return read


def _size(text: str) -> int:
    value = quantity(text)
    if value is None or not _SMALLEST <= value <= _LARGEST:
        raise argparse.ArgumentTypeError(f"{text} is not a size; write bytes from 1Ki to 1Ti, for example 256Mi")
    return int(value)


def _networks(text: str) -> tuple[str, ...]:
    found = tuple(each.strip() for each in text.split(","))
    for each in found:
        try:
            ip_network(each, strict=False)
        except ValueError as error:
            raise argparse.ArgumentTypeError(
                f"{each or 'an empty text'} is not a network; write CIDRs, for example 10.0.0.0/8,fd00::/8"
            ) from error
    return found


def _file(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("the value is empty; name a file")
    return text


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag and the setting that it sets."""

    name: str
    part: str
    """Field of `Settings`."""
    field: str
    """Field of that part. Its default is the flag's default."""
    read: Callable[[str], Any]
    """Parses the value; raises ArgumentTypeError."""
    metavar: str
    help: str
    many: bool = False
    """Whether each value is a tuple, and further values are added to the first."""

    @property
    def dest(self) -> str:
        """The attribute in the parsed arguments."""
        return self.name.removeprefix("--").replace("-", "_")


_POLICY: Final = _one_of(Policy)
_PERCENT: Final = _whole(0, 100)
_AMOUNT: Final = _whole(0, _MAX_AMOUNT)
_POLICIES: Final = "|".join(Policy)

FLAGS: Final[dict[str, tuple[Flag, ...]]] = {
    "selection of engines": (
        Flag("--prefill-policy", "choosing", "prefill_policy", _POLICY, "POLICY", f"how P is selected: {_POLICIES}"),
        Flag("--decode-policy", "choosing", "decode_policy", _POLICY, "POLICY", "how D is selected; the same values"),
        Flag("--disaggregate-above-tokens", "choosing", "disaggregate_above_tokens", _whole(0, _MAX_TOKENS), "N",
             "D alone serves prompts of at most N tokens, by an estimate; 0 splits all"),
    ),
    "failures": (
        Flag("--on-prefill-failure", "retries", "on_prefill_failure", _one_of(PrefillFailure), "WHAT",
             "when P fails: Retry (another P, at last D alone), Local (D alone at once) or Fail (return the error)"),
        Flag("--attempts", "retries", "attempts", _whole(1, 10), "N",
             "most attempts before the first event of an answer"),
        Flag("--retry-budget-percent", "retries", "budget_percent", _PERCENT, "N",
             "retries of the last ten seconds as a percentage of its requests"),
        Flag("--min-retries", "retries", "min_retries", _whole(0, 10_000), "N",
             "retries in ten seconds that are allowed whatever the percentage"),
        Flag("--consecutive-errors", "health", "consecutive_errors", _whole(1, 1000), "N",
             "consecutive answers of 500 and above after which an engine is ejected and probed"),
        Flag("--stalled-seconds", "health", "stalled_seconds", seconds, "S",
             "an engine whose running requests make no progress for S seconds, by its metrics, is ejected; 0: none is"),
        Flag("--slow-start-seconds", "health", "slow_start_seconds", seconds, "S",
             "how long a new engine gets less than its share"),
    ),
    "deadlines": (
        Flag("--connect-seconds", "deadlines", "connect", _some_seconds, "S", "a connection to an engine"),
        Flag("--prefill-seconds", "deadlines", "prefill", _some_seconds, "S", "P's whole part of a request"),
        Flag("--handoff-seconds", "deadlines", "handoff", _some_seconds, "S",
             "in push orders, P's answer to D's first event; kv_lease_duration of the engines must be longer"),
        Flag("--first-event-seconds", "deadlines", "first_event", _some_seconds, "S",
             "D's part of a streamed request to its first event, D's queue included"),
        Flag("--idle-seconds", "deadlines", "idle", _some_seconds, "S", "longest gap in an engine's stream"),
        Flag("--total-seconds", "deadlines", "total", _some_seconds, "S", "a whole request"),
    ),
    "limits of this gateway, for all of its workers together": (
        Flag("--max-in-flight-per-decode", "limits", "in_flight_per_decode", _AMOUNT, "N",
             "most requests at each engine that answers clients; further ones wait; 0: as many as the engine runs, by "
             "its metrics"),
        Flag("--max-in-flight-per-prefill", "limits", "in_flight_per_prefill", _AMOUNT, "N",
             "most requests at each engine that prefills; the same"),
        Flag("--max-queued-requests", "limits", "queued_requests", _AMOUNT, "N",
             "requests in the queue; further ones are shed"),
        Flag("--max-wait-seconds", "limits", "queue_seconds", seconds, "S",
             "longest wait in the queue; then a request is shed"),
        Flag("--max-buffered-bytes", "limits", "buffered_bytes", _size, "SIZE",
             "bytes of request bodies that wait or are being sent, for example 256Mi; further requests are shed"),
        Flag("--max-body-size", "limits", "max_body_bytes", _size, "SIZE",
             "largest body, for example 64Mi; a larger one gets 413"),
        Flag("--max-requests-per-client", "limits", "requests_per_client", _AMOUNT, "N",
             "open requests of one API key, or else of one address; 0: no limit"),
        Flag("--trusted-proxies", "limits", "trusted_proxies", _networks, "CIDR,...",
             "networks of proxies whose X-Forwarded-For names the client, for example 10.0.0.0/8; may be repeated",
             many=True),
    ),
    "log on stderr": (
        Flag("--log-format", "logs", "format", _one_of(LogFormat), "FORMAT", "how lines are written: Text or JSON"),
        Flag("--slow-seconds", "logs", "slow_seconds", seconds, "S",
             "a request whose answer has not begun by then gets a line, like a failed one; 0: every request"),
    ),
    "verification": (
        Flag("--verification-period-seconds", "verification", "period_seconds", seconds, "S",
             "time between two transfer probes of an engine, which show whether KV moves to or from it; 0: none"),
    ),
    "API keys": (
        Flag(CLIENT_KEYS_FLAG, "keys", "clients", _file, "FILE",
             "clients that may use the gateway: lines of `sha256:HEX NAME [weight=N]`; a changed file is read again"),
        Flag(ENGINE_KEY_FLAG, "keys", "engines", _file, "FILE",
             "the key that engines require (vLLM's --api-key); a changed file is read again"),
    ),
}  # fmt: skip
"""All flags by subject."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add all flags to a parser."""
    usual = Settings()
    for title, flags in FLAGS.items():
        group = parser.add_argument_group(title)
        for flag in flags:
            default = getattr(getattr(usual, flag.part), flag.field)
            default_text = f" ({_shown(flag, default)})" if default is not None and not flag.many else ""
            help_text = f"{flag.help}{default_text}".replace("%", "%%")
            action: Any = _Add if flag.many else "store"
            group.add_argument(
                flag.name, action=action, type=flag.read, default=default, metavar=flag.metavar, help=help_text
            )


def with_flags(settings: Settings, args: argparse.Namespace) -> Settings:
    """The settings with the values of the flags; raises FlagsError for flags that contradict each other."""
    parts: dict[str, dict[str, Any]] = {}
    for flag in (flag for flags in FLAGS.values() for flag in flags):
        parts.setdefault(flag.part, {})[flag.field] = getattr(args, flag.dest)
    changed = {part: dataclasses.replace(getattr(settings, part), **fields) for part, fields in parts.items()}
    found = dataclasses.replace(settings, **changed)
    _check(found)
    return found


def flags_of(argv: Sequence[str]) -> Settings:
    """The default settings with the values of these flags."""
    parser = Parser(allow_abbrev=False)
    add_flags(parser)
    return with_flags(Settings(), parser.parse_args(argv))


def _check(settings: Settings) -> None:
    deadlines, limits = settings.deadlines, settings.limits
    if deadlines.handoff > deadlines.first_event:
        raise FlagsError("a hand-off ends with the first event; write --handoff-seconds up to --first-event-seconds")
    if max(deadlines.connect, deadlines.prefill, deadlines.first_event, deadlines.idle) > deadlines.total:
        raise FlagsError(
            "no wait is longer than the whole request; write --connect-seconds, --prefill-seconds, "
            "--first-event-seconds and --idle-seconds up to --total-seconds"
        )
    if limits.queue_seconds > deadlines.total:
        raise FlagsError("no wait is longer than the whole request; write --max-wait-seconds up to --total-seconds")
    if limits.max_body_bytes > limits.buffered_bytes:
        raise FlagsError("the largest body would never be taken; write --max-body-size up to --max-buffered-bytes")


def _shown(flag: Flag, default: Any) -> str:
    if flag.read is _size:
        return f"{default // 1024**2}Mi"
    return f"{default:g}" if isinstance(default, float) else str(default)
