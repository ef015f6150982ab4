"""The gRPC side: one call, over whichever server answers, with errors as their classes.

Which attempts may follow which failures is decided by `next_step`, a pure function:

* a server that cannot be reached did nothing: the next one is asked, with back-off;
* a retriable error did nothing either, by its definition (jetstream_protocol.errors);
* a redirect names the node to ask instead;
* no answer in time, or a connection lost in the middle, says nothing about what was done. Calls
  that may be repeated are; all calls of the API may (a create finds its own stream, a delete goes
  by id, and ids are never used again). When time runs out on such a failure, a call that changes
  something ends with UnknownOutcomeError, a read with UnavailableError.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message
from grpc import aio

from jetstream_client._config import ClientConfig
from jetstream_client._servers import Servers
from jetstream_protocol.errors import (
    InternalError,
    InvalidRequestError,
    JetstreamError,
    NotLeaderError,
    NotReplicaError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnavailableError,
    UnknownOutcomeError,
    from_proto,
)
from jetstream_protocol.generated import api_pb2, api_pb2_grpc, common_pb2

_ERROR_KEY = "jetstream-error-bin"
_BACKOFF_FIRST = 0.05
_BACKOFF_MAX = 1.0
_REDIRECTS_MAX = 8  # In a row and without waiting: two nodes may each think the other leads.
_REFUSED_UNSEEN = ("Concurrent RPC limit", "Too many pending requests")
"""How gRPC itself refuses a call that a server has no room for: with RESOURCE_EXHAUSTED, as it does
what is too large, which is too large the next time, too."""

_CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
    # gRPC's own reconnect back-off (to 120 s) would outlast a failover.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_http_proxy", 0),
)

_Answer = TypeVar("_Answer", bound=Message)
Rpc = Callable[["Stubs"], Any]
"""Picks the method to call, for example `lambda stubs: stubs.streams.CreateStream`."""


@dataclass(frozen=True, slots=True)
class Stubs:
    """The services of one server."""

    channel: aio.Channel
    streams: Any
    reads: Any
    cluster: Any

    @classmethod
    def connect(cls, address: str) -> Stubs:
        channel = aio.insecure_channel(address, options=_CHANNEL_OPTIONS)
        return cls(
            channel,
            api_pb2_grpc.StreamsStub(channel),
            api_pb2_grpc.ReadsStub(channel),
            api_pb2_grpc.ClusterStub(channel),
        )


_UNCONNECTED = ("failed to connect", "connections to all backends failing")
_UNRESOLVED = ("dns resolution", "errors resolving")
"""How gRPC says, in its newer and older versions, that a call was never sent. A connection that was
reset is another matter."""


class LostCallError(UnavailableError):
    """The call was sent and no answer came: it may or may not have been carried out."""


class UnreachedError(UnavailableError):
    """The call was never sent: nobody is there."""


def to_error(error: aio.AioRpcError, address: str) -> JetstreamError:
    """What a failed call means: the server's own error where it sent one."""
    trailers = error.trailing_metadata()
    for key, value in trailers or ():
        if key == _ERROR_KEY and isinstance(value, bytes):
            try:
                return from_proto(common_pb2.Error.FromString(value))
            except DecodeError:
                return InternalError(f"{address} sent an undecodable error")
    status, details = error.code(), error.details() or ""
    if status is grpc.StatusCode.UNAVAILABLE:
        said = details.lower()
        if any(words in said for words in _UNCONNECTED):
            return UnreachedError(f"cannot reach {address}")
        if any(words in said for words in _UNRESOLVED):
            return UnreachedError(f"cannot reach {address}: its name is not known")
        return LostCallError(f"lost the connection to {address}: {details}")
    if status is grpc.StatusCode.DEADLINE_EXCEEDED:
        return LostCallError(f"{address} did not answer in time")
    if status is grpc.StatusCode.RESOURCE_EXHAUSTED and details.startswith(_REFUSED_UNSEEN):
        return UnavailableError(f"{address} has as many calls as it takes")
    if status is grpc.StatusCode.UNIMPLEMENTED:
        return InvalidRequestError(f"{address} does not know this call: is it a Jetstream server?")
    if status is grpc.StatusCode.UNAUTHENTICATED:
        return UnauthenticatedError(details)
    if status is grpc.StatusCode.PERMISSION_DENIED:
        return PermissionDeniedError(details)
    if status is grpc.StatusCode.CANCELLED:
        return LostCallError(f"{address} cancelled the call: {details}")
    return InternalError(f"{address} answered {status.name}: {details}")


@dataclass(frozen=True, slots=True)
class Step:
    """What to do after a failed attempt: ask `address` (None: the next server) after `wait`."""

    address: str | None
    wait: float


