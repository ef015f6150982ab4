"""Replicas that were compacted at different times have the same digest of what a reader ends with;
replicas that differ in one record that is left have not."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import given, settings

from jetstream_protocol.batch import encode
from jetstream_server.replication.replica import Replica
from jetstream_server.serving.grpc.key_digest import KeyDigest
from tests.support.compacting import GRACE_US, compact
from tests.support.examples import scaled
from tests.support.loops import on_loop
from tests.support.node import Node

Row = tuple[bytes | None, bytes | None]
KEYS = st.one_of(st.none(), st.sampled_from([b"", b"a", b"b", b"c", b"d" * 40, b"d" * 41]))
VALUES = st.one_of(st.none(), st.sampled_from([b"", b"1", b"x" * 100]))
BATCHES = st.lists(
    st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=5), min_size=1, max_size=12
)
PASSES = st.sets(st.integers(min_value=0, max_value=12))
"""After which batches a replica is compacted."""


async def _replica(
    folder: Path, batches: Sequence[Sequence[Row]], passes: frozenset[int] = frozenset()
) -> Replica:
    node = Node(folder, segment_bytes=300)
    node.start()
    replica = node.create()
    for at, rows in enumerate(batches):
        keys, values = zip(*rows, strict=True)
        batch = encode(list(values), b"a.b", keys=list(keys) if any(keys) else None)
        node.clocks.advance(1)
        replica.append(batch)
        node.flushes.run()
        if at in passes:
            compact(node.disk, replica.log, wall_us=at * 2 * GRACE_US)
    return replica


async def _digest(replica: Replica, start: int, end: int, keys_max: int) -> tuple[bytes, int]:
    digest = KeyDigest(replica, start, end, keys_max)
    done = [each async for each in digest.steps()]
    assert all(0 < each <= 1.0001 for each in done)
    return digest.digest, digest.records


def _left(batches: Sequence[Sequence[Row]], start: int, end: int) -> int:
    """How many records a reader of these offsets ends with."""
    rows = [row for batch in batches for row in batch]
    # A batch without any key is stored without keys.
    keyed = [any(key for key, _ in batch) for batch in batches for _ in batch]
    table: dict[bytes, bytes | None] = {}
    without = 0
    for offset in range(start, end):
        key, value = rows[offset]
        if key is None or not keyed[offset]:
            without += 1
        else:
            table[key] = value
    return without + sum(value is not None for value in table.values())


@settings(max_examples=scaled(30), deadline=None)
@given(BATCHES, PASSES, PASSES, st.integers(0, 8), st.integers(1, 4), st.integers(1, 4))
def test_it_does_not_depend_on_when_a_replica_was_compacted(
    batches: list[list[Row]],
    passes: set[int],
    others: set[int],
    start: int,
    keys_max: int,
    other_max: int,
) -> None:
    async def compare(folder: Path) -> None:
        one = await _replica(folder / "one", batches, frozenset(passes))
        other = await _replica(folder / "other", batches, frozenset(others))
        compacted = max(each.log.compaction.state.committed_below for each in (one, other))
        for end in {compacted, one.high_watermark}:
            begin = min(start, end)
            found = await _digest(one, begin, end, keys_max)
            assert found == await _digest(other, begin, end, other_max)
            assert found[1] == _left(batches, begin, end)

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(compare(Path(folder)))


@on_loop
async def test_one_record_more_less_or_other_is_another_digest(tmp_path: Path) -> None:
    batches: list[list[Row]] = [[(b"a", b"1"), (b"b", b"2")], [(None, b"3")], [(b"a", b"4")]]
    changes: dict[str, list[list[Row]]] = {
        "same": batches,
        "value": [batches[0], batches[1], [(b"a", b"5")]],
        "key": [batches[0], batches[1], [(b"c", b"4")]],
        "without a key": [batches[0], [(None, b"")], batches[2]],
        "deleted": [batches[0], batches[1], [(b"a", None)]],
        "superseded": [[(b"a", b"0"), (b"b", b"2")], batches[1], batches[2]],
    }
    found = {
        name: await _digest(await _replica(tmp_path / name, rows), 0, 4, 9)
        for name, rows in changes.items()
    }
    assert found["superseded"] == found["same"], "nobody ends with it"
    digests = [digest for name, (digest, _) in found.items() if name != "superseded"]
    assert len(set(digests)) == len(digests)
