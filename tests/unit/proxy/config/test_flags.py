"""Every field of a spec about requests sets one setting of the gateway, through its flag."""

import argparse
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from pdx_api.names import LogFormat, Policy, PrefillFailure, Split
from pdx_api.quantities import quantity
from pdx_api.render.gateway_flags import gateway_flags
from pdx_api.spec.kv_transfer import Verification as SpecVerification
from pdx_api.spec.parse import parse
from pdx_api.spec.routing import GatewayCORS, GatewayLimits, GatewayLogs, Routing
from pdx_api.spec.types import Spec
from pdx_cli.commands.gateway import add_arguments as add_gateway_arguments
from pdx_cli.commands.gateway import settings_of as gateway_settings_of
from pdx_cli.main import main as pdx
from pdx_cli.usage import ended as ended_with_a_stop
from pdx_proxy.__main__ import create_parser, main, settings_of
from pdx_proxy.config.flags import FLAGS, flags_of
from pdx_proxy.config.settings import (
    CORS,
    SLO,
    TLS,
    Choosing,
    Deadlines,
    Health,
    Keys,
    Limits,
    Logs,
    Retries,
    Settings,
    Streams,
    Tracing,
    Verification,
)
from tests.pddeployments import FULL, changed

IN_CLUSTER = ["--deployment", "tiny", "--namespace", "models"]

INTERNAL = {"deadlines": {"settle", "nearly_done", "warm_up", "health_check"}}
"""Settings without a flag."""

Path = str

TABLE: dict[Path, tuple[object, str, str, object]] = {
    "spec.routing.split": ("Never", "choosing", "split", Split.NEVER),
    "spec.routing.prefillPolicy": ("PrefixAffinity", "choosing", "prefill_policy", Policy.PREFIX_AFFINITY),
    "spec.routing.decodePolicy": ("LeastLoad", "choosing", "decode_policy", Policy.LEAST_LOAD),
    "spec.routing.disaggregateAboveTokens": (512, "choosing", "disaggregate_above_tokens", 512),
    "spec.routing.onPrefillFailure": ("Fail", "retries", "on_prefill_failure", PrefillFailure.FAIL),
    "spec.routing.retries.attempts": (5, "retries", "attempts", 5),
    "spec.routing.retries.budgetPercent": (7, "retries", "budget_percent", 7),
    "spec.routing.retries.minRetries": (0, "retries", "min_retries", 0),
    "spec.routing.deadlines.connectSeconds": (9, "deadlines", "connect", 9.0),
    "spec.routing.deadlines.prefillSeconds": (11, "deadlines", "prefill", 11.0),
    "spec.routing.deadlines.handoffSeconds": (60, "deadlines", "handoff", 60.0),
    "spec.routing.deadlines.firstEventSeconds": (61, "deadlines", "first_event", 61.0),
    "spec.routing.deadlines.idleSeconds": (62, "deadlines", "idle", 62.0),
    "spec.routing.deadlines.totalSeconds": (86400, "deadlines", "total", 86400.0),
    "spec.routing.queue.maxRequests": (0, "limits", "queued_requests", 0),
    "spec.routing.queue.maxWaitSeconds": (0, "limits", "queue_seconds", 0.0),
    "spec.routing.queue.maxInFlightPerDecode": (1, "limits", "in_flight_per_decode", 1),
    "spec.routing.queue.maxInFlightPerPrefill": (7, "limits", "in_flight_per_prefill", 7),
    "spec.routing.queue.maxBufferedBytes": ("1.5Gi", "limits", "buffered_bytes", 3 * 2**29),
    "spec.gateway.limits.maxBodySize": (5000, "limits", "max_body_bytes", 5000),
    "spec.gateway.limits.maxRequestsPerClient": (3, "limits", "requests_per_client", 3),
    "spec.gateway.limits.trustedProxies": (
        *(["10.0.0.0/8", "fd00::/8"], "limits", "trusted_proxies"),
        ("10.0.0.0/8", "fd00::/8"),
    ),
    "spec.gateway.cors.allowedOrigins": (
        *(["https://chat.example.com", "*"], "cors", "allowed_origins"),
        ("https://chat.example.com", "*"),
    ),
    "spec.gateway.streamKeepAliveSeconds": (15, "streams", "keep_alive_seconds", 15.0),
    "spec.gateway.logs.format": ("JSON", "logs", "format", LogFormat.JSON),
    "spec.gateway.logs.slowSeconds": (0, "logs", "slow_seconds", 0.0),
    "spec.routing.outlierDetection.consecutiveErrors": (2, "health", "consecutive_errors", 2),
    "spec.routing.outlierDetection.stalledSeconds": (300, "health", "stalled_seconds", 300.0),
    "spec.routing.slowStartSeconds": (0, "health", "slow_start_seconds", 0.0),
    "spec.kvTransfer.verification.periodSeconds": (0, "verification", "period_seconds", 0.0),
    "spec.observability.tracing": (
        *({"endpoint": "http://collector:4318"}, "tracing", "endpoint"),
        "http://collector:4318",
    ),
    "spec.slo.ttftMilliseconds": (2000, "slo", "ttft_milliseconds", 2000),
    "spec.slo.tpotMilliseconds": (50, "slo", "tpot_milliseconds", 50),
}
"""Field -> a value, and the part, the name and the value of its setting."""


