"""A stream in the lake between all other faults: a few seeds on every change."""

from __future__ import annotations

import pytest

pytest.importorskip("pyiceberg")

from tests.simulation.runner import LAKED, Totals, run_seeds, story

SEEDS = [0, 2, *range(6, 12, 2), 16, 20]
"""Together they reach all that is rare."""


def test_no_seed_violates_an_invariant_while_the_stream_is_in_the_lake() -> None:
    totals = Totals()
    failure = run_seeds(SEEDS, totals, kind=LAKED)
    assert failure is None, story(failure)
    rare = (
        "lake read",
        "read: from the lake",
        "one falls behind the lake",
        "struck in the middle of an upload",
        "answer of the store lost",
        "lake not read",
        "sweeps alone",
        "commit to the lake given up",
        "request to the store failed after it was done",
    )
    assert [what for what in rare if not totals.counts.get(what)] == []
