"""Short versions of the experiments in metadata_group.py.

How long it takes is measured by the command, and shown on a clock of the tests' own in
tests/unit/metadata (test_raft_core.py, test_raft_elections.py). Here it must happen.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .metadata_group import RETURNS, Return, failovers, freezes, isolations, kill_rounds, returns


def test_kills_of_any_and_all_members_lose_nothing_acknowledged(tmp_path: Path) -> None:
    assert kill_rounds(tmp_path, rounds=3, seed=1, tell=print) > 0


def test_a_killed_leader_is_replaced(path_in_memory: Path) -> None:
    print(failovers(path_in_memory, 2))


def test_an_isolated_leader_steps_down(path_in_memory: Path) -> None:
    print(isolations(path_in_memory, 1))


def test_a_frozen_leader_is_replaced(path_in_memory: Path) -> None:
    print(freezes(path_in_memory, 1))


def test_a_follower_that_is_away_calls_no_election_and_follows_again(path_in_memory: Path) -> None:
    """In every way, each in a group of its own: they all wait. That leader and term stay, unit
    tests show: here a follower that is not given a processor may miss its leader, too."""

    def gone(kind: str) -> Return:
        folder = path_in_memory / kind.replace(" ", "-")
        folder.mkdir()
        (found,) = returns(folder, 1, kinds=[kind])
        return found

    with ThreadPoolExecutor(len(RETURNS)) as pool:
        found = dict(zip(RETURNS, pool.map(gone, RETURNS), strict=True))
    assert not [kind for kind in RETURNS if found[kind].has_raised], found
