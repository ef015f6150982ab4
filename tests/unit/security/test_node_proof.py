"""The proof of a node in a gRPC call: it serves once, and calls may overtake one another."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetstream_protocol.types import WallUs
from jetstream_server.security.node_proof import (
    BOOTSTRAP,
    BOOTSTRAP_SECONDS,
    WINDOW,
    Claim,
    UsedProofs,
    check,
    claim_of,
    proof,
)

SECRET = b"secret"
METHOD = "/jetstream.v1.Cluster/StandBy"
CLAIM = Claim(sender=3, run=17, number=9)
NOW = WallUs(1_700_000_000_000_000)


def test_a_proof_holds_for_its_method_its_target_and_this_run_of_it() -> None:
    value = proof(SECRET, METHOD, CLAIM, target=1, incarnation=5)
    assert claim_of(value) == CLAIM
    assert check(SECRET, value, METHOD, target=1, incarnation=5)
    assert not check(SECRET, value, METHOD + "s", target=1, incarnation=5)
    assert not check(SECRET, value, METHOD, target=2, incarnation=5)
    assert not check(SECRET, value, METHOD, target=1, incarnation=6)
    assert not check(b"another", value, METHOD, target=1, incarnation=5)
    assert not check(b"", proof(b"", METHOD, CLAIM, target=1, incarnation=5), METHOD,
                     target=1, incarnation=5)  # fmt: skip


def test_what_it_claims_cannot_be_changed() -> None:
    value = proof(SECRET, METHOD, CLAIM, target=1, incarnation=5)
    for changed in ("Node 4/17/9:", "Node 3/18/9:", "Node 3/17/10:", "Node 3/17/09:"):
        forged = changed + value.partition(":")[2]
        assert claim_of(forged) is not None
        assert not check(SECRET, forged, METHOD, target=1, incarnation=5)


@pytest.mark.parametrize(
    "value",
    [
        "", "Node ", "Node 1", "Node x/1/1:" + "0" * 64, "Node 1/1:" + "0" * 64,
        "Node 1/1/1:" + "0" * 63, "Node 1/1/1:" + "0" * 64 + "\n", "Node ١/1/1:" + "0" * 64,
        "Node 1/1/" + "9" * 21 + ":" + "0" * 64, "Bearer 1/1/1:" + "0" * 64,
    ],
)  # fmt: skip
def test_what_is_no_proof_claims_nothing(value: str) -> None:
    assert claim_of(value) is None
    assert not check(SECRET, value, METHOD, target=1, incarnation=5)


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3 * WINDOW)), max_size=60))
def test_no_proof_serves_twice(shown: list[tuple[int, int]]) -> None:
    """Whatever comes in which order."""
    used, taken = UsedProofs(), set()
    for run, number in shown:
        if used.take(Claim(1, run, number), NOW):
            assert (run, number) not in taken
            taken.add((run, number))


@given(st.permutations(range(1, 60)), st.integers(0, 10**15))
def test_calls_that_overtake_one_another_are_all_taken(order: list[int], start: int) -> None:
    used = UsedProofs()
    assert all(used.take(Claim(1, 1, start + number), NOW) for number in order)


def test_the_window_ends_and_an_older_run_is_over() -> None:
    used = UsedProofs()
    assert used.take(Claim(1, 7, 10), NOW)
    assert used.take(Claim(1, 7, 10 + WINDOW - 1), NOW)
    assert not used.take(Claim(1, 7, 10), NOW)
    assert used.take(Claim(1, 7, 11), NOW)
    assert used.take(Claim(1, 7, 10**9), NOW)
    assert not used.take(Claim(1, 7, 10**9 - WINDOW), NOW)
    assert used.take(Claim(1, 8, 1), NOW)
    assert not used.take(Claim(1, 7, 10**9 + 1), NOW)
    assert used.take(Claim(2, 7, 10), NOW)


def test_the_proof_of_who_is_no_node_holds_for_a_minute() -> None:
    used, long = UsedProofs(), BOOTSTRAP_SECONDS * 1_000_000
    assert not used.take(Claim(1, BOOTSTRAP, NOW - long - 1), NOW)
    assert not used.take(Claim(1, BOOTSTRAP, NOW + long + 1), NOW)
    assert used.take(Claim(1, BOOTSTRAP, NOW - long), NOW)
    assert not used.take(Claim(1, BOOTSTRAP, NOW - long), NOW)
    assert used.take(Claim(1, BOOTSTRAP, NOW), NOW)
