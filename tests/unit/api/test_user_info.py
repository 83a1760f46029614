"""Passwords of URLs are in no sentence."""

import pytest

from pdx_api.spec.parse import InvalidDeploymentError, parse
from pdx_api.user_info import shown_url, without_user_info


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("http://user:secret@h:1", "http://…@h:1"),
        ("http://secret@h", "http://…@h"),
        ("https://user:sec@ret@h/v1?x", "https://…@h/v1?x"),
        ("http://user:sec/ret@h", "http://…@h"),
        ("redis://:secret@h", "redis://…@h"),
        ("http://user:secret@[::1]:8", "http://…@[::1]:8"),
    ],
)
def test_user_and_password_are_hidden(given: str, shown: str) -> None:
    assert shown_url(given) == shown
    assert without_user_info(f"{given} and '{given}', name@host") == f"{shown} and '{shown}', name@host"


@pytest.mark.parametrize("text", ["a@b.c", "img:1@sha256:0a", "http://h:1/a", "user:x@h", "http://h and a@b", ""])
def test_other_texts_stay(text: str) -> None:
    assert without_user_info(text) == text


def test_what_is_no_url_shows_nothing_before_its_at() -> None:
    assert shown_url("user:sec ret@h") == "…@h"
    assert shown_url("h:1") == "h:1"


def test_an_invalid_object_does_not_quote_a_password() -> None:
    """An operator writes this sentence into the object's status."""
    body = {
        "apiVersion": "pdx.dev/v1alpha1",
        "kind": "PDDeployment",
        "metadata": {"name": "x"},
        "spec": {"model": {"name": "m"}, "observability": {"tracing": {"endpoint": "http://user:s3cret@h:4318"}}},
    }
    with pytest.raises(InvalidDeploymentError, match=r"http://…@h:4318") as caught:
        parse(body)
    assert "s3cret" not in str(caught.value)
