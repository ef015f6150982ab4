"""Channels to the gRPC ports of nodes, this node's included: one per address. It is opened when it
is first needed, and again when there are new certificates."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import grpc
from google.protobuf.message import Message
from grpc import aio

from jetstream_protocol.channels import REVISION_KEY, reconnect_options
from jetstream_protocol.errors import JetstreamError, UnavailableError, from_trailers
from jetstream_protocol.services import METHODS, callable_of
from jetstream_server.background import end_tasks
from jetstream_server.net.certificates import Certificates
from jetstream_server.serving.grpc.grpc_loop import GrpcLoop

RESPONSE_BYTES_MAX = 128 * 1024 * 1024
"""What a node sends, and takes as an answer. With gRPC's own limit, of 4 MiB, the states of some
hundred consumers could not be taken over."""
CLOSE_SECONDS = 10.0
"""How long calls on a replaced channel may go on."""


class NodeChannels:
    """certificates: for TLS on the nodes' ports; None: the ports are plain."""

    def __init__(self, grpc_loop: GrpcLoop, certificates: Certificates | None) -> None:
        self._loop = grpc_loop
        self._certificates = certificates
        self._generation = 0
        self._channels: dict[str, aio.Channel] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def call(
        self,
        address: str,
        request: Message,
        *,
        metadata: Sequence[tuple[str, str]],
        seconds: float,
        node: str,
        told: Callable[[int], None] | None = None,
    ) -> Any:
        """Return the answer to a call from the node's loop. node: the called node's name in errors.
        told: called with the revision of the metadata there, 0 if it does not say. Raises the
        JetstreamError of the answer, and UnavailableError without an answer within `seconds`."""

        async def on_grpc_loop() -> tuple[Any, int]:
            make = callable_of(self._channel(address), METHODS[type(request)])
            call = make(request, timeout=seconds, metadata=metadata)
            found = await call
            return found, 0 if told is None else _revision_of(await call.trailing_metadata())

        try:
            found, revision = await self._loop.run(on_grpc_loop())
        except aio.AioRpcError as error:
            raise _call_error(error, node) from error
        if told is not None:
            told(revision)
        return found

    async def close(self) -> None:
        await self._loop.run(self._close())

    # On gRPC's loop.

    def _channel(self, address: str) -> aio.Channel:
        if self._certificates is not None and self._generation != self._certificates.generation:
            self._generation = self._certificates.generation
            self._replace_channels()
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = self._open(address)
        return channel

    def _open(self, address: str) -> aio.Channel:
        is_tls = self._certificates is not None
        options: list[tuple[str, int]] = [
            ("grpc.max_receive_message_length", RESPONSE_BYTES_MAX),
            *reconnect_options(over_tls=is_tls),
        ]
        if self._certificates is None:
            return aio.insecure_channel(address, options=options)
        pem = self._certificates.pem
        credentials = grpc.ssl_channel_credentials(pem.ca or None, pem.key, pem.certificate)
        return aio.secure_channel(address, credentials, options=options)

    def _replace_channels(self) -> None:
        for channel in self._channels.values():
            task = asyncio.get_running_loop().create_task(channel.close(CLOSE_SECONDS))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
        self._channels.clear()

    async def _close(self) -> None:
        await end_tasks(*self._closing)
        for channel in self._channels.values():
            await channel.close()


def _revision_of(trailers: Iterable[tuple[str, str | bytes]]) -> int:
    found = next((value for key, value in trailers if key == REVISION_KEY), "")
    return int(found) if found.isdigit() else 0


def _call_error(error: aio.AioRpcError, node: str) -> JetstreamError:
    sent = from_trailers(error.trailing_metadata())
    if sent is not None:
        return sent
    if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
        return UnavailableError(f"{node} does not answer: {error.details()}; try again")
    return UnavailableError(f"{node} failed: {error.details()}")
