"""OpenTelemetry traces of a program that publishes and consumes; off until `enable` is called.

    from jetstream_client import tracing

    tracing.enable()          # with the program's own tracer provider

Needs the package `opentelemetry-api` (the extra `otel`). The program sets up its
SDK and exporter as for any other library. From then on, in every client of the process:

* `publish` makes a span of kind PRODUCER and sends `traceparent` with the message, so that servers
  and readers continue the trace.
* A batched publisher does the same for each `send`; the span ends when the record is acknowledged.
  `publish_many` makes one span, and the first record in each stream has its header. A trace that is
  not recorded costs its records no header.
* A consumer makes a span of kind CONSUMER for each fetch that has messages of recorded traces, with
  a link to each of the first LINKS_MAX. It does not look at single records for that.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from jetstream_client._tracing import SWITCH, Outcome, Publish
from jetstream_client.reading.messages import Message, Messages
from jetstream_client.values.headers import HeadersLike, by_name
from jetstream_protocol.traces import sampled_in

__all__ = ["LINKS_MAX", "context_of", "disable", "enable"]

LINKS_MAX = 128
"""Of one span: what OpenTelemetry keeps by default."""


def enable(tracer_provider: Any = None) -> None:
    """Make spans from now on. tracer_provider: of OpenTelemetry; None: the program's global one.

    Raises ImportError where opentelemetry-api is not installed.
    """
    SWITCH.active = _OpenTelemetry(tracer_provider)


def disable() -> None:
    """Make no more spans."""
    SWITCH.active = None


def context_of(message: Message) -> Any:
    """The OpenTelemetry context in which a message was published: for `start_span(context=…)` or
    `attach`, so that the program's own spans belong to the message's trace. Without a trace it is
    the current context."""
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract(
        {name.lower(): value for name, value in message.headers.items()}
    )


class _OpenTelemetry:
    def __init__(self, provider: Any) -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._trace = trace
        self._propagator = TraceContextTextMapPropagator()
        self._tracer = trace.get_tracer("jetstream_client", tracer_provider=provider)

    async def publish(self, subject: str, headers: HeadersLike | None, publish: Publish) -> Any:
        kind, attributes = self._trace.SpanKind.PRODUCER, _publish_attributes(subject)
        with self._tracer.start_as_current_span(
            f"publish {subject}", kind=kind, attributes=attributes
        ) as span:
            carrier: dict[str, str] = {}
            self._propagator.inject(carrier)  # In place of a `traceparent` that was given.
            result = await publish({**by_name(headers), **carrier} or None)
            if result.stream:
                span.set_attribute("jetstream.stream", result.stream)
                span.set_attribute("jetstream.offset", result.offset)
            return result

    @contextmanager
    def batched(self, subject: str, count: int) -> Iterator[_BatchedSpan]:
        attributes = _publish_attributes(subject)
        if count != 1:
            attributes["messaging.batch.message_count"] = count
        span = self._tracer.start_span(
            f"publish {subject}", kind=self._trace.SpanKind.PRODUCER, attributes=attributes
        )
        carrier: dict[str, str] = {}
        if span.get_span_context().trace_flags.sampled:
            self._propagator.inject(carrier, self._trace.set_span_in_context(span))
        batched = _BatchedSpan(self._trace, span, carrier)
        try:
            yield batched
        except BaseException as error:
            batched.failed(error)
            span.end()
            raise

    def received(self, messages: Messages) -> None:
        links: list[Any] = []
        for chunk in messages.chunks:
            for _, parent in sampled_in(chunk.header_blocks(), LINKS_MAX - len(links)):
                context = self._trace.SpanContext(
                    parent.trace_id,
                    parent.span_id,
                    is_remote=True,
                    trace_flags=self._trace.TraceFlags(self._trace.TraceFlags.SAMPLED),
                )
                links.append(self._trace.Link(context))
            if len(links) >= LINKS_MAX:
                break
        if not links:
            return
        attributes = {
            "messaging.system": "jetstream",
            "messaging.operation.name": "receive",
            "messaging.destination.name": messages.stream,
            "messaging.batch.message_count": len(messages),
        }
        kind = self._trace.SpanKind.CONSUMER
        self._tracer.start_span(
            f"receive {messages.stream}", kind=kind, links=links, attributes=attributes
        ).end()


class _BatchedSpan:
    """See PublishSpan. Outcomes come in any order, on any thread."""

    def __init__(self, trace: Any, span: Any, carrier: dict[str, str]) -> None:
        self._trace = trace
        self._span = span
        self._carrier = carrier
        self._lock = threading.Lock()
        self._left = 0
        self._is_placed = False

    def headers(self, given: HeadersLike | None) -> HeadersLike | None:
        return {**by_name(given), **self._carrier} if self._carrier else given

    def ends_with(self, outcomes: Sequence[Outcome]) -> None:
        self._left = len(outcomes)
        for outcome in outcomes:
            outcome.watch(self._ended)
        if not outcomes:
            self._span.end()

    def _ended(self, result: Any, error: BaseException | None) -> None:
        with self._lock:
            self._left -= 1
            is_last = not self._left
        if error is not None:
            self.failed(error)
        elif not self._is_placed:
            self._is_placed = True
            self._span.set_attribute("jetstream.stream", result.stream)
            self._span.set_attribute("jetstream.offset", result.offset)
        if is_last:
            self._span.end()

    def failed(self, error: BaseException) -> None:
        self._span.record_exception(error)
        self._span.set_status(
            self._trace.Status(self._trace.StatusCode.ERROR, f"{type(error).__name__}: {error}")
        )


def _publish_attributes(subject: str) -> dict[str, Any]:
    return {
        "messaging.system": "jetstream",
        "messaging.operation.name": "publish",
        "messaging.destination.name": subject,
    }
