"""`pdx sim`: settings from flags and profiles."""

import argparse
from pathlib import Path

import pytest

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
        ("{", """'{' is not JSON; write for example {"family": "Pull"}."""),
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


@pytest.mark.parametrize("family", ["Pull", "Pool", "Serial"])
def test_a_protocol_of_every_family(family: str, tmp_path: Path) -> None:
    protocol = f'{{"family": "{family}", "savedAfterSeconds": 0.5}}'
    found = settings("--connector", "Custom", "--protocol", protocol, "--storage", str(tmp_path))
    assert found.protocol == protocol


def test_a_connector_with_its_own_protocol_takes_none() -> None:
    with pytest.raises(InputError) as raised:
        settings("--protocol", '{"family": "Pull"}')
    instead = "leave out --protocol, or write --connector Custom"
    assert str(raised.value) == f"--protocol: connector NIXL has its own protocol; {instead}."
