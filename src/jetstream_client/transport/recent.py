"""What a client remembers of streams and nodes, however many come and go while it lives."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")

STREAMS_MAX: Final = 65_536
"""More than a client reads at the same time: who comes round to a forgotten one asks again."""
ADDRESSES_MAX: Final = 256


class Recent(Generic[_Key, _Value]):
    """A mapping that forgets what was used least recently when it has more than count_max."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._values: OrderedDict[_Key, _Value] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: _Key) -> bool:
        return key in self._values

    def __getitem__(self, key: _Key) -> _Value:
        return self._values[key]

    def get(self, key: _Key) -> _Value | None:
        """Counts as a use."""
        if key not in self._values:
            return None
        self._values.move_to_end(key)
        return self._values[key]

    def put(self, key: _Key, value: _Value) -> tuple[_Key, _Value] | None:
        """Counts as a use. Returns what is forgotten for it."""
        self._values[key] = value
        self._values.move_to_end(key)
        if len(self._values) <= self._count_max:
            return None
        return self._values.popitem(last=False)

    def pop(self, key: _Key) -> _Value | None:
        return self._values.pop(key, None)

    def pop_all(self) -> list[_Value]:
        values = list(self._values.values())
        self._values.clear()
        return values
