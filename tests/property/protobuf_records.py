"""Any messages of Protobuf that columns can follow, and what the columns have of one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from google.protobuf import descriptor_pool, message_factory, timestamp_pb2
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)
from google.protobuf.message import DecodeError, Message
from hypothesis import strategies as st

MISFIT = object()
_T = FieldDescriptorProto
SCALARS = (
    _T.TYPE_BOOL, _T.TYPE_INT32, _T.TYPE_INT64, _T.TYPE_UINT32, _T.TYPE_UINT64, _T.TYPE_SINT32,
    _T.TYPE_SINT64, _T.TYPE_FIXED32, _T.TYPE_FIXED64, _T.TYPE_SFIXED32, _T.TYPE_SFIXED64,
    _T.TYPE_FLOAT, _T.TYPE_DOUBLE, _T.TYPE_STRING, _T.TYPE_BYTES,
)  # fmt: skip
_RANGES = {
    "int32": (-(2**31), 2**31 - 1), "int64": (-(2**63), 2**63 - 1), "uint32": (0, 2**32 - 1),
    "uint64": (0, 2**64 - 1),
}  # fmt: skip
_CPP = {
    FieldDescriptor.CPPTYPE_INT32: "int32", FieldDescriptor.CPPTYPE_INT64: "int64",
    FieldDescriptor.CPPTYPE_UINT32: "uint32", FieldDescriptor.CPPTYPE_UINT64: "uint64",
}  # fmt: skip


def add_fields(draw: st.DrawFn, message: DescriptorProto, within: str, depth: int) -> None:
    names = draw(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=4, unique=True))
    numbers = draw(
        st.lists(st.integers(1, 20) | st.just(2**29 - 1), min_size=4, max_size=4, unique=True)
    )
    oneof = draw(st.booleans())
    for name, number in zip(names, numbers, strict=False):
        field = message.field.add(name=name, number=number, label=_T.LABEL_OPTIONAL)
        made = draw(st.integers(0, 9))
        if made == 0:
            field.type, field.type_name = _T.TYPE_ENUM, ".t.Color"
        elif made == 1:
            field.type, field.type_name = _T.TYPE_MESSAGE, ".google.protobuf.Timestamp"
        elif made == 2:
            entry = message.nested_type.add(name=f"{name.upper()}Entry")
            entry.options.map_entry = True
            for at, key in enumerate(("key", "value"), 1):
                kind = _T.TYPE_STRING if at == 1 else draw(st.sampled_from(SCALARS))
                entry.field.add(name=key, number=at, label=_T.LABEL_OPTIONAL, type=kind)
            field.type, field.type_name = _T.TYPE_MESSAGE, f"{within}.{entry.name}"
            field.label = _T.LABEL_REPEATED
            continue
        elif made < 5 and depth < 2:
            inner = message.nested_type.add(name=f"M{name}")
            add_fields(draw, inner, f"{within}.{inner.name}", depth + 1)
            field.type, field.type_name = _T.TYPE_MESSAGE, f"{within}.{inner.name}"
        else:
            field.type = draw(st.sampled_from(SCALARS))
        label = draw(st.integers(0, 3))
        if label == 0:
            field.label = _T.LABEL_REPEATED
            if field.type not in (_T.TYPE_STRING, _T.TYPE_BYTES, _T.TYPE_MESSAGE):
                field.options.packed = draw(st.booleans())
        elif label == 1 and oneof:
            field.oneof_index = 0
    if any(field.HasField("oneof_index") for field in message.field):
        message.oneof_decl.add(name="one")
    for field in message.field:  # Those that stand for `optional` come last.
        is_plain = field.label == _T.LABEL_OPTIONAL and field.type != _T.TYPE_MESSAGE
        if is_plain and not field.HasField("oneof_index") and draw(st.booleans()):
            field.proto3_optional = True
            field.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{field.name}")


@st.composite
def messages(draw: st.DrawFn) -> tuple[bytes, Any]:
    """The descriptors, and the class."""
    file = FileDescriptorProto(name="t.proto", package="t", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    enum = file.enum_type.add(name="Color")
    for number, name in ((0, "RED"), (1, "GREEN"), (-7, "BLUE"), (300, "GREY")):
        enum.value.add(name=name, number=number)
    message = file.message_type.add(name="Record")
    add_fields(draw, message, ".t.Record", 0)
    needed = FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(needed)
    files = FileDescriptorSet(file=[needed, file])
    return files.SerializeToString(), record_class(files)


def record_class(files: FileDescriptorSet) -> Any:
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("t.Record"))


def with_entries(descriptors: bytes) -> Any:
    """The class that has of each map all entries, as they were written."""
    files = FileDescriptorSet.FromString(descriptors)

    def tell(message: DescriptorProto) -> None:
        message.options.ClearField("map_entry")
        for each in message.nested_type:
            tell(each)

    for file in files.file:
        for message in file.message_type:
            tell(message)
    return record_class(files)


def is_list(field: Any) -> bool:
    return bool(field.is_repeated)


def is_map(field: Any) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def fill(draw: st.DrawFn, message: Message) -> None:
    for field in message.DESCRIPTOR.fields:
        if draw(st.integers(0, 2)) == 0:
            continue
        if is_map(field):
            value = field.message_type.fields_by_name["value"]
            for key in draw(st.lists(st.text(max_size=3), max_size=2)):
                getattr(message, field.name)[key] = scalar(draw, value)
        elif field.message_type is not None:
            targets = (
                [getattr(message, field.name).add() for _ in range(draw(st.integers(0, 2)))]
                if is_list(field)
                else [getattr(message, field.name)]
            )
            for target in targets:
                target.SetInParent()
                if field.message_type.full_name == "google.protobuf.Timestamp":
                    target.seconds = draw(st.integers(-62135596800 + 86400, 253402214399))
                    target.nanos = draw(st.integers(0, 999_999_999))
                else:
                    fill(draw, target)
        elif is_list(field):
            values = [scalar(draw, field) for _ in range(draw(st.integers(0, 3)))]
            getattr(message, field.name).extend(values)
        else:
            setattr(message, field.name, scalar(draw, field))


def scalar(draw: st.DrawFn, field: Any) -> Any:
    kind = field.cpp_type
    if kind in _CPP:
        least, most = _RANGES[_CPP[kind]]
        return draw(st.integers(least, most) | st.sampled_from((0, least, most)))
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return draw(st.booleans())
    if kind == FieldDescriptor.CPPTYPE_FLOAT:
        return draw(st.floats(width=32))
    if kind == FieldDescriptor.CPPTYPE_DOUBLE:
        return draw(st.floats())
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        return draw(st.sampled_from((0, 1, -7, 300, 5)))
    if field.type == FieldDescriptor.TYPE_BYTES:
        return draw(st.binary(max_size=10))
    return draw(st.text(max_size=10))


def expected(message: Message) -> dict[str, Any]:
    """The columns; MISFIT in place of what does not fit its type."""
    return {field.name: of_field(message, field) for field in message.DESCRIPTOR.fields}


def of_field(message: Message, field: Any) -> Any:
    found = getattr(message, field.name)
    if is_map(field):
        value = field.message_type.fields_by_name["value"]
        values = {key: of_value(each, value) for key, each in found.items()}
        return MISFIT if MISFIT in values.values() else values
    if is_list(field):
        each = [of_value(one, field) for one in found]
        return MISFIT if any(one is MISFIT for one in each) else each
    if field.has_presence and not message.HasField(field.name):
        return None
    return of_value(found, field)


def of_value(found: Any, field: Any) -> Any:
    if field.message_type is not None:
        if field.message_type.full_name == "google.protobuf.Timestamp":
            return moment(found)
        values = expected(found)
        return MISFIT if any(each is MISFIT for each in values.values()) else values
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        known = field.enum_type.values_by_number.get(found)
        return str(found) if known is None else known.name
    if field.cpp_type == FieldDescriptor.CPPTYPE_UINT64 and found >= 2**63:
        return MISFIT
    return found


def moment(found: Any) -> Any:
    if not 0 <= found.nanos < 10**9:
        return MISFIT
    try:
        made = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(
            seconds=found.seconds, microseconds=found.nanos // 1000
        )
    except OverflowError:
        return MISFIT
    first, last = datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC)
    return made if first <= made <= last else MISFIT


def read(cls: Any, value: bytes) -> Message | None:
    """By the other decoder; None: it takes these bytes for no message."""
    made: Message = cls()
    try:
        made.ParseFromString(value)
    except DecodeError:
        return None
    return made
