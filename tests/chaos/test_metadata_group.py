"""Short versions of the experiments in metadata_group.py."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from jetstream_server.metadata.raft.library import RaftTimings
from tests.support.lateness import Lateness

from .metadata_group import RETURNS, failovers, freezes, isolations, kill_rounds, returns


def test_kills_of_any_and_all_members_lose_nothing_acknowledged(tmp_path: Path) -> None:
    assert kill_rounds(tmp_path, rounds=3, seed=1, tell=print) > 0


def test_a_killed_leader_is_replaced_within_two_seconds(
    path_in_memory: Path, lateness: Lateness
) -> None:
    assert max(failovers(path_in_memory, 2)) < 2.0 + lateness.since()


def test_an_isolated_leader_steps_down_within_a_second_and_a_half(
    path_in_memory: Path, lateness: Lateness
) -> None:
    assert max(isolations(path_in_memory, 1)) < 1.5 + lateness.since()


def test_a_frozen_leader_is_replaced_within_two_seconds(
    path_in_memory: Path, lateness: Lateness
) -> None:
    assert max(freezes(path_in_memory, 1)) < 2.0 + lateness.since()


def test_a_follower_that_was_away_disturbs_no_leader(
    path_in_memory: Path, lateness: Lateness
) -> None:
    """In every way, each in a group of its own: they all wait. Nobody may wait for a disk then: if
    the other follower did, the leader would hear no majority, and step down."""

    def disturbed(kind: str) -> int:
        folder = path_in_memory / kind.replace(" ", "-")
        folder.mkdir()
        return returns(folder, 1, kinds=[kind])

    with ThreadPoolExecutor(len(RETURNS)) as pool:
        found = dict(zip(RETURNS, pool.map(disturbed, RETURNS), strict=True))
    # On a machine that stands still, a follower may miss its leader.
    assert not any(found.values()) or lateness.since() > RaftTimings().election_min, found
