"""`pdx sim`: settings from flags and profiles."""

import argparse
from pathlib import Path

import pytest

from pdx_api.connectors.custom import Custom, FamilyName
from pdx_cli.commands.sim import add_arguments, settings_of
from pdx_cli.errors import CommandError, InputError
from pdx_sim import PROFILES, SimSettings


def settings(*flags: str) -> SimSettings:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return settings_of(parser.parse_args(["--role", "decode", *flags]))


def test_without_flags_the_defaults_hold() -> None:
    assert (settings().step_seconds, settings().max_running) == (0.0, 256)


@pytest.mark.parametrize("name", PROFILES)
def test_a_flag_overrides_a_profile(name: str) -> None:
    found = settings("--profile", name, "--max-running", "7")
    assert found.max_running == 7
    assert found.step_token_seconds == PROFILES[name].settings["step_token_seconds"]


@pytest.mark.parametrize("name", PROFILES)
def test_the_help_names_the_source_of_a_profile(name: str) -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    assert PROFILES[name].source in str(parser.epilog)
    assert PROFILES[name].derivation in str(parser.epilog)


def test_the_help_names_the_defaults() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    helps = {action.dest: str(action.help) for action in parser._actions}
    assert helps["api_key"].endswith(" (default: none)")
    assert helps["seed"].endswith(" (default: 0)")
    assert helps["step_seconds"].endswith(" (default: 0.0, or that of --profile)")


def test_a_value_out_of_bounds_names_its_flag() -> None:
    with pytest.raises(CommandError, match="--max-num-batched-tokens is 0; write 1 or more"):
        settings("--max-num-batched-tokens", "0")


