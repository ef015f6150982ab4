"""Pulls that a follower hears, so that it can end them if the leader crashes. Pure.

A leader that hands over ends the pulls that wait, and clients ask again at once. One that crashes
cannot, and clients would wait for missed heartbeats, half a minute long. So the nodes that have a
copy of a stream with consumers hear its pulls, too, and remember where their answers go. Which of
them were served is not known: a status for one that was has no effect.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from jetstream_protocol.types import MonotonicUs, StreamId
from jetstream_server.consumers.pulls import Pull
from jetstream_server.jetstream_api.by_stream import ByStream

INBOXES_MAX: Final = 20_000
"""Remembered by one node; the oldest are forgotten first."""
_LEADERLESS_US: Final = 5_000_000
"""An election takes less, as a rule."""
OF_AN_INBOX: Final = 2
"""Loops have at most two pulls at once, both to one inbox."""


class HeardPulls:
    def __init__(self) -> None:
        self._inboxes: ByStream[bytes, deque[Pull]] = ByStream()

    def __len__(self) -> int:
        return len(self._inboxes)

    def take(self, stream_id: StreamId, pull: Pull) -> None:
        """Remember a pull. One that does not wait is over by the time it is needed."""
        if pull.no_wait and pull.expires_us is None:
            return
        pulls = self._inboxes.pop(stream_id, pull.reply) or deque(maxlen=OF_AN_INBOX)
        pulls.append(pull)
        self._inboxes.put(stream_id, pull.reply, pulls)
        while len(self._inboxes) > INBOXES_MAX:
            self._inboxes.pop_oldest()

    def lost(self, stream_id: StreamId, lost_us: MonotonicUs) -> list[Pull]:
        """The pulls of a stream that may wait in vain, as its leader has had no link since
        `lost_us`: those that had not expired before."""
        found = self._inboxes.of(stream_id)
        return [pull for pulls in found for pull in pulls if _waits(pull, lost_us)]

    def forget(self, stream_id: StreamId) -> None:
        """Forget the pulls of a stream."""
        self.end(stream_id, MonotonicUs(0))

    def end(self, stream_id: StreamId, now_us: MonotonicUs) -> list[Pull]:
        """Forget the pulls of a stream, and return those that may wait for a status. The last one
        of an inbox may have expired while nobody led: its client has not asked again."""
        found: list[Pull] = []
        for *earlier, last in self._inboxes.pop_all(stream_id):
            found += [each for each in earlier if _waits(each, now_us)]
            found += [last] if _waits(last, now_us - _LEADERLESS_US) else []
        return found


def _waits(pull: Pull, now_us: int) -> bool:
    return pull.expires_us is None or pull.expires_us > now_us
