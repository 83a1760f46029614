"""Whatever form a secret has, and wherever it stands: a support bundle does not contain it."""

from random import Random
from typing import Final

import pytest

from pdx_cli.checks.findings import Finding, Severity
from pdx_cli.support.bundle import files_of
from tests.unit.cli.support.generated_secrets import (
    ALPHABETS,
    FORMS,
    FRAMES,
    leaks,
    observation_with,
    secret,
    text_with,
    tokens,
)

_TOKENS: Final = tuple(tokens(Random(1)))


def _bundle(text: str) -> dict[str, str]:
    findings = [Finding(Severity.WRONG, "Cause", text, text)]
    return files_of(observation_with(text), findings, text, {"note": text})


def test_there_are_many_forms() -> None:
    assert len(FORMS) + len(_TOKENS) > 150


def test_the_text_is_in_every_file() -> None:
    """Otherwise the other tests show nothing."""
    files = _bundle("harmless-text")
    assert [name for name, page in files.items() if "harmless-text" not in page] == ["README.txt"]
    cluster = files["cluster.json"]
    assert cluster.count("harmless-text") > 30


@pytest.mark.parametrize("form", FORMS)
def test_no_form_of_a_secret_is_in_a_bundle(form: str) -> None:
    numbers = Random(form)
    for alphabet in numbers.sample(sorted(ALPHABETS), 2):
        value = secret(numbers, alphabet)
        text = numbers.choice(FRAMES).replace("TEXT", text_with(form, value))
        assert leaks(_bundle(text), value) == [], text


@pytest.mark.parametrize(("token", "random"), _TOKENS)
def test_no_token_of_a_service_is_in_a_bundle(token: str, random: str) -> None:
    text = Random(token).choice(FRAMES).replace("TEXT", token)
    assert leaks(_bundle(text), random) == [], text
