"""What a worker receives when something changes: counted for 100 P and 100 D."""

import pickle
import random
from dataclasses import replace

import pytest

from pdx_api.names import Role
from pdx_proxy.config.settings import Address, EndpointSpec
from pdx_proxy.endpoints.endpoint import Endpoint, State, pairing
from pdx_proxy.endpoints.snapshot import Snapshot, SnapshotChange
from pdx_proxy.process import snapshot_frames
from pdx_proxy.process.channel import encode
from pdx_proxy.process.snapshot_frames import SnapshotFrames


def endpoint(number: int, role: Role = Role.DECODE) -> Endpoint:
    return Endpoint(EndpointSpec(Address("h", number), role, pod=f"{role}-{number}"), State.WARM, generation=1)


POOL = [endpoint(n, role) for role in (Role.PREFILL, Role.DECODE) for n in range(100)]
HANDSHAKEN = frozenset(pairing(p, POOL[100]) for p in POOL[:100])
BEFORE = Snapshot.of(POOL, HANDSHAKEN)


def test_a_change_contains_what_has_changed() -> None:
    changed = replace(POOL[3], generation=2)
    pair = pairing(changed, POOL[100])
    after = Snapshot.of(
        [changed if e is POOL[3] else e for e in POOL if e is not POOL[150]],
        HANDSHAKEN - {pairing(POOL[3], POOL[100])} | {pair},
    )
    change = SnapshotChange.between(BEFORE, after)
    assert change == SnapshotChange(
        (changed,), (POOL[150].name,), frozenset({pair}), frozenset({pairing(POOL[3], POOL[100])})
    )
    assert len(encode(change)) < len(encode(SnapshotChange.between(Snapshot(), after))) / 20
    received = pickle.loads(pickle.dumps(change)).apply_to(BEFORE)
    assert (set(received.everything), received.handshaken) == (set(after.everything), after.handshaken)
    assert sum(e is not old for e, old in zip(received.everything, BEFORE.everything, strict=False)) <= 50 + 1


def test_a_worker_receives_the_suspended_and_the_watched_pairs() -> None:
    pairs = frozenset({pairing(POOL[0], POOL[100])}), frozenset({pairing(POOL[1], POOL[101])})
    after = Snapshot.of(POOL, HANDSHAKEN, *pairs)
    received = pickle.loads(pickle.dumps(SnapshotChange.between(BEFORE, after))).apply_to(BEFORE)
    assert (received.suspended, received.watched) == pairs
    back = pickle.loads(pickle.dumps(SnapshotChange.between(after, BEFORE))).apply_to(received)
    assert (back.suspended, back.watched) == (frozenset(), frozenset())


def test_changes_in_any_order_lead_to_the_latest() -> None:
    rng = random.Random(7)
    pool = {e.name: e for e in POOL[:20]}
    sent, received = Snapshot(), Snapshot()
    for _ in range(200):
        name = rng.choice(POOL[:30]).name
        old = pool.pop(name, None)
        if old is None or rng.random() < 0.7:
            pool[name] = replace(old or next(e for e in POOL if e.name == name), generation=rng.randrange(9))
        latest = Snapshot.of(pool.values())
        if rng.random() < 0.5:  # a worker that reads late receives two changes as one
            received = pickle.loads(pickle.dumps(SnapshotChange.between(sent, latest))).apply_to(received)
            sent = latest
            assert set(received.everything) == set(latest.everything)
            assert set(received.decode) == set(latest.decode)


def test_a_frame_is_encoded_once_for_all_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[object] = []

    def count(message: object) -> bytes:
        encoded.append(message)
        return encode(message)

    monkeypatch.setattr(snapshot_frames, "encode", count)
    frames = SnapshotFrames()
    frames.put(BEFORE)
    assert len({frames.since(frames.none) for _ in range(8)}) == 1
    latest = Snapshot.of(POOL[1:], HANDSHAKEN)
    frames.put(latest)
    assert frames.since(BEFORE) != frames.since(frames.none)
    for _ in range(8):
        frames.since(BEFORE)
    assert len(encoded) == 3
