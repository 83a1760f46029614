"""`pdx sim`: settings from flags and profiles."""

import argparse
from pathlib import Path

import pytest

from pdx_api.connectors.custom import Custom, FamilyName
from pdx_cli.commands.sim import add_arguments, settings_of
from pdx_cli.errors import InputError
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


@pytest.mark.parametrize("flag", ["--model", "--api-key", "--storage"])
def test_a_text_is_a_setting(flag: str) -> None:
    """An empty one is refused: see refusals.txt, also for other values that are."""
    assert settings(flag, "x") != settings()


def test_the_prefix_cache_is_off_unless_its_flag_is_given() -> None:
    assert not settings().enable_prefix_caching
    assert settings("--enable-prefix-caching", "--step-seconds", "0.01").enable_prefix_caching
    assert settings("--enable-prefix-caching", "--profile", next(iter(PROFILES))).enable_prefix_caching


@pytest.mark.parametrize("role", ["decode", "both"])
def test_a_pool_has_the_directory_of_its_flag(role: str, tmp_path: Path) -> None:
    assert settings("--role", role, "--connector", "LMCache", "--storage", str(tmp_path)).storage == str(tmp_path)
    assert settings("--role", "aggregated", "--connector", "LMCache").storage == ""


def test_a_time_that_is_no_float_is_refused() -> None:
    """The other protocols that are refused are in refusals.txt."""
    with pytest.raises(InputError, match="savedAfterMilliseconds does not exist; write savedAfterSeconds, in seconds"):
        settings("--connector", "Custom", "--protocol", f'{{"family": "Pool", "savedAfterMilliseconds": {10**400}}}')


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
