"""OpenTelemetry on a node, if the configuration enables it: docs/operations/tracing.md.

Imported only then, so that a node without tracing neither needs nor loads OpenTelemetry.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from jetstream_protocol.traces import TraceParent
from jetstream_server.clocks import MonotonicClock
from jetstream_server.ingest.stream.commit_spans import EndSpan

_SAMPLED = trace.TraceFlags(trace.TraceFlags.SAMPLED)


class Tracing:
    """Spans of this node, at most `per_second` of them."""

    def __init__(
        self, provider: Any, node_id: int, per_second: int, monotonic_clock: MonotonicClock
    ) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("jetstream_server")
        self._node_id = node_id
        self._per_second = per_second
        self._clock = monotonic_clock
        self._second = -1
        self._begun = 0

    def begin(
        self, parent: TraceParent, stream: str, offset: int, leader_epoch: int
    ) -> EndSpan | None:
        """See SpanSource."""
        if not self._has_room():
            return None
        context = trace.SpanContext(
            parent.trace_id, parent.span_id, is_remote=True, trace_flags=_SAMPLED
        )
        span = self._tracer.start_span(
            f"commit {stream}",
            context=trace.set_span_in_context(trace.NonRecordingSpan(context)),
            kind=trace.SpanKind.CONSUMER,
            attributes={
                "messaging.system": "jetstream",
                "messaging.operation.name": "commit",
                "messaging.destination.name": stream,
                "jetstream.offset": offset,
                "jetstream.leader_epoch": leader_epoch,
                "jetstream.node": self._node_id,
            },
        )
        return _ending(span)

    def _has_room(self) -> bool:
        second = self._clock() // 1_000_000
        if second != self._second:
            self._second, self._begun = second, 0
        self._begun += 1
        return self._begun <= self._per_second

    def close(self) -> None:
        """Send the remaining spans. May take seconds."""
        self._provider.shutdown()


def _ending(span: Any) -> Callable[[str], None]:
    def end(failure: str) -> None:
        if failure:
            span.set_status(trace.Status(trace.StatusCode.ERROR, failure))
        span.end()

    return end


def open_tracing(node_id: int, per_second: int, monotonic_clock: MonotonicClock) -> Tracing:
    """Send spans by OTLP over HTTP, to OTEL_EXPORTER_OTLP_ENDPOINT. Raises ImportError if the
    exporter is not installed."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    name = os.environ.get("OTEL_SERVICE_NAME", "jetstream")
    resource = Resource.create({"service.name": name, "service.instance.id": str(node_id)})
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return Tracing(provider, node_id, per_second, monotonic_clock)