def _leaves(part: type[BaseModel], path: str) -> Iterator[Path]:
    for name, field in part.model_fields.items():
        inner = f"{path}.{field.alias or name}"
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _leaves(field.annotation, inner)
        else:
            yield inner


def _spec(path: str, value: object) -> Spec:
    return parse(changed(path, value)).spec


def _with(part: str, **fields: object) -> Settings:
    usual = Settings()
    return dataclasses.replace(usual, **{part: dataclasses.replace(getattr(usual, part), **fields)})


def test_no_field_is_forgotten() -> None:
    fields = {*_leaves(Routing, "spec.routing"), *_leaves(GatewayLimits, "spec.gateway.limits")}
    fields |= {*_leaves(GatewayLogs, "spec.gateway.logs"), *_leaves(type(Spec.model_fields["slo"].default), "spec.slo")}
    fields |= {*_leaves(SpecVerification, "spec.kvTransfer.verification"), *_leaves(GatewayCORS, "spec.gateway.cors")}
    fields |= {"spec.gateway.streamKeepAliveSeconds"}
    fields |= {"spec.observability.tracing"}
    assert set(TABLE) == fields


def test_no_setting_is_forgotten() -> None:
    parts: dict[str, type] = {
        "choosing": Choosing,
        "retries": Retries,
        "deadlines": Deadlines,
        "limits": Limits,
        "health": Health,
    }
    parts |= {"logs": Logs, "verification": Verification, "slo": SLO, "cors": CORS, "streams": Streams}
    settings = {
        (part, field.name)
        for part, kind in parts.items()
        for field in dataclasses.fields(kind)
        if field.name not in INTERNAL.get(part, ())
    }
    assert {row[1:3] for row in TABLE.values()} == {*settings, ("tracing", "endpoint")}
    settings |= {("tracing", field.name) for field in dataclasses.fields(Tracing)}
    keys = {("keys", field.name) for field in dataclasses.fields(Keys)}
    keys |= {("tls", field.name) for field in dataclasses.fields(TLS)}
    assert {(flag.part, flag.field) for flags in FLAGS.values() for flag in flags} == settings | keys


@pytest.mark.parametrize("path", TABLE)
def test_a_field_sets_one_setting(path: Path) -> None:
    value, part, field, setting = TABLE[path]
    flags = gateway_flags(_spec(path, value))
    assert len(flags) == 1
    assert flags_of(flags) == _with(part, **{field: setting})
    in_cluster = settings_of(create_parser().parse_args([*IN_CLUSTER, *flags]))
    assert getattr(getattr(in_cluster, part), field) == setting


@pytest.mark.parametrize("path", TABLE)
def test_field_and_setting_have_one_default(path: Path) -> None:
    _, part, field, _ = TABLE[path]
    found: Any = parse(changed("spec.routing", {})).spec.model_dump(mode="json", by_alias=True)
    for step in path.split(".")[1:]:
        found = found[step]
    expected = getattr(getattr(Settings(), part), field)
    if isinstance(found, list):
        found = tuple(found)
    if found is None:
        return  # without a value, the field sets no flag: see `test_unset_fields_need_no_flag`
    assert (quantity(found) if path.endswith(("maxBufferedBytes", "maxBodySize")) else found) == expected


def test_unset_fields_need_no_flag() -> None:
    assert gateway_flags(_spec("spec.routing", {"retries": {"attempts": 3}})) == ()
    assert flags_of(()) == Settings()


def test_all_at_once() -> None:
    settings = flags_of(gateway_flags(parse(FULL).spec))
    assert settings.deadlines == Deadlines(1.0, 120.0, 20.0, 240.0, 60.0, 1800.0)
    assert settings.choosing == Choosing(Policy.PREFIX_AFFINITY, Policy.SESSION_AFFINITY, 512)
    assert settings.retries == Retries(PrefillFailure.LOCAL, 2, 10, 0)
    assert settings.limits == Limits(300, 0, 3 * 2**29, 0.0, 16, 2**25)
    assert settings.health == Health(2, 0.0)


