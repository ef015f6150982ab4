"""The page of the architecture says truly how far each errand walks through the files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.walks.counting import PAGE, count, is_climb, table, table_on, usual
from tests.walks.running import walks_of
from tests.walks.traced_server import Step, Walk

LINK = "jetstream_server/ingest/nats/link.py"
INGEST = "jetstream_server/ingest/ingest.py"
REPLICA = "jetstream_server/replication/replica.py"
LOG = "jetstream_server/log/commit_log.py"
FLUSHER = "jetstream_server/log/flusher.py"


def test_the_page_has_the_numbers_of_the_walks(tmp_path: Path) -> None:
    counts = usual(walks_of(tmp_path))
    assert table_on(PAGE.read_text()) == table(counts), (
        "the walks have changed: look at them (python -m tests.walks), and if they must be so, "
        "put them on the page (python -m tests.walks --write)"
    )


@pytest.mark.parametrize(
    ("caller", "file", "climbs"),
    [
        (LINK, INGEST, True),
        (INGEST, LINK, False),
        (LOG, REPLICA, True),
        (REPLICA, LOG, False),
        (LOG, FLUSHER, False),
        ("jetstream_server/clocks.py", LOG, True),
        ("jetstream_protocol/batch.py", LOG, True),
    ],
)
def test_floors_are_those_of_the_import_contracts(caller: str, file: str, climbs: bool) -> None:
    assert is_climb(caller, file) == climbs


def walk(*steps: tuple[str, str, str, bool]) -> Walk:
    return Walk("message", [Step(*step) for step in steps])


def test_a_walk_counts_what_passes_on_what_is_entered_and_what_goes_up() -> None:
    found = count(
        walk(
            ("", LINK, "buffer_updated", False),
            (LINK, INGEST, "deliver", False),
            (INGEST, REPLICA, "append", False),
            (REPLICA, LOG, "append", False),
            (REPLICA, FLUSHER, "request", False),
            (FLUSHER, LOG, "flush", True),
            (FLUSHER, REPLICA, "_flushed", True),  # An answer.
            (REPLICA, INGEST, "committed", False),  # Replica was called by ingest.
            (INGEST, LINK, "write", False),
            (LINK, LINK, "_later", False),
        )
    )
    assert found is not None
    assert found.entered == (LINK, INGEST, REPLICA, LOG, FLUSHER)
    assert found.way == (LINK, INGEST, REPLICA, FLUSHER)
    assert found.climbs == ((LINK, INGEST),)
    assert found.hops == 2


def test_a_walk_that_does_not_end_counts_for_nothing() -> None:
    assert count(walk(("", LINK, "buffer_updated", False))) is None
