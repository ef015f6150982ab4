"""Messages of Protobuf as schemas of streams: the columns, and how the values stand in bytes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FeatureSet,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)
from google.protobuf.message import DecodeError

from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.layouts import IMPLICIT, OPTIONAL, PARTS_MAX, REPEATED, Layout, Part
from jetstream_protocol.schema import (
    Field,
    ListType,
    Schema,
    StructType,
    Type,
    checked,
    renamed,
)

TIMESTAMP = ".google.protobuf.Timestamp"
_TYPES = {
    "bool": "boolean", "int32": "int", "sint32": "int", "sfixed32": "int", "uint32": "bigint",
    "fixed32": "bigint", "int64": "bigint", "uint64": "bigint", "sint64": "bigint",
    "fixed64": "bigint", "sfixed64": "bigint", "float": "double", "double": "double",
    "string": "string", "bytes": "binary", "enum": "string",
}  # fmt: skip
_INCLUDE = "protoc --include_imports --descriptor_set_out=FILE.binpb FILE.proto"


class _Message(NamedTuple):
    found: DescriptorProto
    file: FileDescriptorProto
    path: tuple[int, ...]


def compiled(path: Path) -> bytes:
    """The descriptors of a .proto file, by grpcio-tools or protoc. Raises InvalidRequestError."""
    if find_spec("grpc_tools") is not None:
        command = [sys.executable, "-m", "grpc_tools.protoc"]
    elif found := shutil.which("protoc"):
        command = [found]
    else:
        raise InvalidRequestError(
            f"there is neither grpcio-tools nor protoc here to read {path.name}: give --from what "
            f"{_INCLUDE} writes elsewhere"
        )
    with TemporaryDirectory() as folder:
        target = Path(folder, "descriptors")
        options = [f"--proto_path={path.parent}", "--include_imports"]
        options += [f"--descriptor_set_out={target}", str(path)]
        done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
        if done.returncode:
            raise InvalidRequestError(f"{path.name} cannot be read: {done.stderr.strip()[:500]}")
        return target.read_bytes()


def from_protobuf(descriptors: bytes, message: str | None = None) -> Schema:
    """descriptors: a FileDescriptorSet, the file that counts last. message: its name; None: there
    is only one. Raises InvalidRequestError for what columns cannot follow."""
    try:
        files = FileDescriptorSet.FromString(descriptors).file
    except DecodeError as error:
        raise InvalidRequestError(f"the file has no descriptors of Protobuf: {error}") from error
    reader = _Reader(files)
    name = _chosen(reader.messages, files[-1] if files else FileDescriptorProto(), message)
    fields, parts = reader.fields(name, "")
    layout = Layout(reader.messages[name].path, parts)
    return checked(Schema(tuple(map(renamed, fields)), "protobuf", (layout,)))


def _chosen(messages: dict[str, _Message], last: FileDescriptorProto, wanted: str | None) -> str:
    if wanted is None:
        names = [name for name, each in messages.items() if each.file.name == last.name]
        found = [name for name in names if len(messages[name].path) == 1]
    else:
        exact = f".{wanted.removeprefix('.')}"
        ends = [name for name in messages if name.endswith(exact)]
        found = [exact] if exact in messages else ends
    if len(found) != 1:
        names = sorted(name.removeprefix(".") for name in found or messages)
        raise InvalidRequestError(f"say which message: --message {' or '.join(names[:20])}")
    return found[0]


class _Reader:
    def __init__(self, files: Iterable[FileDescriptorProto]) -> None:
        self.messages: dict[str, _Message] = {}
        self._enums: dict[str, EnumDescriptorProto] = {}
        self._open: list[str] = []
        self._count = 0
        for file in files:
            package = f".{file.package}" if file.package else ""
            self._add(file, file.message_type, file.enum_type, package, ())

    def _add(
        self,
        file: FileDescriptorProto,
        messages: Iterable[DescriptorProto],
        enums: Iterable[EnumDescriptorProto],
        package: str,
        path: tuple[int, ...],
    ) -> None:
        for enum in enums:
            self._enums[f"{package}.{enum.name}"] = enum
        for at, each in enumerate(messages):
            name = f"{package}.{each.name}"
            self.messages[name] = _Message(each, file, (*path, at))
            self._add(file, each.nested_type, each.enum_type, name, (*path, at))

    def fields(self, name: str, where: str) -> tuple[tuple[Field, ...], tuple[Part, ...]]:
        if name in self._open:
            raise InvalidRequestError(
                f"{where} holds {name[1:]} within itself, which columns cannot follow"
            )
        if name not in self.messages:
            raise InvalidRequestError(f"{where}: {name[1:]} is not in the file: {_INCLUDE}")
        self._open.append(name)
        message = self.messages[name]
        fields, parts = [], []
        for each in message.found.field:
            self._count += 1
            if self._count > PARTS_MAX:
                raise InvalidRequestError(f"the message has more than {PARTS_MAX} fields")
            inner = f"{where}.{each.name}" if where else each.name
            label, required = _presence(each, message)
            kind, part = self._value(each, label, inner)
            fields.append(Field(each.name, kind, required))
            parts.append(part)
        self._open.pop()
        return tuple(fields), tuple(parts)

    def _value(self, found: FieldDescriptorProto, label: str, where: str) -> tuple[Type, Part]:
        kind = FieldDescriptorProto.Type.Name(found.type).removeprefix("TYPE_").lower()
        args: tuple[str, ...] = ()
        parts: tuple[Part, ...] = ()
        made: Type
        if _is_group(found, self.messages[self._open[-1]].file):
            kind = "group"
        if kind == "message" and found.type_name == TIMESTAMP:
            made = kind = "timestamp"
        elif kind == "message":
            fields, parts = self.fields(found.type_name, where)
            made = StructType(fields)
        elif kind in _TYPES:
            made = _TYPES[kind]
        else:
            raise InvalidRequestError(f"{where} is a {kind}, which columns cannot follow")
        if kind == "enum":
            enum = self._enums.get(found.type_name)
            if enum is None:
                raise InvalidRequestError(f"{where}: {found.type_name[1:]} is not in the file")
            args = tuple(word for each in enum.value for word in (each.name, str(each.number)))
        if label == REPEATED:
            made = ListType(made)
        return made, Part(kind, found.name, found.number, label, args, parts)


def _presence(found: FieldDescriptorProto, message: _Message) -> tuple[str, bool]:
    """The label of a field, and whether it must be there."""
    if found.label == FieldDescriptorProto.LABEL_REPEATED:
        return REPEATED, False
    if message.found.options.map_entry:
        return IMPLICIT, False
    if found.HasField("oneof_index") and not found.proto3_optional:
        return f"oneof{found.oneof_index + 1}", False
    file = message.file
    if file.syntax == "editions":
        given = [each.features.field_presence for each in (found.options, file.options)]
        presence = next((each for each in given if each), FeatureSet.EXPLICIT)
        is_required = presence == FeatureSet.LEGACY_REQUIRED
        is_implicit = presence == FeatureSet.IMPLICIT
    else:
        is_required = found.label == FieldDescriptorProto.LABEL_REQUIRED
        is_implicit = file.syntax == "proto3" and not found.proto3_optional
    holds_message = found.type == FieldDescriptorProto.TYPE_MESSAGE
    return IMPLICIT if is_implicit and not holds_message else OPTIONAL, is_required


def _is_group(found: FieldDescriptorProto, file: FileDescriptorProto) -> bool:
    """Whether a message stands between two tags, and has no length."""
    given = [each.features.message_encoding for each in (found.options, file.options)]
    return next((each for each in given if each), None) == FeatureSet.DELIMITED
