"""Every field of a spec about requests sets one setting of the gateway, through its flag."""

import argparse
import dataclasses
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import pytest
from pydantic.alias_generators import to_camel

from pdx_api.names import Policy, PrefillFailure, Split
from pdx_api.render.gateway_flags import gateway_flags
from pdx_api.settings.gateway import Choosing, Keys, Tracing
from pdx_api.settings.groups import SETTINGS
from pdx_api.settings.kinds import Choice, Seconds, Size, Whole, in_bytes
from pdx_api.settings.setting import Setting
from pdx_api.spec.parse import parse
from pdx_api.spec.schema import object_schema
from pdx_api.spec.types import Spec
from pdx_cli.commands.gateway import add_arguments as add_gateway_arguments
from pdx_cli.commands.gateway import settings_of as gateway_settings_of
from pdx_cli.main import main as pdx
from pdx_cli.usage import ended as ended_with_a_stop
from pdx_proxy.__main__ import create_parser, main, settings_of
from pdx_proxy.config.flags import Parser, add_flags, with_flags
from pdx_proxy.config.settings import Deadlines, Health, Limits, Retries, Settings
from scripts.command_line import command_line
from scripts.reference import reference
from tests.pddeployments import FULL, changed

IN_CLUSTER = ["--deployment", "tiny", "--namespace", "models"]

INTERNAL = {("deadlines", field) for field in ("settle", "nearly_done", "warm_up", "health_check")}
"""Settings without a flag."""
TEXTS: dict[str, Any] = {
    "--trusted-proxies": ("10.0.0.0/8", "fd00::/8"),
    "--cors-allowed-origins": ("https://chat.example.com", "*"),
}
"""Values of settings that are texts."""

IN_SPEC = [each for each in SETTINGS if each.group.spec]
OF_EVERY_SPEC = [each for each in IN_SPEC if each.group.part != "tracing"]
REFERENCE = reference(object_schema())
COMMAND_LINE = command_line()


def _path(setting: Setting) -> str:
    return ".".join(to_camel(step) for step in ("spec", *setting.group.spec.split("."), setting.field))


def _other_value(setting: Setting) -> Any:
    """A value that is not the default and fits the defaults of the others."""
    match setting.kind:
        case Whole() | Seconds():
            return (setting.default or 0) + 1
        case Size():
            return in_bytes(setting.default) + 1
        case Choice(names):
            return next(name for name in names if name is not setting.default)
    return TEXTS[setting.flag]


def _spec(path: str, value: object) -> Spec:
    return parse(changed(path, list(value) if isinstance(value, tuple) else value)).spec


def flags_of(argv: Sequence[str]) -> Settings:
    parser = Parser(allow_abbrev=False)
    add_flags(parser)
    return with_flags(Settings(), parser.parse_args(argv))


def _with(part: str, **fields: object) -> Settings:
    usual = Settings()
    return dataclasses.replace(usual, **{part: dataclasses.replace(getattr(usual, part), **fields)})


def test_every_setting_of_the_gateway_is_declared() -> None:
    usual = Settings()
    parts = {field.name: getattr(usual, field.name) for field in dataclasses.fields(usual)}
    fields = {
        (name, field.name)
        for name, part in parts.items()
        if dataclasses.is_dataclass(part)
        for field in dataclasses.fields(part)
    }
    assert {(each.group.part, each.field) for each in OF_EVERY_SPEC} < fields
    tracing = {("tracing", field.name) for field in dataclasses.fields(Tracing)}
    assert {(each.group.part, each.field) for each in SETTINGS} == (fields - INTERNAL) | tracing


@pytest.mark.parametrize("setting", IN_SPEC, ids=lambda setting: setting.flag)
def test_a_setting_has_a_field_and_a_line_of_the_reference(setting: Setting) -> None:
    *parts, name = _path(setting).split(".")
    schema: Any = object_schema()
    for step in parts:
        schema = schema["properties"][step]
    found = schema["properties"][name]
    assert found["description"] == setting.description.replace("{default}", f"{setting.default}") != ""
    section = REFERENCE.split(f"\n## {'.'.join(parts)}\n")[1].split("\n## ")[0]
    assert f"| {found['description']}" in next(line for line in section.splitlines() if name in line.split(" | ")[0])
    assert ("default" in found) == (setting.crd_default and setting.default is not None)


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.flag)
def test_a_setting_has_a_flag_with_its_help(setting: Setting) -> None:
    parser = argparse.ArgumentParser()
    add_gateway_arguments(parser)
    assert f"{setting.flag} {setting.kind.metavar}" in parser.format_help()
    assert COMMAND_LINE.count(f"| `{setting.flag} {setting.kind.metavar}` | {_escaped(setting.help)}") == 2


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


@pytest.mark.parametrize("setting", OF_EVERY_SPEC, ids=lambda setting: setting.flag)
def test_a_field_sets_one_setting(setting: Setting) -> None:
    value, part = _other_value(setting), setting.group.part
    flags = gateway_flags(_spec(_path(setting), value))
    assert flags == (f"{setting.flag}={','.join(value) if isinstance(value, tuple) else value}",)
    expected = str(value) if isinstance(setting.kind, Size) else value
    assert flags_of(flags) == _with(part, **{setting.field: expected})
    in_cluster = settings_of(create_parser().parse_args([*IN_CLUSTER, *flags]))
    assert getattr(getattr(in_cluster, part), setting.field) == expected


@pytest.mark.parametrize("setting", OF_EVERY_SPEC, ids=lambda setting: setting.flag)
def test_field_and_setting_have_one_default(setting: Setting) -> None:
    spec = parse(changed("spec.routing", {})).spec
    found = reduce(getattr, (*setting.group.spec.split("."), setting.field), spec)
    assert found == getattr(getattr(Settings(), setting.group.part), setting.field) == setting.default


def test_unset_fields_need_no_flag() -> None:
    assert gateway_flags(_spec("spec.routing", {"retries": {"attempts": 3}})) == ()
    assert gateway_flags(_spec("spec.routing.queue.maxBufferedBytes", 256 << 20)) == ()
    assert flags_of(()) == Settings()


def test_zero_stands_for_no_value() -> None:
    flags = ["--slo-ttft-milliseconds=0", "--slo-tpot-milliseconds=50", "--stream-keep-alive-seconds", "0"]
    assert flags_of(flags) == _with("slo", tpot_milliseconds=50)


def test_all_at_once() -> None:
    settings = flags_of(gateway_flags(parse(FULL).spec))
    assert settings.deadlines == Deadlines(1.0, 120.0, 20.0, 240.0, 60.0, 1800.0)
    assert settings.choosing == Choosing(Split.AUTO, Policy.PREFIX_AFFINITY, Policy.SESSION_AFFINITY, 512)
    assert settings.retries == Retries(PrefillFailure.LOCAL, 2, 10, 0)
    assert settings.limits == Limits(0, 0.0, 300, 0, str(3 * 2**29), str(2**25), 16)
    assert (settings.limits.buffered_bytes, settings.limits.max_body_bytes) == (3 * 2**29, 2**25)
    assert settings.health == Health(2, slow_start_seconds=0.0)


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
    for setting in SETTINGS:
        assert f"{setting.flag} {setting.kind.metavar} " in text
    for text_of_default in ("(25)", "(64Mi)", "(Retry)", "(ExpectedWait)", "(1024)"):
        assert text_of_default in text
