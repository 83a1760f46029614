"""What each worker sends to engines that prefill, in shared memory, so that each worker has the whole backlog.

One ring of records for each worker. Only that worker writes to it, and each other worker reads it when it selects an
engine, so no message is sent and no lock is needed. A reader that the writer has overtaken has lost records: it drops
what it has open of that writer and goes on with the next record.

A record counts when its checksum is right: a reader on another core may see the position before the bytes.
"""

import mmap
import os
from struct import Struct
from typing import Final
from zlib import crc32

from pdx_proxy.payload.prompt_blocks import MAX_BLOCKS, PromptBlocks

RING_BYTES: Final = 1 << 20
"""Memory of one ring: 300 of the longest prompts, or some thousand usual ones."""
_POSITION: Final = Struct("<Q")
"""At the start of a ring: the bytes that were ever written, padding included."""
_CHECKSUM: Final = Struct("<I")
_RECORD: Final = Struct("<IHHiQdqq")
"""Checksum of what follows, kind, number of blocks, slot, number, time, tokens of the prompt, whether it learns."""
_DATA_BYTES: Final = RING_BYTES - _POSITION.size
_BLOCKS: Final = [Struct(f"<{count}Q{count}I") for count in range(MAX_BLOCKS + 1)]
_LONGEST: Final = _RECORD.size + _BLOCKS[MAX_BLOCKS].size
_SENT: Final = 1
_ANSWERED: Final = 2
_DROPPED: Final = 3
_RESET: Final = 4
_NO_SLOT: Final = -1
KEPT: Final = 0
"""The number of a record that is no leg: the engine gets the prompt's KV from another one."""


class SentRecord:
    """A worker has sent a prompt to an engine, or the KV of one."""

    __slots__ = ("at", "learns", "number", "prompt", "slot")

    def __init__(self, number: int, slot: int, prompt: PromptBlocks, at: float, learns: bool) -> None:
        self.number = number
        """Of the leg, unique for its writer; or KEPT."""
        self.slot = slot
        """The endpoint's slot in `LoadTable`, the same in all workers."""
        self.prompt = prompt
        self.at = at
        self.learns = learns


class EndRecord:
    """The engine has prefilled the prompt, or does not work on it any more."""

    __slots__ = ("answered_at", "number")

    def __init__(self, number: int, answered_at: float | None) -> None:
        self.number = number
        self.answered_at = answered_at
        """None: it was dropped."""


Record = SentRecord | EndRecord | None
"""None: all that the writer has open is over. It has ended, or records were lost."""


class _Ring:
    """One ring, at its place in the memory. Records never wrap: the end of the ring stays empty if one does not fit."""

    __slots__ = ("_first", "_memory", "_offset")

    def __init__(self, memory: mmap.mmap, number: int) -> None:
        self._memory = memory
        self._offset = number * RING_BYTES
        self._first = self._offset + _POSITION.size

    def position(self) -> int:
        """Return how many bytes were ever written."""
        return int(_POSITION.unpack_from(self._memory, self._offset)[0])

    def write(self, kind: int, number: int, at: float, slot: int, learns: bool, prompt: PromptBlocks | None) -> None:
        """Append a record. Only for the ring's owner."""
        memory, position = self._memory, _aligned(self.position())
        blocks, tokens = (0, 0) if prompt is None else (len(prompt.hashes), prompt.tokens)
        begin = self._first + position % _DATA_BYTES
        end = begin + _RECORD.size
        _RECORD.pack_into(memory, begin, 0, kind, blocks, slot, number, at, tokens, learns)
        if prompt is not None and blocks:
            _BLOCKS[blocks].pack_into(memory, end, *prompt.hashes, *prompt.ends)
            end += _BLOCKS[blocks].size
        _CHECKSUM.pack_into(memory, begin, crc32(memory[begin + _CHECKSUM.size : end]))
        _POSITION.pack_into(memory, self._offset, position + end - begin)

    def read(self, position: int) -> tuple[int, Record] | None:
        """Return the record at a position, and the position after it; None if its checksum is wrong."""
        memory, position = self._memory, _aligned(position)
        begin = self._first + position % _DATA_BYTES
        checksum, kind, blocks, slot, number, at, tokens, learns = _RECORD.unpack_from(memory, begin)
        if blocks > MAX_BLOCKS:
            return None
        end = begin + _RECORD.size + _BLOCKS[blocks].size
        if checksum != crc32(memory[begin + _CHECKSUM.size : end]):
            return None
        after = position + end - begin
        if kind == _RESET:
            return after, None
        if kind != _SENT:
            return after, EndRecord(number, at if kind == _ANSWERED else None)
        values = _BLOCKS[blocks].unpack_from(memory, begin + _RECORD.size)
        prompt = PromptBlocks(list(values[:blocks]), list(values[blocks:]), tokens)
        return after, SentRecord(number, slot, prompt, at, bool(learns))