@pytest.mark.parametrize(
    ("flag", "instead"),
    [
        ("--model", "write for example sim"),
        ("--api-key", "write a key, or leave out --api-key"),
        ("--storage", "name a directory"),
    ],
)
def test_an_empty_text_is_refused(flag: str, instead: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        settings(flag, "")
    assert capsys.readouterr().err.endswith(f"argument {flag}: the value is empty; {instead}\n")
    assert settings(flag, "x") != settings()


@pytest.mark.parametrize("flag", ["--listen", "--side-channel"])
def test_an_address_is_no_url(flag: str) -> None:
    with pytest.raises(InputError) as raised:
        settings(flag, "http://127.0.0.1:80")
    assert str(raised.value) == f"{flag} http://127.0.0.1:80 is a URL; write HOST:PORT, for example 127.0.0.1:8000."


def test_the_prefix_cache_is_off_unless_its_flag_is_given() -> None:
    assert not settings().enable_prefix_caching
    assert settings("--enable-prefix-caching", "--step-seconds", "0.01").enable_prefix_caching
    assert settings("--enable-prefix-caching", "--profile", next(iter(PROFILES))).enable_prefix_caching


def test_the_prefix_cache_needs_steps() -> None:
    with pytest.raises(CommandError, match="--enable-prefix-caching needs steps; add --step-seconds or --profile"):
        settings("--enable-prefix-caching")


@pytest.mark.parametrize("role", ["decode", "both"])
def test_a_pool_needs_the_directory_of_its_flag(role: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as raised:
        settings("--role", role, "--connector", "LMCache")
    assert str(raised.value) == "Connector LMCache needs a directory that the engines share; add --storage DIR."
    assert settings("--role", role, "--connector", "LMCache", "--storage", str(tmp_path)).storage == str(tmp_path)
    assert settings("--role", "aggregated", "--connector", "LMCache").storage == ""


KEYS = "family, prefillParams, savedAfterSeconds"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", """'{' is not JSON at character 2: the end is missing; write for example {"family": "Pull"}."""),
        (
            '{"family":"Pull",}',
            """'{"family":"Pull",}' is not JSON at character 18: a key in double quotes is missing; """
            """write for example {"family": "Pull"}.""",
        ),
        ("?", """'?' is not JSON at character 1: a value is missing; write for example {"family": "Pull"}."""),
        (
            '{"family": "Pull\\q"}',
            """'{"family": "Pull\\\\q"}' is not JSON at character 17; write for example {"family": "Pull"}.""",
        ),
        *(
            (
                f'{{"family": "Pull", "prefillParams": {{"x": [{name}]}}}}',
                f"{name} is not JSON; write a number, or null.",
            )
            for name in ("NaN", "Infinity", "-Infinity")
        ),
        (
            '{"family": "Pull", "prefillParams": {"x": -1e999}}',
            "-1e999 is too large; write a smaller number, or null.",
        ),
        ("[1]", """[1] is not an object of JSON; write for example {"family": "Pull"}."""),
        ('{"family": "Pull", "family": "Pool"}', "the key family appears twice; write it once."),
        ('{"family": "Pull", "prefillParams": {"a": 1, "a": 1}}', "the key a appears twice; write it once."),
        ("{}", "family is missing; write one of: Pull, Pool."),
        ('{"family": "Pul"}', "family is 'Pul'; write one of: Pull, Pool; did you mean Pull?"),
        ('{"family": "X"}', "family is 'X'; write one of: Pull, Pool."),
        ('{"family": ["Pull"]}', "family is ['Pull']; write one of: Pull, Pool."),
        ('{"family": "Pull", "prefillParam": {}}', "prefillParam does not exist; did you mean prefillParams?"),
        ('{"family": "Pull", "x": 1}', f"x does not exist; write one of: {KEYS}."),
        (
            '{"family": "Pool", "savedAfterMilliseconds": 50}',
            "savedAfterMilliseconds does not exist; write savedAfterSeconds, in seconds: 0.05.",
        ),
        *(
            (
                f'{{"family": "Pool", "savedAfterMilliseconds": {value}}}',
                "savedAfterMilliseconds does not exist; write savedAfterSeconds, in seconds.",
            )
            for value in ('"50"', "true", 10**400)
        ),
        (
            '{"family": "Pool", "prefillParams": {"a": 1}}',
            "in a pool no leg carries parameters; leave out prefillParams, or write family Pull.",
        ),
        (
            '{"family": "Pull", "savedAfterSeconds": 0.5}',
            "only a pool saves KV after P's answer; leave out savedAfterSeconds, or write family Pool.",
        ),
        *(
            (
                f'{{"family": "Pool", "savedAfterSeconds": {seconds}}}',
                f"savedAfterSeconds is {seconds}; write seconds from 0 to 60.",
            )
            for seconds in (-1, 61)
        ),
        (
            '{"family": "Pull", "prefillParams": 1}',
            """prefillParams is 1; write an object, for example {"do_remote_decode": true}.""",
        ),
        (
            '{"family": "Pool", "savedAfterSeconds": "1 s"}',
            "savedAfterSeconds is '1 s'; write seconds, for example 0.5.",
        ),
    ],
)
def test_a_wrong_protocol_names_its_flag_and_what_to_write(text: str, sentence: str) -> None:
    with pytest.raises(InputError) as raised:
        settings("--connector", "Custom", "--protocol", text)
    assert (str(raised.value), raised.value.details) == (f"--protocol: {sentence}", ())


def test_every_error_of_a_protocol_is_named() -> None:
    with pytest.raises(InputError, match=r"--protocol has 2 errors:") as raised:
        settings("--connector", "Custom", "--protocol", '{"famili": "Pull"}')
    assert raised.value.details == (
        "--protocol: famili does not exist; did you mean family?",
        "--protocol: family is missing; write one of: Pull, Pool.",
    )


@pytest.mark.parametrize(
    "protocol",
    [
        '{"family": "Pull", "prefillParams": {"x": 1e9}, "savedAfterSeconds": 0}',
        '{"family": "Pool", "savedAfterSeconds": 60}',
        *(Custom(family_name=family).protocol for family in FamilyName),
        Custom(family_name=FamilyName.POOL, saved_after=0.5).protocol,
    ],
)
def test_a_protocol_of_every_family(protocol: str, tmp_path: Path) -> None:
    """Also those that `pdx up` writes, with the fields of the other family."""
    found = settings("--connector", "Custom", "--protocol", protocol, "--storage", str(tmp_path))
    assert found.protocol == protocol


def test_connector_custom_needs_a_protocol() -> None:
    with pytest.raises(InputError) as raised:
        settings("--connector", "Custom")
    assert str(raised.value) == """--connector Custom needs a protocol; add --protocol '{"family": "Pull"}'."""


def test_a_connector_with_its_own_protocol_takes_none() -> None:
    with pytest.raises(InputError) as raised:
        settings("--protocol", '{"family": "Pull"}')
    instead = "leave out --protocol, or write --connector Custom"
    assert str(raised.value) == f"--protocol: connector NIXL has its own protocol; {instead}."
