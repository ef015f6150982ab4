"""One gRPC call to one server, awaited on any event loop.

gRPC's own asyncio has one poller for all loops of a process, and complains on standard error when
one of them is closed or two are used at a time. Its plain channels do not have these problems: they
answer in their own thread, which passes the answer to the waiting loop.

No other module of the client imports gRPC. This one first tells it not to log.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import Any

# gRPC's core writes to standard error past all logging. It looks once, before its first use.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc
from google.protobuf.message import DecodeError, Message

from jetstream_client.values.tls import TlsConfig
from jetstream_protocol.channels import MADE_AT_KEY, REVISION_KEY, reconnect_options
from jetstream_protocol.errors import (
    InternalError,
    InvalidRequestError,
    JetstreamError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnavailableError,
    from_trailers,
)
from jetstream_protocol.services import METHODS, callable_of

_REFUSED_UNSEEN = ("Concurrent RPC limit", "Too many pending requests")
"""How gRPC itself refuses a call that a server has no room for: with RESOURCE_EXHAUSTED, as it does
what is too large, which is too large the next time, too."""

_ANSWER_OPTION = ("grpc.max_receive_message_length", 64 * 1024 * 1024)


def connect(address: str, tls: TlsConfig | None = None) -> grpc.Channel:
    """Raises InvalidRequestError for files that TLS cannot use."""
    options = (_ANSWER_OPTION, *reconnect_options(over_tls=tls is not None))
    if tls is None:
        return grpc.insecure_channel(address, options=options)
    credentials = grpc.ssl_channel_credentials(*tls.contents())
    return grpc.secure_channel(address, credentials, options=options)


def answer_class(request: Message) -> type[Message]:
    """The class of the answers to a request."""
    return METHODS[type(request)].answer


def _call_of(channel: grpc.Channel, request: Message) -> Any:
    """The call that takes this request."""
    return callable_of(channel, METHODS[type(request)])


async def ask(
    channel: grpc.Channel,
    request: Message,
    timeout: float,
    address: str,
    token: str = "",
    *,
    known: int = 0,
    made_at: int = 0,
    reached: Callable[[int], None] = lambda _: None,
) -> Message:
    """What the server at `address` answers. Raises JetstreamError. Cancelled, it cancels too.
    token: identifies the caller. known, made_at: the revision of the metadata that it knows; see
    `REVISION_KEY`, `MADE_AT_KEY`. reached: called with that of the answer."""
    loop = asyncio.get_running_loop()
    answered: asyncio.Future[None] = loop.create_future()
    metadata = _metadata(token, known)
    if made_at:
        metadata.append((MADE_AT_KEY, str(made_at)))
    call = _call_of(channel, request).future(request, timeout=timeout, metadata=metadata)

    def tell() -> None:
        if not answered.done():
            answered.set_result(None)

    def hand_over(_: object) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(tell)

    call.add_done_callback(hand_over)
    try:
        await answered
    except asyncio.CancelledError:
        call.cancel()
        raise
    revision = _revision_of(call.trailing_metadata() or ())
    if revision or call.code() is grpc.StatusCode.OK:
        reached(revision)
    try:
        found: Message = call.result(0)
    except grpc.RpcError as error:
        raise to_error(error, address) from error
    return found


def _metadata(token: str, known: int) -> list[tuple[str, str]]:
    metadata = [("authorization", f"Bearer {token}")] if token else []
    if known:
        metadata.append((REVISION_KEY, str(known)))
    return metadata


def _revision_of(metadata: Iterable[tuple[str, str | bytes]]) -> int:
    """0: an earlier version answers, or none."""
    found = next((value for key, value in metadata if key == REVISION_KEY), "")
    return int(found) if found.isdigit() else 0


async def ask_for_many(
    channel: grpc.Channel,
    request: Message,
    silence: float,
    address: str,
    token: str = "",
    *,
    known: int = 0,
) -> AsyncGenerator[Message, None]:
    """Yields the answers of the server at `address` until it has no more. silence: how many seconds
    may pass without an answer. known: see `ask`. Raises JetstreamError. Closing it cancels the
    call."""
    metadata = _metadata(token, known)
    call = _call_of(channel, request)(request, metadata=metadata)
    try:
        while True:
            async with asyncio.timeout(silence):
                found: Message | None = await asyncio.to_thread(next, call, None)
            if found is None:
                return
            yield found
    except TimeoutError:
        raise LostCallError(f"{address} did not answer in time") from None
    except grpc.RpcError as error:
        raise to_error(error, address) from error
    finally:
        call.cancel()  # A thread that still waits for an answer ends.


_UNCONNECTED = ("failed to connect", "connections to all backends failing")
_UNRESOLVED = ("dns resolution", "errors resolving")
"""How gRPC says, in its newer and older versions, that a call was never sent. A connection that was
reset is another matter."""


class LostCallError(UnavailableError):
    """The call was sent and no answer came: it may or may not have been carried out."""


class UnreachedError(UnavailableError):
    """The call was never sent: there is no server."""


class RefusedError(UnreachedError):
    """The connection is refused, or there is no such host; it is not a slow answer."""


def to_error(error: Any, address: str) -> JetstreamError:
    """The error for a failed call (a grpc.RpcError): the server's own if it sent one."""
    try:
        sent = from_trailers(error.trailing_metadata())
    except DecodeError:
        return InternalError(f"{address} sent an undecodable error")
    if sent is not None:
        return sent
    status, details = error.code(), error.details() or ""
    if status is grpc.StatusCode.UNAVAILABLE:
        return _unavailable_error(details, address)
    if status is grpc.StatusCode.DEADLINE_EXCEEDED:
        return LostCallError(f"{address} did not answer in time")
    if status is grpc.StatusCode.RESOURCE_EXHAUSTED and details.startswith(_REFUSED_UNSEEN):
        return UnavailableError(f"{address} has as many calls as it takes")
    if status is grpc.StatusCode.UNIMPLEMENTED:
        return InvalidRequestError(
            f"{address} does not know this call: it runs an earlier version (see "
            "docs/operations/upgrades.md), or is no Jetstream server"
        )
    if status is grpc.StatusCode.UNAUTHENTICATED:
        return UnauthenticatedError(details)
    if status is grpc.StatusCode.PERMISSION_DENIED:
        return PermissionDeniedError(details)
    if status is grpc.StatusCode.CANCELLED:
        return LostCallError(f"{address} cancelled the call: {details}")
    return InternalError(f"{address} answered {status.name}: {details}")


def _unavailable_error(details: str, address: str) -> UnavailableError:
    text = details.lower()
    if any(words in text for words in _UNCONNECTED):
        if "refused" in text:
            return RefusedError(f"cannot reach {address}: connection refused")
        return UnreachedError(f"cannot reach {address}: it does not answer")
    if any(words in text for words in _UNRESOLVED):
        return RefusedError(f"cannot reach {address}: its name is not known")
    return LostCallError(f"lost the connection to {address}: {details}")
