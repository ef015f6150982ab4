"""Where spans of the SDK begin, if a program has asked for them (tracing.py). Nothing here knows
OpenTelemetry: without `tracing.enable()` all of this costs one comparison a call."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from jetstream_client.reading.messages import Messages
from jetstream_client.values.headers import HeadersLike

Publish = Callable[[HeadersLike | None], Coroutine[Any, Any, Any]]
"""Publishes with these headers; a PublishResult comes back."""


class Tracing(Protocol):
    """What `enable` puts in place."""

    def publish(
        self, subject: str, headers: HeadersLike | None, publish: Publish
    ) -> Coroutine[Any, Any, Any]:
        """Publish in a span, with its header."""

    def received(self, messages: Messages) -> None:
        """A consumer has fetched them."""


class _Switch:
    """active: None while tracing is off."""

    def __init__(self) -> None:
        self.active: Tracing | None = None


SWITCH = _Switch()
