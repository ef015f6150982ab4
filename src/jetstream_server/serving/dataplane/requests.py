"""Requests of one connection that are not answered yet."""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, ClassVar

from jetstream_protocol.frames import Kind
from jetstream_protocol.generated import dataplane_pb2 as pb
from jetstream_protocol.types import MonotonicUs
from jetstream_server.serving.dataplane.fetches import Found
from jetstream_server.serving.long_poll import Poll


@dataclass(slots=True, eq=False)
class Request:
    """A request that is being served. is_counted: among the open requests of its principal. rest:
    of its answer, to be ended if the connection ends before. length: of a producer's batch.
    is_over: nothing more is to be sent for it."""

    correlation: int
    asked_us: MonotonicUs
    is_counted: bool = False
    rest: Coroutine[Any, Any, None] | None = None
    length: int = 0
    is_over: bool = False

    def goes_on(self) -> bool:
        """An answer was sent. Returns whether others follow it."""
        return False

    def leave(self) -> None:
        """It has ended: wait for nothing more."""


@dataclass(slots=True, eq=False)
class Fetch(Request):
    """poll: while it waits."""

    KIND: ClassVar[Kind] = Kind.FETCH_REPLY
    request: pb.DataFetchRequest = field(default_factory=pb.DataFetchRequest)
    poll: Poll | None = None

    def leave(self) -> None:
        if self.poll is not None:
            self.poll.abandon()
            self.poll = None  # Its answer refers to the fetch: break the cycle.

    def now(self) -> pb.DataFetchRequest:
        """What is to be fetched."""
        return self.request

    def head_of(self, found: Found, tail: bytes | None = None) -> pb.DataFetchResponse:
        """The head of an answer that is about to be sent. tail: what is sent in place of the
        slices."""
        return found.head
