"""What kopf's connection gives to kopf, and when the operator may begin a reconcile."""

import asyncio
from collections.abc import AsyncIterator

from pdx_operator.app.kopf_session import Bodies


async def test_it_has_caught_up_while_it_waits_for_the_watch() -> None:
    bodies, sent = Bodies(), asyncio.Queue[bytes]()
    seen: list[bytes] = []
    resume = asyncio.Event()

    async def chunks() -> AsyncIterator[bytes]:
        while True:
            yield await sent.get()

    async def consume() -> None:
        async for chunk in bodies.read(chunks()):
            seen.append(chunk)
            await resume.wait()

    task = asyncio.create_task(consume())
    assert bodies.caught_up.is_set()
    for chunk in (b"one", b"two"):
        sent.put_nowait(chunk)
    await asyncio.sleep(0)
    assert (seen, bodies.caught_up.is_set()) == ([b"one"], False)
    resume.set()
    await asyncio.wait_for(bodies.caught_up.wait(), 1)
    assert seen == [b"one", b"two"]
    sent.put_nowait(b"three")
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])


async def test_a_watch_that_ends_amid_a_chunk_keeps_nobody_waiting() -> None:
    bodies = Bodies()

    async def chunks() -> AsyncIterator[bytes]:
        yield b"one"

    reading = bodies.read(chunks())
    await anext(reading)
    assert not bodies.caught_up.is_set()
    await reading.aclose()  # type: ignore[attr-defined]
    assert bodies.caught_up.is_set()
