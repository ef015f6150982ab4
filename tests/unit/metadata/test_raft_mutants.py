"""What keeps the group safe is needed: with a rule switched off the simulation finds a loss.

A mutant must die within SEEDS_MAX seeds; most die within a few.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from jetstream_protocol.errors import StorageError
from jetstream_server.metadata import raft_messages
from jetstream_server.metadata.journal import Journal

from .raft_fabric import Fabric, SimulatedNode

SEEDS_MAX = 300
Mutate = Callable[[pytest.MonkeyPatch], None]


def sends_before_it_syncs(patch: pytest.MonkeyPatch) -> None:
    def sync(fabric: Fabric, node: SimulatedNode) -> None:
        if fabric.dice.random() < 0.03:
            node.journal.sync()

    patch.setattr(Fabric, "sync", sync)
    patch.setattr(Journal, "is_synced", True)


def forgets_its_vote(patch: pytest.MonkeyPatch) -> None:
    def save(journal: Journal, term: int, voted_for: str) -> None:
        journal.term, journal.voted_for = term, voted_for

    patch.setattr(Journal, "save_vote", save)


def commits_beside_a_snapshot(patch: pytest.MonkeyPatch) -> None:
    decode = raft_messages._DECODERS[2]

    def decode_believing(data: memoryview) -> raft_messages.Message:
        return {**decode(data), "commit_index": 1_000_000}

    patch.setitem(raft_messages._DECODERS, 2, decode_believing)


@pytest.mark.parametrize(
    "mutate",
    [sends_before_it_syncs, forgets_its_vote, commits_beside_a_snapshot],
)
def test_the_mutant_dies(mutate: Mutate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch)
    monkeypatch.setattr("jetstream_server.metadata.snapshot_transfer.PIECE_BYTES", 200)
    for seed in range(SEEDS_MAX):
        try:
            with Fabric.running(monkeypatch, tmp_path / str(seed), seed) as fabric:
                fabric.live_through(600)
                fabric.recover()
        except (AssertionError, StorageError):
            return
    pytest.fail(f"{mutate.__name__} survived {SEEDS_MAX} seeds")
