"""Schemas: that a leader lets through only what fits the one of now."""

from __future__ import annotations

from jetstream_protocol.fitting import Fitting
from jetstream_server.ingest.stream.stream_ingest import StreamIngest
from tests.simulation.mutants.installing import Patches, mutant
from tests.simulation.runner import TYPED


@mutant(kind=TYPED)
def checks_no_record_by_the_schema(patches: Patches) -> None:
    """A leader stores what does not fit."""
    patches.set(StreamIngest, "_fitting", None)


@mutant(kind=TYPED)
def checks_by_the_schema_that_it_knew_first(patches: Patches) -> None:
    """A leader does not notice that the schema has changed."""
    fitting = StreamIngest._fitting.fget  # type: ignore[attr-defined]
    assert fitting is not None

    def first(self: StreamIngest) -> Fitting | None:
        return fitting(self) if self._fitting_of is None else self._fitting_of[1]

    patches.set(StreamIngest, "_fitting", property(first))
