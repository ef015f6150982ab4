"""What readers at the head are sent."""

from __future__ import annotations

from collections.abc import Callable

from jetstream_server.replication.replica import Replica
from jetstream_server.serving.dataplane.fetches import CheckedFetch, Fetches, Found
from jetstream_server.serving.dataplane.follows import Follow
from jetstream_server.serving.long_poll import FetchPosition
from tests.simulation.mutants.installing import Patches, mutant


@mutant()
def sends_followers_what_is_not_committed(patches: Patches) -> None:
    """A follow goes up to the log's end. It is woken by a commit, as ever."""
    look = Fetches.look

    def beyond(self: Fetches, fetch: CheckedFetch, position: FetchPosition) -> Found | None:
        found = look(self, fetch, position)
        log = fetch.replica.log
        if found is None:
            return None
        further = log.read(position.offset, position.bytes_max, log.log_end_offset)
        assert further is not None
        return Found(found.head, [further], fetch.replica)

    patches.set(Fetches, "look", beyond)


@mutant()
def skips_what_was_committed_during_an_answer(patches: Patches) -> None:
    """A follow goes on after all that is committed once an answer was sent."""
    _changes_where_it_goes_on(patches, lambda follow, replica: (replica.high_watermark, -1))


@mutant()
def sends_followers_an_answer_twice(patches: Patches) -> None:
    """A follow forgets how far its answer went if more was committed while it was sent."""
    _changes_where_it_goes_on(patches, lambda follow, replica: (follow._offset, follow._last_epoch))


def _changes_where_it_goes_on(
    patches: Patches, place: Callable[[Follow, Replica], tuple[int, int]]
) -> None:
    """Where more was committed while an answer was sent."""
    goes_on = Follow.goes_on

    def elsewhere(self: Follow) -> bool:
        replica = None if self._checked is None else self._checked.replica
        sent = self._sent
        if sent is not None and replica is not None and replica.high_watermark > sent.end[0]:
            self._sent = sent._replace(end=place(self, replica))
        return goes_on(self)

    patches.set(Follow, "goes_on", elsewhere)
