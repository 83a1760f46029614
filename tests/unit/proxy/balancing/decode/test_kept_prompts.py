"""What D's keep of prompts, and that a conversation stays where its KV is."""

from pdx_api.names import Role
from pdx_proxy.balancing.decode.itl import Line
from pdx_proxy.balancing.decode.kept_prompts import KeptPrompts
from pdx_proxy.balancing.decode.view import DecodeView, least_itl
from pdx_proxy.balancing.prefill.backlog import Computed, PrefillEngine
from pdx_proxy.config.settings import Address, EndpointSpec
from pdx_proxy.endpoints.endpoint import Endpoint
from pdx_proxy.payload.prompt_blocks import PromptBlocks

D1, D2, D3 = (Endpoint(EndpointSpec(Address("127.0.0.1", port), Role.DECODE)) for port in (1, 2, 3))
PROMPT = PromptBlocks([1, 2], [5_000, 10_000], 10_000)


def engines(*kept: PromptBlocks | None) -> list[PrefillEngine]:
    found = []
    for prompt in kept:
        engine = PrefillEngine(Computed())
        if prompt is not None:
            engine.cache.touch(prompt)
        found.append(engine)
    return found


def test_what_an_engine_has_not_is_measured_in_prompts_of_usual_length() -> None:
    prompts = KeptPrompts()
    half = PromptBlocks([1], [5_000], 5_000)
    assert prompts.missing(engines(PROMPT, None), PROMPT) is None, "no usual length yet"
    for tokens in (10_000, 30_000):
        prompts.add(tokens)
    assert prompts.missing(engines(None, PROMPT, half), PROMPT) == [0.5, 0.0, 0.25]
    assert prompts.missing(engines(None, None), PROMPT) is None
    assert prompts.missing(engines(PROMPT, PROMPT), PROMPT) is None


def test_short_prompts_count_less_and_few_tokens_nothing() -> None:
    prompts = KeptPrompts()
    short = PromptBlocks([1], [2048], 2048)
    for _ in range(3):
        prompts.add(2048)
    assert prompts.missing(engines(short, None), short) == [0.0, 2048 / 8192]
    few = PromptBlocks([1], [2000], 2000)
    assert prompts.missing(engines(few, None), few) is None


def test_a_conversation_stays_at_its_d_unless_that_has_many_more_requests() -> None:
    legs = {D1.name: 40.0, D2.name: 0.0, D3.name: 0.0}

    def chosen(missing: list[float] | None, cursor: int = 0) -> Endpoint:
        return least_itl((D1, D2, D3), lambda e: legs[e.name], cursor, {}, 0.0, missing)

    assert chosen([0.0, 1.0, 1.0]) is D1
    legs[D1.name] = 70.0
    assert chosen([0.0, 1.0, 1.0]) is D2
    assert chosen(None, 1) is D3


def test_a_d_without_room_gives_up_what_another_has_nearly_whole() -> None:
    line = Line(0.02, 0.0001)
    free = DecodeView(line, line, kv_size=100_000.0)
    full = DecodeView(line, line, kv_size=100_000.0, kv_used=99_000.0, kv_each=1000.0)
    scarce = DecodeView(line, line, kv_size=100_000.0, kv_used=90_000.0, kv_each=1000.0)

    def chosen(kept: DecodeView, missing: float) -> Endpoint:
        return least_itl((D1, D2), lambda _: 0.0, 0, {D1.name: kept, D2.name: free}, 1000.0, [0.0, missing])

    assert (chosen(scarce, 1.0), chosen(full, 1.0)) == (D1, D1)
    assert (chosen(scarce, 0.05), chosen(full, 0.05)) == (D1, D2)