def next_step(error: JetstreamError, attempt: int, chance: float) -> Step | None:
    """None: give up, the error is final. `attempt` counts from 1; `chance` is in [0, 1)."""
    if not error.retriable:
        return None
    backoff = min(_BACKOFF_MAX, _BACKOFF_FIRST * 2.0 ** min(attempt - 1, 10))
    wait = backoff * (0.5 + chance / 2)
    if isinstance(error, NotLeaderError | NotReplicaError) and error.redirect is not None:
        at_once = attempt <= _REDIRECTS_MAX
        return Step(error.redirect.grpc or None, 0.0 if at_once else wait)
    return Step(None, wait)


def outcome(error: JetstreamError, what: str, changes: bool, lost: bool) -> JetstreamError:
    """What the caller is told when no attempt is left.

    lost: some attempt may have been carried out. changes: the call does more than read.
    """
    if changes and lost and isinstance(error, UnavailableError):
        return UnknownOutcomeError(
            f"the outcome of {what} is unknown: {error.message}; it may or may not have been done, "
            "and doing it again is safe"
        )
    return error


def reason(
    error: JetstreamError, said: JetstreamError | None, unreached: Iterable[str]
) -> JetstreamError:
    """Why a call failed whose last attempt failed with `error`.

    said: what a server answered to an earlier attempt; it tells more than that another is dead.
    """
    if not isinstance(error, UnreachedError | LostCallError):
        return error
    addresses = list(unreached)
    if said is None and isinstance(error, UnreachedError) and len(addresses) > 1:
        return UnreachedError(f"cannot reach any of {', '.join(addresses)}")
    return said or error


class ControlPlane:
    """Calls to the cluster. Belongs to the event loop it is first used on."""

    def __init__(self, config: ClientConfig) -> None:
        self.timeout = config.timeout
        self._stubs: dict[str, Stubs] = {}
        self._servers = Servers(config.servers)
        self._learning: asyncio.Task[None] | None = None

    async def call(
        self,
        rpc: Rpc,
        request: Message,
        answer: type[_Answer],
        *,
        what: str,
        changes: bool = False,
        done_already: type[JetstreamError] | None = None,
        address: str | None = None,
        timeout: float | None = None,
    ) -> _Answer:
        """Ask until a server answers or `timeout` (the configured one) has passed.

        what: the call in words, for errors. changes: see `outcome`. done_already: the error that
        means that an attempt whose answer was lost has done it. address: whom to ask first.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (self.timeout if timeout is None else timeout)
        address = address or self._servers.first
        lost = False
        said: JetstreamError | None = None
        unreached: dict[str, None] = {}
        attempt = 0
        while True:
            attempt += 1
            try:
                found = await self._attempt(rpc, request, address, deadline - loop.time())
                assert isinstance(found, answer)
            except JetstreamError as error:
                if lost and done_already is not None and isinstance(error, done_already):
                    return answer()
                if isinstance(error, UnreachedError):
                    unreached[address] = None
                elif isinstance(error, LostCallError):
                    lost = True
                elif not isinstance(error, NotLeaderError | NotReplicaError):
                    said = error
                step = next_step(error, attempt, random.random())
                if step is None or loop.time() + step.wait >= deadline:
                    raise outcome(reason(error, said, unreached), what, changes, lost) from error
                address = step.address or self._servers.after(address)
                await asyncio.sleep(step.wait)
            else:
                self._learn_from(found)
                return found

    def _learn_from(self, answer: Message) -> None:
        """Somebody answers: the time to learn who else might, for when nobody given does."""
        if isinstance(answer, api_pb2.DescribeClusterResponse):
            self._servers.learn(node.address.grpc for node in answer.nodes)
        elif self._servers.needs_learning and (self._learning is None or self._learning.done()):
            self._learning = asyncio.get_running_loop().create_task(self._learn())

    async def _learn(self) -> None:
        with suppress(JetstreamError):  # The next answer is another occasion.
            await self.call(
                lambda stubs: stubs.cluster.DescribeCluster,
                api_pb2.DescribeClusterRequest(),
                api_pb2.DescribeClusterResponse,
                what="learning the nodes",
            )

    async def _attempt(self, rpc: Rpc, request: Message, address: str, timeout: float) -> Message:
        stubs = self._stubs.get(address)
        if stubs is None:
            stubs = self._stubs[address] = Stubs.connect(address)
        # One silent server of several must not use up the time of the others.
        share = timeout / 2 if len(self._servers) > 1 else timeout
        try:
            found: Message = await rpc(stubs)(request, timeout=max(share, 0.001))
        except aio.AioRpcError as error:
            raise to_error(error, address) from error
        return found

    async def close(self) -> None:
        if self._learning is not None:
            self._learning.cancel()
            await asyncio.gather(self._learning, return_exceptions=True)
        stubs, self._stubs = self._stubs, {}
        for server in stubs.values():
            await server.channel.close()
