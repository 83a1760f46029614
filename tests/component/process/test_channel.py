"""The channel to a worker that does not read."""

import asyncio
import socket

from pdx_proxy.process.channel import Channel, ReportRequest, encode


async def pair() -> tuple[Channel, Channel]:
    ours, theirs = socket.socketpair()
    return await Channel.over(ours), await Channel.over(theirs)


async def test_the_latest_wins_while_nothing_is_read() -> None:
    """10,000 snapshots of 64 KiB are published; few of them are buffered, and the last one arrives."""
    control, worker = await pair()
    worker._transport.pause_reading()  # as a process that is stopped
    made: list[int] = []

    def frame(number: int) -> bytes:
        made.append(number)
        return encode((number, bytes(65536)))

    for number in range(10_000):
        control.send_latest("snapshot", lambda number=number: frame(number))  # type: ignore[misc]
        if number % 100 == 0:
            await asyncio.sleep(0)
    assert len(made) < 50
    assert control._transport.get_write_buffer_size() < 1 << 20
    worker._transport.resume_reading()
    received: list[int] = []
    while received[-1:] != [9_999]:
        message = await worker.receive()
        assert isinstance(message, tuple)
        received.append(message[0])
    assert received == made
    assert received == sorted(received)
    for end in (control, worker):
        end.close()


async def test_kinds_do_not_replace_each_other() -> None:
    control, worker = await pair()
    worker._transport.pause_reading()
    control.send(encode(bytes(4 << 20)))
    for number in range(3):
        control.send_latest("snapshot", lambda number=number: encode(("snapshot", number)))  # type: ignore[misc]
        control.send_latest("load", lambda number=number: encode(("load", number)))  # type: ignore[misc]
    worker._transport.resume_reading()
    assert len(await worker.receive() or b"") == 4 << 20  # type: ignore[arg-type]
    assert [await worker.receive() for _ in range(2)] == [("snapshot", 2), ("load", 2)]
    for end in (control, worker):
        end.close()


async def test_an_end_that_sends_nothing_more_still_receives() -> None:
    control, worker = await pair()
    control.send(encode(ReportRequest()))
    control.end()
    assert isinstance(await worker.receive(), ReportRequest)
    assert await worker.receive() is None
    worker.send(encode("the last report"))
    worker.close()
    assert await control.receive() == "the last report"
    assert await control.receive() is None
    control.close()