def test_keys_are_files() -> None:
    settings = flags_of(["--client-keys=/c/keys", "--engine-key", "/e/key"])
    assert settings.keys == Keys(clients="/c/keys", engines="/e/key")


def test_tracing_has_a_ratio() -> None:
    tracing = {"endpoint": "https://collector:4318/v1/traces", "ratio": 0.015}
    settings = flags_of(gateway_flags(_spec("spec.observability.tracing", tracing)))
    assert settings.tracing == Tracing("https://collector:4318/v1/traces", 0.015)


def test_networks_are_added() -> None:
    settings = flags_of(["--trusted-proxies", "10.0.0.0/8, fd00::/8", "--trusted-proxies=192.0.2.1"])
    assert settings.limits.trusted_proxies == ("10.0.0.0/8", "fd00::/8", "192.0.2.1")


def test_repeated_engines_are_added() -> None:
    parser = argparse.ArgumentParser()
    add_gateway_arguments(parser)
    urls = [f"http://h{number}:1" for number in range(5)]
    argv = ["--prefill", urls[0], "--decode", urls[1], urls[2], "--decode", urls[3], "--prefill", urls[4]]
    found = gateway_settings_of(parser.parse_args(argv))
    assert [spec.address.host for spec in found.endpoints] == ["h0", "h4", "h1", "h2", "h3"]
    argv += ["--identity-ports", "7", "--identity-ports", "8"]
    found = gateway_settings_of(parser.parse_args(argv))
    assert [spec.identity_port for spec in found.endpoints] == [7, 8, 0, 0, 0]
    found = gateway_settings_of(parser.parse_args(["--aggregated", urls[0], "--aggregated", *urls[1:3]]))
    assert [spec.address.host for spec in found.endpoints] == ["h0", "h1", "h2"]


@pytest.mark.parametrize("any_patch", [True, False])
def test_patch_releases_pair_if_a_flag_says_so(any_patch: bool) -> None:
    parser = argparse.ArgumentParser()
    add_gateway_arguments(parser)
    argv = ["--prefill", "http://a:1", "--decode", "http://b:1", "http://c:1"]
    found = gateway_settings_of(parser.parse_args([*argv, *["--any-patch-release"] * any_patch]))
    assert [spec.any_patch for spec in found.endpoints] == [any_patch] * 3


WRONG = [
    ("--cors-allowed-origins https://chat.example.com/",
     "argument --cors-allowed-origins: https://chat.example.com/ is not an origin; write SCHEME://HOST[:PORT] in lower "
     "case, for example https://chat.example.com, or * for all"),
    ("--trusted-proxies 10.0.0.0/33",
     "argument --trusted-proxies: 10.0.0.0/33 is not a network; write CIDRs, for example 10.0.0.0/8,fd00::/8"),
    ("--prefill-policy Random",
     "argument --prefill-policy: Random does not exist; write one of: "
     "ExpectedWait, LeastRequests, LeastITL, LeastLoad, PrefixAffinity, SessionAffinity"),
    ("--on-prefill-failure retry", "argument --on-prefill-failure: retry does not exist; did you mean Retry?"),
    ("--on-prefill-failure X", "argument --on-prefill-failure: X does not exist; write one of: Retry, Local, Fail"),
    ("--log-format json", "argument --log-format: json does not exist; did you mean JSON?"),
    ("--prefill-policy leastload", "argument --prefill-policy: leastload does not exist; did you mean LeastLoad?"),
    ("--attempts 0", "argument --attempts: 0 is not possible; write a whole number from 1 to 10"),
    ("--retry-budget-percent 101",
     "argument --retry-budget-percent: 101 is not possible; write a whole number from 0 to 100"),
    ("--max-queued-requests 1e3",
     "argument --max-queued-requests: 1e3 is not possible; write a whole number from 0 to 1000000"),
    ("--handoff-seconds 0", "argument --handoff-seconds: 0 is not a time; write seconds from 0.001 to 86400"),
    ("--idle-seconds nan", "argument --idle-seconds: nan is not a time; write seconds from 0.001 to 86400"),
    ("--max-wait-seconds -1", "argument --max-wait-seconds: -1 is not a time; write seconds from 0 to 86400"),
    ("--max-body-size 64MB",
     "argument --max-body-size: 64MB is not a size; write bytes from 1Ki to 1Ti, for example 256Mi"),
    ("--max-buffered-bytes 1",
     "argument --max-buffered-bytes: 1 is not a size; write bytes from 1Ki to 1Ti, for example 256Mi"),
    ("--tracing-endpoint collector:4318",
     "argument --tracing-endpoint: collector:4318 is not possible; write the URL of an OTLP receiver over HTTP, for "
     "example http://collector.observability:4318"),
    ("--tracing-endpoint http://collector:4317",
     "argument --tracing-endpoint: http://collector:4317 is not possible; 4317 is the port of OTLP over gRPC; write "
     "the receiver's port for OTLP over HTTP, usually 4318"),
    ("--tracing-endpoint=",
     "argument --tracing-endpoint: the value is empty; write the URL of an OTLP receiver over HTTP, for example "
     "http://collector.observability:4318"),
    ("--tracing-ratio 10%",
     "argument --tracing-ratio: 10% is not between 0 and 1; write for example 0.1"),
    ("--tracing-ratio nan", "argument --tracing-ratio: nan is not between 0 and 1; write for example 0.1"),
    ("--idle-seconds=", "argument --idle-seconds: the value is empty; write seconds from 0.001 to 86400"),
    ("--attempts=", "argument --attempts: the value is empty; write a whole number from 1 to 10"),
    ("--on-prefill-failure=", "argument --on-prefill-failure: the value is empty; write one of: Retry, Local, Fail"),
    ("--max-body-size=",
     "argument --max-body-size: the value is empty; write bytes from 1Ki to 1Ti, for example 256Mi"),
    ("--tracing-ratio=", "argument --tracing-ratio: the value is empty; write for example 0.1"),
    ("--client-keys=", "argument --client-keys: the value is empty; name a file"),
    ("--attempts", "argument --attempts: expected one argument"),
]  # fmt: skip

