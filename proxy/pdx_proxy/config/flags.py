"""The gateway's flags about requests, for every program that runs a gateway. Pure.

`pdx_api.render.gateway_flags` writes the same flags from a PDDeployment.
"""

import argparse
import dataclasses
import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import ip_network
from typing import Any, Final, NoReturn, TypeVar

from pdx_api.names import (
    CLIENT_KEYS_FLAG,
    ENGINE_KEY_FLAG,
    ORIGIN,
    TLS_CERTIFICATE_FLAG,
    TLS_KEY_FLAG,
    LogFormat,
    Policy,
    PrefillFailure,
    Split,
)
from pdx_api.otlp import ENDPOINT_RULES
from pdx_api.quantities import quantity
from pdx_api.user_info import without_user_info
from pdx_proxy.config.settings import Settings

MAX_SECONDS: Final = 24 * 3600.0
_MAX_AMOUNT: Final = 1_000_000
_MAX_MILLISECONDS: Final = 3_600_000
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


def _refused(text: str, reason: str, instead: str) -> argparse.ArgumentTypeError:
    """Return the error about a value, which may be empty: mostly a variable without a value."""
    given = without_user_info(text)
    return argparse.ArgumentTypeError(f"{f'{given} {reason}' if text.strip() else 'the value is empty'}; {instead}")


