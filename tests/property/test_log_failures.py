"""One log between failing disk operations, kills and power failures (log_failures/node.py)."""

from __future__ import annotations

import pytest

from tests.property.log_failures.history import run_seed, story
from tests.property.log_failures.mutants import MUTANTS, recorded
from tests.support.examples import scaled

SEEDS = scaled(500)


def test_no_seed_breaks_a_promise() -> None:
    failed = [seed for seed in range(SEEDS) if run_seed(seed)]
    assert not failed, story(failed[0])


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_dies(name: str) -> None:
    """Each mend of such a fault is needed. A new draw of histories moves the seeds:
    `python -m tests.property.log_failures --mutants` finds them again."""
    seed = recorded()[name]
    assert run_seed(seed) is None, story(seed)
    with MUTANTS[name]():
        assert run_seed(seed) is not None
