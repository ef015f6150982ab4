"""Values by stream and key, in order of age. Pure.

The oldest of all is found at once, and so are those of one stream: a failover changes thousands of
streams, most of them with nothing here.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

from jetstream_protocol.types import StreamId

K = TypeVar("K")
V = TypeVar("V")


class ByStream(Generic[K, V]):
    def __init__(self) -> None:
        self._oldest_first: OrderedDict[tuple[StreamId, K], None] = OrderedDict()
        self._values: dict[StreamId, dict[K, V]] = {}

    def __len__(self) -> int:
        return len(self._oldest_first)

    def put(self, stream_id: StreamId, key: K, value: V) -> None:
        """As the newest."""
        self.pop(stream_id, key)
        self._oldest_first[stream_id, key] = None
        self._values.setdefault(stream_id, {})[key] = value

    def pop(self, stream_id: StreamId, key: K) -> V | None:
        """None: there is none."""
        if (values := self._values.get(stream_id)) is None or key not in values:
            return None
        del self._oldest_first[stream_id, key]
        value = values.pop(key)
        if not values:
            del self._values[stream_id]
        return value

    def pop_oldest(self) -> V | None:
        oldest = next(iter(self._oldest_first), None)
        return None if oldest is None else self.pop(*oldest)

    def of(self, stream_id: StreamId) -> list[V]:
        """Those of a stream, the oldest first."""
        return [*self._values.get(stream_id, {}).values()]

    def pop_all(self, stream_id: StreamId) -> list[V]:
        """Those of a stream, the oldest first."""
        values = self._values.pop(stream_id, {})
        for key in values:
            del self._oldest_first[stream_id, key]
        return [*values.values()]
