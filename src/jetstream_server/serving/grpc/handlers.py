"""What gRPC's server calls for each method of a service."""

from __future__ import annotations

import grpc

from jetstream_protocol.services import PACKAGE, SERVICES


def handlers_of(service: str, behaviour: object) -> grpc.GenericRpcHandler:
    """behaviour: has a method for each of the service; one that it lacks is unknown to callers."""
    handlers = {
        name: getattr(grpc, f"{method.kind}_rpc_method_handler")(
            getattr(behaviour, name), method.request.FromString, method.answer.SerializeToString
        )
        for name, method in SERVICES[service].items()
        if hasattr(behaviour, name)
    }
    return grpc.method_handlers_generic_handler(f"{PACKAGE}.{service}", handlers)
