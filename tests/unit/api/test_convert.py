"""What the metadata knows of a stream reaches the API, field by field."""

from __future__ import annotations

from dataclasses import replace

from jetstream_protocol.generated import api_pb2 as pb
from jetstream_server.api.convert import stream_to_proto
from jetstream_server.metadata.streams import StreamMetadata, StreamSettings

STREAM = StreamMetadata(
    id=7,  # type: ignore[arg-type]
    name="orders",
    subject="orders.>",
    group="g",
    config=StreamSettings.with_defaults(3),
    replicas=(0, 1, 2),  # type: ignore[arg-type]
    leader=1,  # type: ignore[arg-type]
    leader_epoch=4,  # type: ignore[arg-type]
    stream_epoch=5,
    isr=(1, 2),  # type: ignore[arg-type]
    elr=(0,),  # type: ignore[arg-type]
    created_at_us=1_700_000_000_000_000,
    lossy_elections=2,
)


def test_a_stream_reaches_the_wire_with_every_field() -> None:
    told = stream_to_proto(STREAM)
    unset = [field.name for field in pb.Stream.DESCRIPTOR.fields if not getattr(told, field.name)]
    assert unset == []
    assert (told.name, told.subject, told.config.group) == ("orders", "orders.>", "g")
    assert (told.leader, told.leader_epoch, told.stream_epoch) == (1, 4, 5)
    assert (list(told.isr), list(told.elr)) == ([1, 2], [0])
    assert told.config.flush == pb.FLUSH_INTERVAL


def test_elections_that_may_have_lost_records_are_told() -> None:
    assert stream_to_proto(STREAM).lossy_elections == 2
    assert stream_to_proto(replace(STREAM, lossy_elections=0)).lossy_elections == 0
