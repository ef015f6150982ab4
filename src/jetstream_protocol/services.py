"""The services of the gRPC API with their methods, as proto/ defines them, and stubs to call them.

Imports no gRPC: who makes a stub has a channel.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from jetstream_protocol.generated import api_pb2, consumers_pb2, cursors_pb2, groups_pb2

PACKAGE: Final = "jetstream.v1"


class Method(NamedTuple):
    """path: as callers name it. kind: as gRPC calls it, `unary_unary` or `unary_stream`."""

    path: str
    kind: str
    request: type[Message]
    answer: type[Message]


def _method(method: MethodDescriptor) -> Method:
    kind = "_".join(
        "stream" if has_many else "unary"
        for has_many in (method.client_streaming, method.server_streaming)
    )
    return Method(
        f"/{method.containing_service.full_name}/{method.name}",
        kind,
        GetMessageClass(method.input_type),
        GetMessageClass(method.output_type),
    )


SERVICES: Final = {
    service.name: {method.name: _method(method) for method in service.methods}
    for file in (api_pb2, consumers_pb2, cursors_pb2, groups_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
}
"""The methods of each service, by name."""
METHODS: Final = {
    method.request: method for methods in SERVICES.values() for method in methods.values()
}
"""By the type of their request: no two methods share one."""


class Stub:
    """Has the methods of a service as callables of a channel, of grpc or of grpc.aio."""

    def __init__(self, service: str, channel: Any) -> None:
        self._methods = SERVICES[service]
        self._channel = channel

    def __getattr__(self, name: str) -> Any:
        if name not in self._methods:
            raise AttributeError(name)
        return callable_of(self._channel, self._methods[name])


def callable_of(channel: Any, method: Method) -> Any:
    """A call of the method over a channel."""
    make = getattr(channel, method.kind)
    return make(method.path, method.request.SerializeToString, method.answer.FromString)
