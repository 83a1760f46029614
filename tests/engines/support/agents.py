"""Coding agents: one conversation with each client, all of it sent in every round. `make soak` has thirty rounds."""

import asyncio
from pathlib import Path
from typing import Any, Final

import anthropic
import openai
import pytest

from tests import sdk_suite
from tests.engines.conftest import Pair
from tests.engines.support.harness import MODEL, Gateway, eventually, make_prompt

ROUNDS: Final = [8, pytest.param(30, marks=pytest.mark.soak)]
MORE_TOKENS: Final = 64
"""The least tokens by which each prompt is longer than the one before."""
RESULT_LENGTH: Final = 72
ANSWER_TOKENS: Final = 12
SCHEMA: Final[dict[str, Any]] = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
SYSTEM: Final = make_prompt(7_000_000, 40)


class Agents:
    """The conversations; a wiring's module inherits them and brings its `front` and `pair`."""

    @pytest.mark.parametrize("rounds", ROUNDS)
    async def test_rounds_of_anthropics_client(self, rounds: int, front: Gateway, pair: Pair) -> None:
        messages: list[Any] = [{"role": "user", "content": make_prompt(7_100_000 + front.number, RESULT_LENGTH)}]
        requested: dict[str, Any] = {
            "model": MODEL,
            "max_tokens": ANSWER_TOKENS,
            "extra_body": {"temperature": 0},
            "messages": messages,
            "tools": [{"name": "read_file", "input_schema": SCHEMA}],
            "system": [{"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}}],
        }
        async with _anthropic(front.url) as client, _anthropic(pair.prefill.url) as direct:
            for number in range(rounds):
                counted = _Counted(pair, number)
                text = await (_streamed_message if number % 2 else _message)(client, requested)
                own = await direct.messages.create(**requested)
                assert text == _text_of(own)
                prompt = {name: requested[name] for name in ("model", "messages", "tools", "system")}
                await counted.check((await direct.messages.count_tokens(**prompt)).input_tokens)
                call = {"type": "tool_use", "id": f"t{number}", "name": "read_file", "input": {"path": f"{number}.py"}}
                texts = [{"type": "text", "text": text}] if text else []
                result = {"type": "tool_result", "tool_use_id": f"t{number}", "content": _result(front, number)}
                messages += [{"role": "assistant", "content": [*texts, call]}, {"role": "user", "content": [result]}]

    @pytest.mark.parametrize("rounds", ROUNDS)
    async def test_rounds_of_openais_responses(self, rounds: int, front: Gateway, pair: Pair) -> None:
        items: list[Any] = [{"role": "user", "content": make_prompt(7_200_000 + front.number, RESULT_LENGTH)}]
        requested: dict[str, Any] = {
            "model": MODEL,
            "max_output_tokens": ANSWER_TOKENS,
            "temperature": 0,
            "input": items,
            "store": False,
            "tools": [{"type": "function", "name": "read_file", "parameters": SCHEMA, "strict": False}],
            "instructions": SYSTEM,
        }
        async with _openai(front.url) as client, _openai(pair.prefill.url) as direct:
            for number in range(rounds):
                counted = _Counted(pair, number)
                answer = await (_streamed_response if number % 2 else _response)(client, requested)
                own = await direct.responses.create(**requested)
                assert answer.output_text == own.output_text
                assert own.usage is not None
                await counted.check(own.usage.input_tokens)
                call = {"type": "function_call", "call_id": f"t{number}", "name": "read_file", "arguments": "{}"}
                result = {"type": "function_call_output", "call_id": f"t{number}", "output": _result(front, number)}
                items += [*(item.model_dump(exclude_none=True) for item in answer.output), call, result]

    @pytest.mark.soak
    async def test_what_anthropics_own_tests_find(self, front: Gateway, pair: Pair, tmp_path: Path) -> None:
        await check_anthropics_own_tests(front, pair, tmp_path, sdk_suite.ALL)


async def check_anthropics_own_tests(front: Gateway, pair: Pair, folder: Path, which: str) -> None:
    """Each test of the SDK that passes against the decode engine passes through the gateway."""
    suite = sdk_suite.unpacked(folder)
    direct = await asyncio.to_thread(sdk_suite.outcomes, suite, pair.decode.url, MODEL, which)
    through = await asyncio.to_thread(sdk_suite.outcomes, suite, front.url, MODEL, which)
    assert list(direct.values()).count("passed") > len(direct) / 4
    found = sdk_suite.lost(direct, through)
    assert not found, "\n".join(found)


class _Counted:
    """The tokens that D receives in one round."""

    longest = 0
    """Of the turns so far."""

    def __init__(self, pair: Pair, number: int) -> None:
        if number == 0:
            _Counted.longest = 0
        self._pair = pair
        self._before = pair.decode.external_tokens

    async def check(self, tokens: int) -> None:
        """The prompt is longer than that of the last round, and D has received what is new."""
        more = tokens - _Counted.longest
        _Counted.longest = tokens
        assert more >= MORE_TOKENS
        await eventually(self._has_received, 5, f"D received less than {MORE_TOKENS} of {more} new tokens")

    def _has_received(self) -> bool:
        return self._pair.decode.external_tokens - self._before >= MORE_TOKENS


def _anthropic(url: str) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0)


def _openai(url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def _result(front: Gateway, number: int) -> str:
    """What the script answers for the tool: another text in every round and wiring."""
    return make_prompt(7_300_000 + 100 * (front.number % 1000) + number, RESULT_LENGTH)


def _text_of(message: Any) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


async def _message(client: anthropic.AsyncAnthropic, requested: dict[str, Any]) -> str:
    raw = await client.messages.with_raw_response.create(**requested)
    assert "x-pdx-prefill" in raw.headers
    return _text_of(await raw.parse())


async def _streamed_message(client: anthropic.AsyncAnthropic, requested: dict[str, Any]) -> str:
    async with client.messages.stream(**requested) as stream:
        assert "x-pdx-prefill" in stream.response.headers
        return _text_of(await stream.get_final_message())


async def _response(client: openai.AsyncOpenAI, requested: dict[str, Any]) -> Any:
    raw = await client.responses.with_raw_response.create(**requested)
    assert "x-pdx-prefill" in raw.headers
    return raw.parse()


async def _streamed_response(client: openai.AsyncOpenAI, requested: dict[str, Any]) -> Any:
    stream = await client.responses.create(**requested, stream=True)
    assert "x-pdx-prefill" in stream.response.headers
    events = [event async for event in stream]
    assert events[-1].type == "response.completed"
    return events[-1].response
