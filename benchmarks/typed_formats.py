"""The order of eight fields that `typed` measures, in each format that a schema can have."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from io import BytesIO
from typing import Any, Final

import fastavro
import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

from jetstream_client.reading.avro_schemas import from_avro
from jetstream_client.reading.protobuf_schemas import from_protobuf
from jetstream_protocol.schema import Schema, parse
from jetstream_protocol.typed_columns import arrow_type

SCHEMA: Final = (
    "id bigint, customer string, price double, count int, country string, at timestamp, "
    "paid boolean, note string"
)
_AVRO: Final = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": name, "type": kind}
        for name, kind in (
            ("id", "long"),
            ("customer", "string"),
            ("price", "double"),
            ("count", "int"),
            ("country", "string"),
            ("at", {"type": "long", "logicalType": "timestamp-micros"}),
            ("paid", "boolean"),
            ("note", ["null", "string"]),
        )
    ],
}
_KINDS: Final = ("int64", "string", "double", "int32", "string", "message", "bool", "string")


def _avro() -> tuple[Schema, Callable[[dict[str, Any]], bytes]]:
    parsed = fastavro.parse_schema(_AVRO)

    def write(order: dict[str, Any]) -> bytes:
        into = BytesIO(b"\0\0\0\0\7")
        into.seek(5)
        fastavro.schemaless_writer(into, parsed, {**order, "at": _moment(order)})
        return into.getvalue()

    return from_avro(json.dumps(_AVRO), 7), write


def _protobuf() -> tuple[Schema, Callable[[dict[str, Any]], bytes]]:
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", syntax="proto3")
    needed = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(needed)
    file.dependency.append(needed.name)
    message = file.message_type.add(name="Order")
    names = [each["name"] for each in _AVRO["fields"]]  # type: ignore[index]
    for number, (name, kind) in enumerate(zip(names, _KINDS, strict=True), 1):
        field = message.field.add(name=name, number=number, label="LABEL_OPTIONAL")
        field.type = descriptor_pb2.FieldDescriptorProto.Type.Value(f"TYPE_{kind.upper()}")
        if kind == "message":
            field.type_name = ".google.protobuf.Timestamp"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(needed)
    pool.Add(file)
    made = message_factory.GetMessageClass(pool.FindMessageTypeByName("Order"))
    descriptors = descriptor_pb2.FileDescriptorSet(file=[needed, file]).SerializeToString()

    def write(order: dict[str, Any]) -> bytes:
        return bytes(made(**{**order, "at": _moment(order)}).SerializeToString())

    return from_protobuf(descriptors, "Order"), write


def _moment(order: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(order["at"])


def _write_json(order: dict[str, Any]) -> bytes:
    return json.dumps(order, separators=(",", ":")).encode()


def _arrow(is_stream: bool) -> tuple[Schema, Callable[[dict[str, Any]], bytes]]:
    schema = parse(f"{SCHEMA} using arrow")
    kinds = pa.schema([(each.name, arrow_type(each.type)) for each in schema.fields])

    def write(order: dict[str, Any]) -> bytes:
        row = pa.RecordBatch.from_pylist([{**order, "at": _moment(order)}], kinds)
        if not is_stream:
            return bytes(row.serialize())
        into = pa.BufferOutputStream()
        with pa.ipc.new_stream(into, kinds) as writer:
            writer.write_batch(row)
        return bytes(into.getvalue())

    return schema, write


FORMATS: Final[dict[str, tuple[Schema, Callable[[dict[str, Any]], bytes]]]] = {
    "JSON": (parse(SCHEMA), _write_json),
    "Avro": _avro(),
    "Protobuf": _protobuf(),
    "Arrow, with its schema": _arrow(True),
    "Arrow, a batch alone": _arrow(False),
}
