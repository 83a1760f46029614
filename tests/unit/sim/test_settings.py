"""The settings' bounds."""

import dataclasses
import math

import pytest

from pdx_sim import SimSettings
from pdx_sim.settings import BOUNDS, OutOfBoundsError


def test_settings_that_cannot_run_are_refused() -> None:
    with pytest.raises(ValueError, match="write one of: NIXL, "):
        SimSettings(connector="Pigeon")
    with pytest.raises(ValueError, match="max_model_len"):
        SimSettings(num_blocks=1)


@pytest.mark.parametrize(
    ("field", "value", "possible"),
    [
        *((name, 0, "1 or more") for name in ("prefill_chunk", "prefill_slots", "max_running", "max_model_len")),
        ("block_size", 0, "1 or more"),
        *(("num_blocks", value, "a number from 1 to 2147483647") for value in (0, 2**31)),
        *((name, -1, "0 or more") for name in ("answer_tokens", "record", "transfer_seconds", "shutdown_seconds")),
        *((name, math.nan, "a finite number, 0 or more") for name in ("prefill_base_seconds", "decode_token_seconds")),
        ("prefill_token_seconds", math.inf, "a finite number, 0 or more"),
        ("prefill_token_seconds", -math.inf, "0 or more"),
        ("max_running", 10**400, "a finite number, 1 or more"),
        ("lease_seconds", 0.0, "0.001 or more"),
        *(("jitter", value, "a number from 0 to 1") for value in (5.0, -0.1, math.nan)),
        *((name, value, "a number from 0 to 65535") for name in ("port", "side_channel_port") for value in (-1, 65536)),
    ],
)
def test_an_error_names_the_field_out_of_bounds(field: str, value: float, possible: str) -> None:
    with pytest.raises(OutOfBoundsError) as refused:
        SimSettings(**{field: value})  # type: ignore[arg-type]
    assert str(refused.value) == f"{field} is {value}; write {possible}"


def test_every_number_has_bounds() -> None:
    numbers = {f.name for f in dataclasses.fields(SimSettings) if type(f.default) in (int, float)}
    assert numbers - {"seed"} == set(BOUNDS)


def test_api_and_side_channel_need_two_addresses() -> None:
    with pytest.raises(ValueError, match=r"both on 127\.0\.0\.1:8000; name two addresses"):
        SimSettings(kv_both=True, port=8000, side_channel_port=8000)
    assert SimSettings(port=8000, side_channel_port=8000).port == 8000, "an engine without a connector has no channel"
    assert SimSettings(kv_both=True).port == 0
