"""`pdx sim`: settings from flags and profiles."""

import argparse

import pytest

from pdx_cli.commands.sim import add_arguments, settings_of
from pdx_cli.errors import CommandError
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


def test_a_wrong_protocol_names_its_flag_and_shows_one() -> None:
    with pytest.raises(CommandError) as raised:
        settings("--connector", "Custom", "--protocol", "{")
    sentence = "the protocol of connector Custom is '{'; write JSON, for example"
    assert str(raised.value) == f'--protocol: {sentence} {{"family": "Pull"}}.'
