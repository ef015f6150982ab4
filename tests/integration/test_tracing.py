"""A publish is followed from the program that made it, over its commit, to its reader."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from jetstream_client import AsyncClient, Client, MessageTooLargeError, StreamReadonlyError, tracing
from tests.support.loops import on_loop
from tests.support.server import ServerProcess

pytest.importorskip("opentelemetry.sdk", reason="OpenTelemetry is not installed (extra otel)")

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF


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
        with pytest.raises(Exception, match="next offset"):
            client.publish(f"{name}.b", b"2", expected_offset=7)
    found = spans(exporter)
    assert found[f"publish {name}.a"].parent.span_id == mine.get_span_context().span_id
    assert found[f"publish {name}.b"].status.status_code is trace.StatusCode.ERROR


def test_each_record_of_a_batch_has_a_span_of_its_own(
    client: Client, name: str, exporter: InMemorySpanExporter
) -> None:
    client.create_stream(name, f"{name}.>")
    tracer = trace.get_tracer("test", tracer_provider=TracerProvider())
    with client.publisher(f"{name}.a", compression="zstd") as publisher:
        publisher.send(b"1", headers=[("Mine", b"kept")])
        with tracer.start_as_current_span("mine") as mine:
            publisher.send(b"2", key=b"k")
    one, two = exporter.get_finished_spans()
    assert (one.name, one.kind) == (f"publish {name}.a", trace.SpanKind.PRODUCER)
    assert [each.attributes["jetstream.offset"] for each in (one, two)] == [0, 1]
    assert two.parent.span_id == mine.get_span_context().span_id
    exporter.clear()
    with client.consume(name) as consumer:
        messages = [next(consumer), next(consumer)]
    (receive,) = exporter.get_finished_spans()
    published = [one.context.span_id, two.context.span_id]
    assert [link.context.span_id for link in receive.links] == published
    around = [trace.get_current_span(tracing.context_of(each)) for each in messages]
    assert [each.get_span_context().span_id for each in around] == published
    assert messages[0].headers["Mine"] == "kept"


@pytest.mark.parametrize("streams", [1, 3])
def test_many_records_at_once_are_one_span(
    client: Client, name: str, exporter: InMemorySpanExporter, streams: int
) -> None:
    if streams == 1:
        client.create_stream(name, f"{name}.>")
    else:
        client.create_group(name, f"{name}.>", streams=streams)
    keys = [f"{number}" for number in range(100)]
    with client.publisher(f"{name}.a") as publisher:
        publisher.publish_many([b"x"] * 100, keys=keys).result()
        publisher.publish_many([])
    many, none = exporter.get_finished_spans()
    assert many.attributes["messaging.batch.message_count"] == 100
    assert many.attributes["jetstream.offset"] == 0
    assert "jetstream.offset" not in none.attributes
    for number in range(streams):
        stored = client.fetch(name if streams == 1 else f"{name}-{number}")
        spans_of = [trace.get_current_span(tracing.context_of(each)) for each in stored]
        assert spans_of[0].get_span_context().span_id == many.context.span_id
        assert all(each.header_block == b"" for each in stored[1:])


@on_loop
async def test_an_asynchronous_publisher_alike(
    server: ServerProcess, name: str, exporter: InMemorySpanExporter
) -> None:
    async with AsyncClient(server.grpc, timeout=60) as client:
        await client.create_stream(name, f"{name}.>")
        async with client.publisher(f"{name}.a") as publisher:
            await (await publisher.send(b"1"))
            await (await publisher.publish_many([b"2", b"3"]))
        found = exporter.get_finished_spans()
        assert [each.attributes["jetstream.offset"] for each in found] == [0, 1]
        stored = await client.fetch(name)
    traced = [b"traceparent" in message.header_block for message in stored]
    assert traced == [True, True, False]


def test_a_span_of_a_batch_tells_its_failure_which_flush_still_raises(
    client: Client, name: str, exporter: InMemorySpanExporter
) -> None:
    client.create_stream(name, f"{name}.>")
    publisher = client.publisher(f"{name}.a", max_bytes=1000)
    with pytest.raises(MessageTooLargeError):
        publisher.send(b"x" * 2000)
    publisher.send(b"1").result()
    client.set_stream_readonly(name)
    publisher.send(b"2")
    with pytest.raises(StreamReadonlyError):
        publisher.flush()
    status = [each.status.status_code for each in exporter.get_finished_spans()]
    assert status == [
        trace.StatusCode.ERROR,
        trace.StatusCode.UNSET,
        trace.StatusCode.ERROR,
    ]
    publisher.close()


def test_a_trace_that_is_not_recorded_costs_records_of_a_batch_no_header(
    client: Client, name: str
) -> None:
    client.create_stream(name, f"{name}.>")
    tracing.enable(TracerProvider(sampler=ALWAYS_OFF))
    try:
        with client.publisher(f"{name}.a") as publisher:
            publisher.send(b"1")
            publisher.publish_many([b"2", b"3"])
    finally:
        tracing.disable()
    assert [message.header_block for message in client.fetch(name)] == [b""] * 3


def test_without_tracing_nothing_is_added(client: Client, name: str) -> None:
    client.create_stream(name, f"{name}.>")
    client.publish(f"{name}.a", b"1")
    with client.publisher(f"{name}.a") as publisher:
        publisher.send(b"2")
    assert [message.header_block for message in client.fetch(name)] == [b""] * 2


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
        with Client(server.grpc, timeout=60) as client:
            client.create_stream("orders", "orders.>")
            client.publish("orders.eu", b"1")
            with client.publisher("orders.eu", compression="lz4") as publisher:
                publisher.send(b"2")
    finally:
        server.stop()  # It sends what it has.
    requests = map(ExportTraceServiceRequest.FromString, bodies)
    commits = [
        span
        for request in requests
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    for publish, commit in zip(exporter.get_finished_spans(), commits, strict=True):
        assert commit.name == "commit orders"
        assert int.from_bytes(commit.trace_id, "big") == publish.context.trace_id
        assert int.from_bytes(commit.parent_span_id, "big") == publish.context.span_id
        assert publish.start_time <= commit.start_time_unix_nano <= commit.end_time_unix_nano
        assert {each.key for each in commit.attributes} >= {"jetstream.offset", "jetstream.node"}