TOGETHER = [
    ("--tls-key=/t/tls.key", "TLS needs a certificate and its key; write --tls-certificate and --tls-key"),
    ("--handoff-seconds 601",
     "--first-event-seconds is 600, but --handoff-seconds is 601; raise --first-event-seconds, or lower "
     "--handoff-seconds"),
    ("--total-seconds 599.5",
     "--total-seconds is 599.5, but --first-event-seconds is 600; raise --total-seconds, or lower "
     "--first-event-seconds"),
    ("--total-seconds 1 --handoff-seconds 1 --first-event-seconds 1 --max-wait-seconds 1",
     "--total-seconds is 1, but --connect-seconds is 3, --prefill-seconds is 300 and --idle-seconds is 300; raise "
     "--total-seconds, or lower the others"),
    ("--max-wait-seconds 3601",
     "--total-seconds is 3600, but --max-wait-seconds is 3601; raise --total-seconds, or lower --max-wait-seconds"),
    ("--max-buffered-bytes 1Ki",
     "--max-buffered-bytes is 1Ki, but --max-body-size is 64Mi; raise --max-buffered-bytes, or lower --max-body-size"),
    ("--max-buffered-bytes 1.5Gi --max-body-size 1610612737",
     "--max-buffered-bytes is 1536Mi, but --max-body-size is 1610612737; raise --max-buffered-bytes, or lower "
     "--max-body-size"),
]  # fmt: skip


@pytest.mark.parametrize(("flags", "error"), [*WRONG, *TOGETHER])
def test_wrong_flags_give_one_error(flags: str, error: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*IN_CLUSTER, *flags.split()])
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"python -m pdx_proxy: {error}\n"


@pytest.mark.parametrize(("flags", "error"), WRONG)
def test_pdx_gateway_reports_the_same(flags: str, error: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        pdx(["gateway", "--aggregated", "http://127.0.0.1:1", *flags.split()])
    assert ended.value.code == 2
    sentence = ended_with_a_stop(error.removeprefix("argument "))
    if sentence.endswith(": expected one argument."):
        sentence = "--attempts needs a value."
    assert capsys.readouterr().err == f"pdx gateway: {sentence}\n"


@pytest.mark.parametrize(("flags", "error"), TOGETHER)
def test_pdx_gateway_refuses_the_same_contradictions(
    flags: str, error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pdx(["gateway", "--aggregated", "http://127.0.0.1:1", *flags.split()]) == 2
    assert capsys.readouterr().err == f"pdx: {error}.\n"


@pytest.mark.parametrize("url", ["http://[::1", "http://h:99999", "http://h:0", "https://h", "http://h/v1", "h:80"])
def test_wrong_engine_urls(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert pdx(["gateway", "--aggregated", url]) == 2
    assert capsys.readouterr().err == f"pdx: {url} is not the URL of an engine; write http://HOST:PORT.\n"


@pytest.mark.parametrize(("program", "argv"), [(main, ["--help"]), (pdx, ["gateway", "--help"])])
def test_help_names_every_flag_with_its_default(
    program: Callable[[list[str]], int], argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        program(argv)
    assert ended.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    for flag in (flag for flags in FLAGS.values() for flag in flags):
        assert f"{flag.name} {flag.metavar} " in text
    for text_of_default in ("(25)", "(64Mi)", "(Retry)", "(ExpectedWait)", "(1024)"):
        assert text_of_default in text