def _aligned(position: int) -> int:
    """Return where the next record begins: at the ring's beginning if the longest one would not fit."""
    left = _DATA_BYTES - position % _DATA_BYTES
    return position if left >= _LONGEST else position + left


class SharedLogMemory:
    """The control side's end: owns the memory."""

    def __init__(self, workers: int) -> None:
        self.fd: Final = os.memfd_create("pdx-prefill")
        """The file of the memory, for worker processes (see `SharedLog.over`)."""
        os.ftruncate(self.fd, workers * RING_BYTES)
        self._memory = mmap.mmap(self.fd, workers * RING_BYTES)

    def forget(self, worker: int) -> None:
        """A worker has ended: the others drop what it had open."""
        _Ring(self._memory, worker).write(_RESET, 0, 0.0, _NO_SLOT, False, None)

    def close(self) -> None:
        """Free the memory."""
        self._memory.close()
        os.close(self.fd)


class SharedLog:
    """One worker's end."""

    __slots__ = ("_next", "_others", "_own", "_positions", "workers")

    def __init__(self, memory: mmap.mmap, worker: int, workers: int) -> None:
        rings = [_Ring(memory, number) for number in range(workers)]
        self._own = rings.pop(worker)
        self._others = rings
        self.workers: Final = workers
        self._positions = [ring.position() for ring in rings]
        """What was read of each. A new worker begins with what comes next."""
        self._next = 0

    @classmethod
    def over(cls, fd: int, worker: int, workers: int) -> "SharedLog":
        """Map the file for worker number `worker`, and close the file."""
        memory = mmap.mmap(fd, 0)
        os.close(fd)
        return cls(memory, worker, workers)

    def sent(self, slot: int, prompt: PromptBlocks, at: float, learns: bool) -> int:
        """Write that a prompt was sent; return the leg's number."""
        self._next += 1
        self._own.write(_SENT, self._next, at, slot, learns, prompt)
        return self._next

    def keeps(self, slot: int, prompt: PromptBlocks, at: float) -> None:
        """Write that an engine gets the KV of a prompt."""
        self._own.write(_SENT, KEPT, at, slot, False, prompt)

    def ended(self, number: int, answered_at: float | None) -> None:
        """Write that a leg has ended: answered at this time, or dropped."""
        if answered_at is None:
            self._own.write(_DROPPED, number, 0.0, _NO_SLOT, False, None)
        else:
            self._own.write(_ANSWERED, number, answered_at, _NO_SLOT, False, None)

    def read(self) -> list[tuple[int, Record]]:
        """Return what the others have written since the last call, each record with the number of its writer."""
        found: list[tuple[int, Record]] = []
        for number, ring in enumerate(self._others):
            written = ring.position()
            if written != self._positions[number]:
                self._read_ring(number, ring, written, found)
        return found

    def _read_ring(self, number: int, ring: _Ring, written: int, found: list[tuple[int, Record]]) -> None:
        position = self._positions[number]
        while position < written:
            result = ring.read(position)
            if ring.position() - position > _DATA_BYTES - _LONGEST:  # it has been overwritten, or is just now
                found.append((number, None))
                position = ring.position()
                break
            if result is None:
                break
            position, record = result
            found.append((number, record))
        self._positions[number] = position