def _seconds(text: str, least: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not least <= value <= MAX_SECONDS:
        raise _refused(text, "is not a time", f"write seconds from {least:g} to {MAX_SECONDS:g}")
    return value


def _whole(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit()) or len(text) > 12 or not least <= int(text) <= most:
            raise _refused(text, "is not possible", f"write a whole number from {least} to {most}")
        return int(text)

    return read


def _one_of(kind: type[Choice]) -> Callable[[str], Choice]:
    def read(text: str) -> Choice:
        if text not in list(kind):
            by_lower = {choice.lower(): choice for choice in kind}
            near = difflib.get_close_matches(text.lower(), by_lower, n=1)
            instead = f"did you mean {by_lower[near[0]]}?" if near else f"write one of: {', '.join(kind)}"
            raise _refused(text, "does not exist", instead)
        return kind(text)

    return read


def _size(text: str) -> int:
    value = quantity(text)
    if value is None or not _SMALLEST <= value <= _LARGEST:
        raise _refused(text, "is not a size", "write bytes from 1Ki to 1Ti, for example 256Mi")
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


def _origins(text: str) -> tuple[str, ...]:
    found = tuple(each.strip() for each in text.split(","))
    for each in found:
        if re.fullmatch(ORIGIN, each) is None:
            raise argparse.ArgumentTypeError(
                f"{each or 'an empty text'} is not an origin; write SCHEME://HOST[:PORT] in lower case, for example "
                "https://chat.example.com, or * for all"
            )
    return found


def _file(text: str) -> str:
    if not text:
        raise _refused(text, "", "name a file")
    return text


def _endpoint(text: str) -> str:
    for rule in ENDPOINT_RULES:
        if not rule.holds(text):
            raise _refused(text, "is not possible", rule.message)
    return text


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise _refused(text, "is not between 0 and 1", "write for example 0.1")
    return value


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
        Flag("--split", "choosing", "split", _one_of(Split), "WHETHER",
             "whether to split requests: Auto (those that can be split) or Never (one engine serves each request)"),
        Flag("--prefill-policy", "choosing", "prefill_policy", _POLICY, "POLICY",
             f"how to select the prefill engine: {_POLICIES}"),
        Flag("--decode-policy", "choosing", "decode_policy", _POLICY, "POLICY",
             "how to select the decode engine; the same values"),
        Flag("--disaggregate-above-tokens", "choosing", "disaggregate_above_tokens", _whole(0, _MAX_TOKENS), "N",
             "a decode engine alone serves prompts of at most N tokens, by an estimate; 0: split all; if both "
             "objectives below are set, estimated times decide instead"),
    ),
    "service level objectives": (
        Flag("--slo-ttft-milliseconds", "slo", "ttft_milliseconds", _whole(0, _MAX_MILLISECONDS), "MS",
             "longest time to first token; with --slo-tpot-milliseconds, a decode engine alone serves a request if it "
             "finishes the prompt before any prefill engine and its streams keep their TPOT; 0: none"),
        Flag("--slo-tpot-milliseconds", "slo", "tpot_milliseconds", _whole(0, _MAX_MILLISECONDS), "MS",
             "longest time per output token; it limits the requests at each decode engine; 0: none"),
    ),
    "failures": (
        Flag("--on-prefill-failure", "retries", "on_prefill_failure", _one_of(PrefillFailure), "WHAT",
             "if a prefill engine fails: Retry (another one, finally a decode engine alone), Local (a decode engine "
             "alone at once) or Fail (return the error)"),
        Flag("--attempts", "retries", "attempts", _whole(1, 10), "N",
             "maximum number of attempts before the first event of an answer"),
        Flag("--retry-budget-percent", "retries", "budget_percent", _PERCENT, "N",
             "limit on the retries of the last ten seconds, as a percentage of the requests"),
        Flag("--min-retries", "retries", "min_retries", _whole(0, 10_000), "N",
             "retries in ten seconds that are always allowed, whatever the percentage"),
        Flag("--consecutive-errors", "health", "consecutive_errors", _whole(1, 1000), "N",
             "consecutive answers of 500 and above after which an engine is ejected and probed"),
        Flag("--stalled-seconds", "health", "stalled_seconds", seconds, "S",
             "eject an engine whose running requests make no progress for S seconds, by its metrics; 0: never"),
        Flag("--slow-start-seconds", "health", "slow_start_seconds", seconds, "S",
             "time for which a new engine gets less than its share"),
    ),
    "deadlines": (
        Flag("--connect-seconds", "deadlines", "connect", _some_seconds, "S", "time to connect to an engine"),
        Flag("--prefill-seconds", "deadlines", "prefill", _some_seconds, "S", "time for the whole prefill request"),
        Flag("--handoff-seconds", "deadlines", "handoff", _some_seconds, "S",
             "in push orders, time from the prefill engine's answer to the decode engine's first event; the "
             "engines' kv_lease_duration must be longer"),
        Flag("--first-event-seconds", "deadlines", "first_event", _some_seconds, "S",
             "time for the decode request of a stream up to its first event, including the engine's queue"),
        Flag("--idle-seconds", "deadlines", "idle", _some_seconds, "S", "longest gap in an engine's stream"),
        Flag("--total-seconds", "deadlines", "total", _some_seconds, "S", "time for a whole request"),
    ),
    "limits of this gateway, for all of its workers together": (
        Flag("--max-in-flight-per-decode", "limits", "in_flight_per_decode", _AMOUNT, "N",
             "maximum number of requests at each decode or aggregated engine; further ones wait; 0: as many as the "
             "engine runs, by its metrics"),
        Flag("--max-in-flight-per-prefill", "limits", "in_flight_per_prefill", _AMOUNT, "N",
             "maximum number of requests at each prefill engine; as above"),
        Flag("--max-queued-requests", "limits", "queued_requests", _AMOUNT, "N",
             "maximum number of requests in the queue; the gateway sheds further ones"),
        Flag("--max-wait-seconds", "limits", "queue_seconds", seconds, "S",
             "longest wait in the queue; after that the gateway sheds the request"),
        Flag("--max-buffered-bytes", "limits", "buffered_bytes", _size, "SIZE",
             "memory for bodies that wait or are being sent, for example 256Mi; the gateway sheds further requests"),
        Flag("--max-body-size", "limits", "max_body_bytes", _size, "SIZE",
             "largest body, for example 64Mi; a larger one gets 413"),
        Flag("--max-requests-per-client", "limits", "requests_per_client", _AMOUNT, "N",
             "maximum number of open requests per API key, or per address if there is no key; 0: no limit"),
        Flag("--trusted-proxies", "limits", "trusted_proxies", _networks, "CIDR,...",
             "networks of proxies whose X-Forwarded-For names the client, for example 10.0.0.0/8; may be repeated",
             many=True),
    ),
    "browsers and streams": (
        Flag("--cors-allowed-origins", "cors", "allowed_origins", _origins, "ORIGIN,...",
             "origins whose pages may read answers (CORS), for example https://chat.example.com; * for all; may be "
             "repeated", many=True),
        Flag("--stream-keep-alive-seconds", "streams", "keep_alive_seconds", seconds, "S",
             "send a comment before the first event of a stream after each S seconds without a byte; the first comment "
             "commits the status to 200; 0: none"),
    ),
    "log on stderr": (
        Flag("--log-format", "logs", "format", _one_of(LogFormat), "FORMAT", "format of the lines: Text or JSON"),
        Flag("--slow-seconds", "logs", "slow_seconds", seconds, "S",
             "log a request whose answer has not begun after S seconds, like a failed one; 0: log every request"),
    ),
    "traces": (
        Flag("--tracing-endpoint", "tracing", "endpoint", _endpoint, "URL",
             "OTLP receiver over HTTP that receives the spans, for example http://collector:4318"),
        Flag("--tracing-ratio", "tracing", "ratio", _share, "SHARE",
             "share of sampled requests; a request with a valid traceparent follows its sampled flag instead"),
    ),
    "verification": (
        Flag("--verification-period-seconds", "verification", "period_seconds", seconds, "S",
             "time between two transfer probes of an engine, which test whether KV moves to or from it; 0: none"),
    ),
    "API keys": (
        Flag(CLIENT_KEYS_FLAG, "keys", "clients", _file, "FILE",
             "clients that may use the gateway, as lines `sha256:HEX NAME [weight=N]`; a changed file is read again"),
        Flag(ENGINE_KEY_FLAG, "keys", "engines", _file, "FILE",
             "the key that engines require (vLLM's --api-key); a changed file is read again"),
    ),
    "TLS on the serving port": (
        Flag(TLS_CERTIFICATE_FLAG, "tls", "certificate", _file, "FILE",
             "certificate with its chain (PEM); changed files are read again, and open connections stay"),
        Flag(TLS_KEY_FLAG, "tls", "key", _file, "FILE", "private key of the certificate (PEM, without a passphrase)"),
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
    _check_order("--first-event-seconds", {"--handoff-seconds": deadlines.handoff}, deadlines.first_event, _number)
    waits = {
        "--connect-seconds": deadlines.connect,
        "--prefill-seconds": deadlines.prefill,
        "--first-event-seconds": deadlines.first_event,
        "--idle-seconds": deadlines.idle,
        "--max-wait-seconds": limits.queue_seconds,
    }
    _check_order("--total-seconds", waits, deadlines.total, _number)
    if (settings.tls.certificate is None) != (settings.tls.key is None):
        raise FlagsError(f"TLS needs a certificate and its key; write {TLS_CERTIFICATE_FLAG} and {TLS_KEY_FLAG}")
    _check_order("--max-buffered-bytes", {"--max-body-size": limits.max_body_bytes}, limits.buffered_bytes, _bytes)


def _check_order(greatest: str, others: Mapping[str, float], most: float, shown: Callable[[float], str]) -> None:
    """Refuse a flag whose value is less than those of others; raises FlagsError."""
    above = {flag: value for flag, value in others.items() if value > most}
    if above:
        *first, last = (f"{flag} is {shown(value)}" for flag, value in above.items())
        values = f"{', '.join(first)} and {last}" if first else last
        lower = "the others" if first else next(iter(above))
        raise FlagsError(f"{greatest} is {shown(most)}, but {values}; raise {greatest}, or lower {lower}")


def _number(value: float) -> str:
    return f"{value:.9g}"


def _bytes(value: float) -> str:
    """Return a size in the largest unit of which it is a multiple."""
    whole = int(value)
    unit = next((power for power in (4, 3, 2, 1) if whole % 1024**power == 0), 0)
    return f"{whole // 1024**unit}{('', 'Ki', 'Mi', 'Gi', 'Ti')[unit]}"


def _shown(flag: Flag, default: Any) -> str:
    if flag.read is _size:
        return _bytes(default)
    return f"{default:g}" if isinstance(default, float) else str(default)
