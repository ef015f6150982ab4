"""Where spans of the SDK begin, if a program has asked for them (tracing.py). Nothing here knows
OpenTelemetry: without `tracing.enable()` all of this costs one comparison a call."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from jetstream_client.reading.messages import Messages
from jetstream_client.values.headers import HeadersLike

Publish = Callable[[HeadersLike | None], Coroutine[Any, Any, Any]]
"""Publishes with these headers; a PublishResult comes back."""


class Outcome(Protocol):
    """What becomes of records in one batch."""

    def watch(self, call: Callable[[Any, BaseException | None], object]) -> None:
        """Call it with what has `stream` and `offset`, or with the error, when it is known."""


class PublishSpan(Protocol):
    """A span around records that travel in batches."""

    def headers(self, given: HeadersLike | None) -> HeadersLike | None:
        """The headers with the span's own; as given if its trace is not recorded."""

    def ends_with(self, outcomes: Sequence[Outcome]) -> None:
        """End it when all of them are known."""


class Tracing(Protocol):
    """What `enable` puts in place."""

    def publish(
        self, subject: str, headers: HeadersLike | None, publish: Publish
    ) -> Coroutine[Any, Any, Any]:
        """Publish in a span, with its header."""

    def batched(self, subject: str, count: int) -> AbstractContextManager[PublishSpan]:
        """A span around the adding of `count` records to a batch. An exception ends it."""

    def received(self, messages: Messages) -> None:
        """A consumer has fetched them."""


class _Switch:
    """active: None while tracing is off."""

    def __init__(self) -> None:
        self.active: Tracing | None = None


SWITCH = _Switch()
