"""One tenant's many objects delay those of another by one turn at most."""

import asyncio
from collections.abc import Callable

import pytest

from pdx_operator.controller.credit import CREDIT_SECONDS, Credit
from pdx_operator.controller.fair_slots import FairSlots


class _Work:
    """Reconciles that end when the test says so."""

    def __init__(self, slots: int, share: float = 1.0, work: float = 1.0) -> None:
        self.now = 0.0
        credit = Credit(lambda: self.now, share)
        self.slots = FairSlots(slots, credit, lambda: self.now)
        self._large_slots = FairSlots(1, credit, lambda: self.now, work)
        self.begun: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def begin(self, namespace: str, *names: str, large: bool = False) -> None:
        for name in names:
            self._ends[name] = asyncio.Event()
            self.tasks[name] = asyncio.create_task(self._run(namespace, name, large))
        await _settle()

    async def end(self, name: str) -> None:
        self._ends[name].set()
        await _settle()

    async def _run(self, namespace: str, name: str, large: bool) -> None:
        async with (self._large_slots if large else self.slots).slot(namespace):
            self.begun.append(name)
            await self._ends[name].wait()


async def _settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.parametrize("slots", [1, 2, 4, 16])
async def test_a_namespace_waits_for_one_turn_of_another(slots: int) -> None:
    work = _Work(slots)
    await work.begin("a", *(f"a{number}" for number in range(100)))
    held = len(work.begun)
    assert held == max(1, slots // 8)
    await work.begin("b", "b0", "b1")
    if "b0" not in work.begun:
        await work.end(work.begun[0])
    assert "b0" in work.begun


async def test_a_namespace_holds_few_slots_while_another_one_is_active() -> None:
    work = _Work(16)
    await work.begin("a", *(f"a{number}" for number in range(20)))
    assert len(work.begun) == 2
    await work.begin("b", "b0")
    await work.end("b0")
    await work.end("a0")
    assert work.begun == ["a0", "a1", "b0"], "one is left, and no other begins"
    work.now = 1.9
    await work.end("a1")
    assert work.begun[3:] == ["a2"]
    work.now = 2.0
    await work.end("a2")
    assert work.begun[4:] == ["a3", "a4"]


async def _used_up(share: float) -> _Work:
    """A namespace which has held slots for 19 s more than its share, of which 6 s count, and holds two."""
    work = _Work(16, share)
    await work.begin("a", "a0")
    await work.begin("a", "a1", "a2", "a3")
    work.now = 10.0
    await work.end("a0")
    await work.end("a1")
    return work


async def test_a_namespace_without_credit_gets_its_share_beside_another_one() -> None:
    work = await _used_up(0.1)
    assert work.begun == ["a0", "a1", "a2", "a3"], "alone, it goes on"
    await work.begin("a", "a4")
    await work.begin("b", "b0")
    await work.end("a2")
    await work.end("a3")
    assert work.begun[4:] == ["b0"]
    work.now += (6.0 - CREDIT_SECONDS) / 0.1 - 0.1
    await asyncio.sleep(0.15)
    assert work.begun[5:] == []
    work.now += 0.2
    await asyncio.sleep(0.15)
    assert work.begun[5:] == ["a4"], "its share has become free"


async def test_a_namespace_that_was_busy_for_long_waits_ten_seconds_at_most() -> None:
    """It was alone for a minute, with a reconcile of 0.1 s after another. Then a modest one has one every second."""
    work = _Work(16, 0.1)
    for number in range(600):
        await work.begin("a", f"a{number}")
        work.now += 0.1
        await work.end(f"a{number}")
    began = work.now
    await work.begin("b", "b")
    await work.begin("a", "late")
    while "late" not in work.begun:
        await work.end("b" if work.now == began else f"b{work.now}")
        work.now += 1.0
        await work.begin("b", f"b{work.now}")
    assert 5.0 < work.now - began <= 11.0


async def test_a_namespace_without_credit_goes_on_when_the_others_rest() -> None:
    work = await _used_up(0.1)
    await work.begin("a", "a4")
    await work.begin("b", "b0")
    await work.end("a2")
    await work.end("a3")
    await work.end("b0")
    assert "a4" not in work.begun
    work.now += 2.1
    await asyncio.sleep(0.15)
    assert "a4" in work.begun


async def test_large_objects_cost_credit_and_wait_for_it() -> None:
    """With the operator's numbers: 3 of 10 s in their slot count, and the share is 0.1."""
    work = _Work(16, 0.1, 0.3)
    for number in range(3):
        await work.begin("a", f"large-{number}", large=True)
        work.now += 10.0
        await work.end(f"large-{number}")
    assert work.begun == ["large-0", "large-1", "large-2"]
    await work.begin("b", "b0")
    await work.begin("a", "small")
    await work.begin("a", "large-3", large=True)
    assert work.begun[3:] == ["b0"]
    await work.begin("b", "large-b", large=True)
    assert work.begun[4:] == ["large-b"]
    await work.end("b0")
    await work.end("large-b")
    work.now += 2.1
    await asyncio.sleep(0.15)
    assert sorted(work.begun[5:]) == ["large-3", "small"]


async def test_work_that_began_before_does_not_renew_the_wait() -> None:
    """Two small ones and a large one end one after another, each after 9 s."""
    work = _Work(16, 0.1)
    await work.begin("a", "a0")
    await work.begin("a", "a1", "late")
    await work.begin("a", "large", large=True)
    work.now = 20.0
    await work.begin("b", "b0")
    await work.end("a0")
    for name in ("a1", "large"):
        work.now += 9.0
        await asyncio.sleep(0.15)
        await work.end(name)
    assert work.begun[4:] == [], "it has waited for credit for no more than 9 s"
    work.now += 1.1
    await asyncio.sleep(0.15)
    assert work.begun[4:] == ["late"]


async def test_a_failed_reconcile_gives_its_slot_back() -> None:
    work = _Work(1)

    async def fail() -> None:
        async with work.slots.slot("a"):
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        await fail()
    await work.begin("b", "b0")
    assert work.begun == ["b0"]


async def test_no_slot_is_idle_while_all_namespaces_are_without_credit() -> None:
    work = _Work(16, 0.01)
    await work.begin("a", "a0")
    await work.begin("b", "b0")
    work.now = 10.0
    await work.end("a0")
    await work.end("b0")
    await work.begin("a", "a1")
    await work.begin("b", "b1")
    assert work.begun[2:] == ["a1", "b1"]


async def test_waiting_namespaces_take_turns() -> None:
    work = _Work(1)
    await work.begin("a", "a0", "a1", "a2")
    await work.begin("b", "b0", "b1")
    await work.begin("c", "c0")
    for _ in range(6):
        await work.end(work.begun[-1])
    assert work.begun == ["a0", "b0", "c0", "a1", "b1", "a2"]


def _waiting(work: _Work) -> asyncio.Task[None]:
    return work.tasks["a1"]


def _holding(work: _Work) -> asyncio.Task[None]:
    return work.tasks["a0"]


@pytest.mark.parametrize("which", [_waiting, _holding])
async def test_who_is_cancelled_takes_no_slot(which: Callable[[_Work], asyncio.Task[None]]) -> None:
    work = _Work(1)
    await work.begin("a", "a0", "a1", "a2")
    which(work).cancel()
    await _settle()
    await work.end("a0")
    await work.end("a1")
    assert work.begun[-1] == "a2"


async def test_a_slot_is_given_back_when_its_taker_is_cancelled_at_that_moment() -> None:
    work = _Work(1)
    await work.begin("a", "a0", "a1", "a2")
    work._ends["a0"].set()
    await asyncio.sleep(0)
    work.tasks["a1"].cancel()
    await _settle()
    await work.end("a1")
    assert "a2" in work.begun
