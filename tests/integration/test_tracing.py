"""A publish is followed from the program that made it, over its commit, to its reader."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from jetstream_client import Client, tracing
from tests.support.server import ServerProcess

pytest.importorskip("opentelemetry.sdk", reason="OpenTelemetry is not installed (extra otel)")

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

PATIENCE_SECONDS = 60.0


@pytest.fixture
def exporter() -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing.enable(provider)
    yield exporter
    tracing.disable()


def spans(exporter: InMemorySpanExporter) -> dict[str, Any]:
    return {span.name: span for span in exporter.get_finished_spans()}


def test_a_reader_s_span_links_the_publisher_s(
    client: Client, name: str, exporter: InMemorySpanExporter
) -> None:
    client.create_stream(name, f"{name}.>")
    client.publish(f"{name}.a", b"1", headers={"Mine": "kept"})
    with client.consume(name) as consumer:
        message = next(consumer)
    found = spans(exporter)
    publish, receive = found[f"publish {name}.a"], found[f"receive {message.stream}"]
    assert publish.kind is trace.SpanKind.PRODUCER
    assert (publish.attributes["jetstream.stream"], publish.attributes["jetstream.offset"]) == (
        message.stream.partition("@")[0],
        0,
    )
    assert receive.kind is trace.SpanKind.CONSUMER
    assert [link.context.span_id for link in receive.links] == [publish.context.span_id]
    assert [link.context.trace_id for link in receive.links] == [publish.context.trace_id]
    around = trace.get_current_span(tracing.context_of(message)).get_span_context()
    assert (around.trace_id, around.span_id) == (publish.context.trace_id, publish.context.span_id)
    assert message.headers["Mine"] == "kept"


def test_a_publish_belongs_to_the_span_around_it_and_tells_its_failure(
    client: Client, name: str, exporter: InMemorySpanExporter
) -> None:
    client.create_stream(name, f"{name}.>")
    tracer = trace.get_tracer("test", tracer_provider=TracerProvider())
    with tracer.start_as_current_span("mine") as mine:
        client.publish(f"{name}.a", b"1")
        with pytest.raises(Exception, match="last sequence"):
            client.publish(f"{name}.b", b"2", expected_offset=7)
    found = spans(exporter)
    assert found[f"publish {name}.a"].parent.span_id == mine.get_span_context().span_id
    assert found[f"publish {name}.b"].status.status_code is trace.StatusCode.ERROR


def test_without_tracing_nothing_is_added(client: Client, name: str) -> None:
    client.create_stream(name, f"{name}.>")
    client.publish(f"{name}.a", b"1")
    assert client.fetch(name)[0].header_block == b""


@pytest.fixture
def collector() -> Iterator[tuple[str, list[bytes]]]:
    """An OTLP endpoint, and the bodies that it was sent."""
    bodies: list[bytes] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", bodies
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_node_sends_a_span_for_the_commit(
    tmp_path: Path, collector: tuple[str, list[bytes]], exporter: InMemorySpanExporter
) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
        ExportTraceServiceRequest,
    )

    endpoint, bodies = collector
    environment = {
        "JETSTREAM_TRACING__ENABLED": "true",
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        "OTEL_BSP_SCHEDULE_DELAY": "100",
    }
    server = ServerProcess(tmp_path / "data", environment=environment)
    server.start()
    try:
        with Client(server.grpc) as client:
            client.create_stream("orders", "orders.>")
            client.publish("orders.eu", b"1")
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not bodies and time.monotonic() < deadline:
            time.sleep(0.05)
    finally:
        server.kill()
    (publish,) = exporter.get_finished_spans()
    sent = ExportTraceServiceRequest.FromString(bodies[0]).resource_spans[0]
    (commit,) = sent.scope_spans[0].spans
    assert commit.name == "commit orders"
    assert int.from_bytes(commit.trace_id, "big") == publish.context.trace_id
    assert int.from_bytes(commit.parent_span_id, "big") == publish.context.span_id
    assert publish.start_time <= commit.start_time_unix_nano <= commit.end_time_unix_nano
    assert {each.key for each in commit.attributes} >= {"jetstream.offset", "jetstream.node"}
