"""Pulls that a follower hears, so that it can end them if the leader crashes. Pure.

A leader that hands over ends the pulls that wait, and clients ask again at once. One that crashes
cannot, and clients would wait for missed heartbeats, half a minute long. So the nodes that have a
copy of a stream with consumers hear its pulls, too, and remember where their answers go. Which of
them were served is not known: a status for one that was has no effect.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Final

from jetstream_protocol.types import StreamId
from jetstream_server.consumers.pulls import Pull

INBOXES_MAX: Final = 20_000
"""Remembered by one node; the oldest are forgotten first."""
_OF_AN_INBOX: Final = 2
"""Loops have at most two pulls at once, both to one inbox."""


class HeardPulls:
    def __init__(self) -> None:
        self._pulls: OrderedDict[tuple[StreamId, bytes], deque[Pull]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._pulls)

    def take(self, stream_id: StreamId, pull: Pull) -> None:
        """Remember a pull. One that does not wait is over by the time it is needed."""
        if pull.no_wait and pull.expires_us is None:
            return
        key = stream_id, pull.reply
        self._pulls.setdefault(key, deque(maxlen=_OF_AN_INBOX)).append(pull)
        self._pulls.move_to_end(key)
        while len(self._pulls) > INBOXES_MAX:
            self._pulls.popitem(last=False)

    def forget(self, stream_id: StreamId) -> list[Pull]:
        """Forget the pulls of a stream, and return them."""
        keys = [key for key in self._pulls if key[0] == stream_id]
        return [pull for key in keys for pull in self._pulls.pop(key)]
