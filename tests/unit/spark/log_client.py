"""A client of streams that are only numbers, for the tests of a query's driver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from jetstream_client import StreamNotFoundError

EPOCH = 7


@dataclass
class LogClient:
    """ends: where the streams end, by id. names: theirs, if not `orders`. group: a keyed group that
    all of them are of. refusal: of fetches at an offset."""

    ends: dict[int, int]
    refusal: tuple[int, Exception] | None = None
    names: dict[int, str] = field(default_factory=dict)
    group: str = ""
    listed: int = 0
    asked_with: dict[str, Any] = field(default_factory=dict)

    async def list_streams(self) -> list[Any]:
        self.listed += 1
        named = [(number, self.names.get(number, "orders")) for number in self.ends]
        return [
            SimpleNamespace(
                id=number,
                name=name,
                subject=f"{name}.>",
                full_name=f"{name}@{name}.>",
                compact=False,
                group=self.group,
                partition=number - 1 if self.group else None,
            )
            for number, name in named
        ]

    async def list_offsets(self, queries: Sequence[tuple[int, str]]) -> list[Any]:
        for number, _ in queries:
            if number not in self.ends:
                raise StreamNotFoundError(f"no stream {number}")
        return [
            SimpleNamespace(
                offset=0 if position == "earliest" else self.ends[number], leader_epoch=-1
            )
            for number, position in queries
        ]

    async def describe_cluster(self) -> Any:
        return SimpleNamespace(cluster_id="c")

    async def fetch(self, number: int, offset: int, **more: Any) -> Any:
        if self.refusal is not None and offset == self.refusal[0]:
            self.asked_with = more
            raise self.refusal[1]
        return Records([SimpleNamespace(offset=offset)])


class Records(list[Any]):
    last_epoch = EPOCH
