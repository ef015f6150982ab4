"""gRPC calls: one call to any server that answers; errors are raised as their classes.

`next_step`, a pure function, decides which attempt may follow a failure:

* A server that cannot be reached did nothing: the next one is asked, with back-off.
* A retriable error means, by its definition (jetstream_protocol.errors), that nothing was done.
* A redirect names the node to ask instead.
* If no answer came in time, or the connection was lost in the middle, the outcome is unknown.
  Then calls that may be repeated are repeated, and all calls of the API may (a create finds its own
  stream, a delete goes by id, and ids are never used again). When time runs out after such a
  failure, a call that changes something ends with UnknownOutcomeError, and a read with
  UnavailableError.

Until a server has answered for the first time, it is more likely that an address is wrong than that
a server is away. So if every given address refuses connections, or is no gRPC port, the call fails
at once. After that a client survives restarts of its servers, within its timeout.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import aclosing, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from google.protobuf.message import Message

from jetstream_client._closing import ClientClosedError, end_tasks
from jetstream_client._log import logger
from jetstream_client.transport.connection_events import ConnectionEvents
from jetstream_client.transport.grpc_calls import (
    LostCallError,
    RefusedError,
    UnreachedError,
    answer_class,
    ask,
    ask_for_many,
    connect,
)
from jetstream_client.transport.home import Home
from jetstream_client.transport.port_probe import what_listens
from jetstream_client.transport.recent import ADDRESSES_MAX, Recent
from jetstream_client.transport.retries import next_step
from jetstream_client.transport.servers import Servers
from jetstream_client.transport.tls_probe import speaks_tls, why_tls_fails
from jetstream_client.values.config import ClientConfig
from jetstream_protocol.errors import (
    InvalidRequestError,
    JetstreamError,
    NotLeaderError,
    NotReplicaError,
    UnauthenticatedError,
    UnavailableError,
    UnknownOutcomeError,
)
from jetstream_protocol.generated import api_pb2, consumers_pb2

if TYPE_CHECKING:
    import grpc

_DATED = (api_pb2.DESCRIPTOR, consumers_pb2.DESCRIPTOR)
"""Calls that are refused if what they change was changed after they were sent."""
LEARN_AGAIN_SECONDS = 120.0
"""After about that time the nodes are asked for again: all that were known may leave one day, and a
client that only publishes or reads asks the control plane nothing for hours."""


class WrongPortError(RefusedError):
    """Something other than gRPC listens on that port; the message says what."""


class TlsFailedError(RefusedError):
    """One end speaks TLS and the other does not, or a certificate is refused."""


def outcome_error(error: JetstreamError, what: str, changes: bool, lost: bool) -> JetstreamError:
    """The error for the caller when no attempt is left. lost: an attempt may have been carried out.
    changes: the call does more than read.
    """
    if changes and lost and isinstance(error, UnavailableError):
        return UnknownOutcomeError(
            f"the outcome of {what} is unknown: {error.message}; it may or may not have been done, "
            "and doing it again is safe"
        )
    return error


def cause_error(
    error: JetstreamError, answered: JetstreamError | None, unreached: Iterable[UnreachedError]
) -> JetstreamError:
    """Why a call failed whose last attempt failed with `error`, as a public class of error.

    answered: what a server answered to an earlier attempt; that tells more than that another one is
    dead. unreached: the last error of each server that could not be reached.
    """
    if not isinstance(error, UnreachedError | LostCallError):
        return error
    if answered is not None:
        return answered
    if isinstance(error, LostCallError):
        return UnavailableError(error.message)
    messages = [each.message for each in unreached] or [error.message]
    return UnavailableError("; ".join(dict.fromkeys(messages)))


def first_contact(
    given: Iterable[str], unreached: dict[str, UnreachedError]
) -> JetstreamError | None:
    """The error to raise at once if no server has ever answered; None: keep trying."""
    failures = [unreached.get(address) for address in given]
    if not all(isinstance(each, RefusedError) for each in failures):
        return None
    messages = "; ".join(dict.fromkeys(each.message for each in failures if each is not None))
    if all(isinstance(each, WrongPortError) for each in failures):
        return InvalidRequestError(messages)
    if all(isinstance(each, TlsFailedError) for each in failures):
        return UnauthenticatedError(messages)
    return UnavailableError(
        f"{messages}. Is a server running there? One to try things on: jetstream-server --dev"
    )


class ControlPlane:
    """Calls to the cluster. Belongs to the event loop it is first used on.

    trouble: why the last attempt of any call failed; "" once one has succeeded.
    """

    def __init__(self, config: ClientConfig, events: ConnectionEvents | None = None) -> None:
        self._events = events or ConnectionEvents()
        self.home = Home()
        self.timeout = config.timeout
        self.trouble = ""
        self._total_timeout = config.total_timeout
        self._ends_at: float | None = None  # of the loop's clock, with a total timeout
        self._channels: Recent[str, grpc.Channel] = Recent(ADDRESSES_MAX)
        self._calls: Counter[grpc.Channel] = Counter()  # under way
        self._servers = Servers(config.servers)
        self._given = config.servers
        self._tls_files: dict[str, object] = {}
        # The highest of the metadata that an answer has told; None: there was no answer.
        self._revision: int | None = None
        self._retired: list[grpc.Channel] = []
        self._config = config
        self._tls = config.tls
        self._has_met_one = config.retry_on_failed_connect
        self._in_touch: Recent[str, bool] = Recent(ADDRESSES_MAX)
        self._probed: Recent[str, str] = Recent(ADDRESSES_MAX)
        self._learning: asyncio.Task[None] | None = None
        self._learn_timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def has_met_one(self) -> bool:
        """Whether any server has answered yet, or is to be waited for."""
        return self._has_met_one

    async def call(
        self,
        request: Message,
        *,
        what: str,
        changes: bool = False,
        done_already: type[JetstreamError] | None = None,
        address: str | None = None,
        timeout: float | None = None,
        share_min: float = 0.001,
        share_first: float = math.inf,
    ) -> Any:
        """Ask until a server answers or `timeout` (by default the configured one) has passed.

        request: its type determines the method, and the type of the answer, as proto/ has them.
        what: the call in words, for errors. changes: see `outcome_error`. done_already: the error
        which means that an earlier attempt, whose answer was lost, has done it. address: the server
        to ask first. share_min: seconds; what one server may take even if less is left for the
        others. share_first: seconds; what the first server may take at most, where there are
        others; each later one may take twice as long as the one before it.
        """
        loop = self.home.here()
        deadline = self._deadline(loop.time(), self.timeout if timeout is None else timeout)
        address = address or self._servers.first
        lost = False
        answered: JetstreamError | None = None
        unreached: dict[str, UnreachedError] = {}
        is_dated = changes and request.DESCRIPTOR.file in _DATED
        if is_dated and self._revision is None:
            await self.call(api_pb2.DescribeClusterRequest(), what=what, timeout=timeout)
            self._reached(0)  # Earlier versions tell none.
        attempt = 0
        while True:
            attempt += 1
            token = self._config.current_token()
            try:
                left = deadline - loop.time()
                share = self._share(left, share_min, share_first * 2 ** min(attempt - 1, 10))
                made_at = (is_dated and self._revision) or 0
                found = await self._attempt(request, address, share, token, made_at)
            except JetstreamError as error:
                if lost and done_already is not None and isinstance(error, done_already):
                    return answer_class(request)()
                if isinstance(error, UnauthenticatedError) and self._config.has_newer_token(token):
                    lost = True  # It may have ended after the effect.
                    continue
                if isinstance(error, UnreachedError):
                    unreached[address] = error
                elif isinstance(error, LostCallError):
                    lost = True
                elif not isinstance(error, NotLeaderError | NotReplicaError):
                    answered = error
                step = next_step(error, attempt, random.random())
                hopeless = None if self._has_met_one else first_contact(self._given, unreached)
                if hopeless is not None:
                    raise hopeless from None
                if step is None or self._is_closed or loop.time() + step.wait >= deadline:
                    cause = cause_error(error, answered, unreached.values())
                    raise outcome_error(cause, what, changes, lost) from None
                if made_at == self._revision or not is_dated:
                    self._retrying(what, error, attempt)  # Otherwise its knowledge was old.
                address = step.address or self._servers.after(address)
                await asyncio.sleep(step.wait)
            else:
                self.trouble = ""
                self._learn_from(found)
                return found

    async def stream(self, request: Message, *, address: str) -> AsyncIterator[Any]:
        """Yields the answers of one server until it has no more. Raises the first JetstreamError:
        no attempt is repeated. `timeout` may pass between two answers."""
        channel = self._channels.get(address) or self._connect(address)
        with self._calling(channel):
            token = self._config.current_token()
            found = ask_for_many(
                channel, request, self.timeout, address, token, known=self._revision or 0
            )
            async with aclosing(found):
                async for each in found:
                    yield each

    def _deadline(self, now: float, timeout: float) -> float:
        if self._total_timeout is None:
            return now + timeout
        if self._ends_at is None:
            self._ends_at = now + self._total_timeout
        return min(now + timeout, self._ends_at)

    def _retrying(self, what: str, error: JetstreamError, attempt: int) -> None:
        """Log the first retry of a call; the others say the same."""
        self.trouble = error.message
        say = logger.warning if attempt == 1 else logger.debug
        say("%s: %s; trying again", what, error.message)
        if attempt == 1:
            self._events.failed(error)

    def _learn_from(self, answer: Message) -> None:
        """A server has answered: learn the other nodes now, for the time when the given ones do not
        answer."""
        if isinstance(answer, api_pb2.DescribeClusterResponse):
            self._servers.learn(node.address.grpc for node in answer.nodes)
            self._learn_later()
        elif self._servers.needs_learning:
            self._begin_learning()

    def _learn_later(self) -> None:
        if self._learn_timer is not None:
            self._learn_timer.cancel()
        if not self._is_closed:
            seconds = LEARN_AGAIN_SECONDS * (0.75 + random.random() / 2)
            loop = asyncio.get_running_loop()
            self._learn_timer = loop.call_later(seconds, self._begin_learning)

    def _begin_learning(self) -> None:
        if not self._is_closed and (self._learning is None or self._learning.done()):
            self._learning = asyncio.get_running_loop().create_task(self._learn())

    async def _learn(self) -> None:
        try:
            await self.call(api_pb2.DescribeClusterRequest(), what="learning the nodes")
        except JetstreamError:  # The next answer is another occasion.
            self._learn_later()

    def _share(self, left: float, at_least: float, at_most: float) -> float:
        """Seconds for one server. A silent one of several must not use up the others' time."""
        share = min(left / 2, at_most) if len(self._servers) > 1 else left
        return max(share, min(at_least, left), 0.001)

    async def _attempt(
        self, request: Message, address: str, share: float, token: str = "", made_at: int = 0
    ) -> Message:
        channel = self._channels.get(address) or self._connect(address)
        failed, deadline = asyncio.Event(), asyncio.get_running_loop().time() + share
        looking = asyncio.create_task(self._look(address, failed, share))
        try:
            with self._calling(channel):
                found = await ask(
                    channel,
                    request,
                    share,
                    address,
                    token,
                    known=self._revision or 0,
                    made_at=made_at,
                    reached=self._reached,
                )
        except (UnreachedError, LostCallError) as error:
            self._lost(address, error)
            self._renew(address)
            failed.set()
            raise await _explained_error(error, looking, deadline) from None
        except JetstreamError:
            self._found(address)
            raise
        finally:
            looking.cancel()
        self._found(address)
        return found

    def _reached(self, revision: int) -> None:
        self._revision = max(self._revision or 0, revision)

    def _connect(self, address: str) -> grpc.Channel:
        if self._is_closed:
            raise ClientClosedError("the client is closed")
        if self._tls is not None:
            self._tls_files[address] = self._tls.signature()
        channel = connect(address, self._tls)
        forgotten = self._channels.put(address, channel)
        if forgotten is not None:
            self._retire(*forgotten)
        return channel

    @contextmanager
    def _calling(self, channel: grpc.Channel) -> Iterator[None]:
        """A retired channel is closed when its last call has ended."""
        self._calls[channel] += 1
        try:
            yield
        finally:
            self._calls[channel] -= 1
            if not self._calls[channel]:
                del self._calls[channel]
                if channel in self._retired:
                    self._retired.remove(channel)
                    channel.close()

    def _retire(self, address: str, channel: grpc.Channel) -> None:
        self._tls_files.pop(address, None)
        self._probed.pop(address)
        if self._calls[channel]:
            self._retired.append(channel)
        else:
            channel.close()

    def _renew(self, address: str) -> None:
        """gRPC keeps the certificates with which a channel was made. If the files are new, the next
        attempt makes another channel; calls on the old one go on."""
        if self._tls is not None and self._tls.signature() != self._tls_files.get(address):
            old = self._channels.pop(address)
            if old is not None:
                self._retire(address, old)

    def _found(self, address: str) -> None:
        self._has_met_one = True
        if self._in_touch.get(address) is None:
            self._in_touch.put(address, True)
            self._events.connected("grpc", address)

    def _lost(self, address: str, error: JetstreamError) -> None:
        if address in self._in_touch:
            self._in_touch.pop(address)
            self._events.lost("grpc", address, error.message)

    async def _look(
        self, address: str, failed: asyncio.Event, seconds: float
    ) -> UnreachedError | None:
        """What the port is, if no server of ours speaks gRPC there as this client does. Begins when
        the call has failed, or has waited for half of its time: both share it."""
        if self._has_met_one:
            return None
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds / 2):
                await failed.wait()
        found = self._probed.get(address)
        if found is None:
            found = await what_listens(address)
            self._probed.put(address, found)
        if found and "gRPC" not in found:
            return WrongPortError(
                f"{address} is {found}: clients need the gRPC port, 9292 by default"
            )
        why = await self._why_tls_fails(address)
        return TlsFailedError(f"{address} {why}") if why else None

    async def _why_tls_fails(self, address: str) -> str:
        if self._tls is not None:
            return await why_tls_fails(address, self._tls)
        if await speaks_tls(address):
            return "speaks TLS: connect with tls=True or a TlsConfig (--tls or --ca, JETSTREAM_CA)"
        return ""

    async def close(self) -> None:
        """Calls under way raise UnavailableError, or UnknownOutcomeError, within a second."""
        self._is_closed = True
        if self._learn_timer is not None:
            self._learn_timer.cancel()
        await end_tasks(self._learning)
        for channel in (*self._channels.pop_all(), *self._retired):
            channel.close()
        self._retired.clear()


async def _explained_error(
    failure: UnreachedError | LostCallError,
    looking: asyncio.Task[UnreachedError | None],
    deadline: float,
) -> UnreachedError | LostCallError:
    """The error with what was found about the port, if that is known in time; otherwise the error
    itself."""
    if isinstance(failure, RefusedError):
        return failure
    with suppress(TimeoutError):
        if not looking.done():
            async with asyncio.timeout_at(deadline):
                await looking
        return looking.result() or failure
    return failure
