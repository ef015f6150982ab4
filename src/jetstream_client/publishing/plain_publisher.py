"""Publishing: sends an ordinary NATS message with a reply subject, and waits for the streams'
answers.

Outcomes. A publish returns the acknowledgements it waited for, or raises:
* NoStreamError at once if no stream listens on the subject;
* the error of a refusal. Refused means not stored. If the error is retriable and no other stream
  can have stored the message, it is published again until the timeout;
* UnknownOutcomeError when the timeout passes: it may or may not be stored. A message with an id is
  published again before that, because the streams recognise it. Whatever the later attempts end
  with, except an acknowledgement, the outcome stays unknown. So it is if one of several streams
  acknowledged an attempt, and the last one does not tell of that;
* any other error means that nothing was sent.

Throughput. There is no task and no timer per publish: one sweep finds those that have timed out,
and answers come through one subscription and find their publish in a dict. At most `in_flight_max`
wait for answers at a time. The timeout does not include the time that the others wait for their
turn. It includes everything else: asking the registry who listens, connecting, and retries.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from jetstream_client._closing import ClientClosedError, end_tasks, shared
from jetstream_client._log import logger
from jetstream_client.publishing.ack import OF_OTHERS, Pending, PublishResult, marked
from jetstream_client.publishing.subject_routes import (
    Place,
    SubjectRoute,
    SubjectRoutes,
    check_acks_of_group,
)
from jetstream_client.publishing.turns import Turns
from jetstream_client.transport.connection_events import ConnectionEvents
from jetstream_client.transport.home import Home
from jetstream_client.transport.nats import NatsInbox, load_nats
from jetstream_client.transport.retries import next_step
from jetstream_client.values.config import ClientConfig
from jetstream_client.values.headers import HeadersLike, check_value, outgoing
from jetstream_client.values.positions import check_offset
from jetstream_client.values.records import to_bytes, value_to_bytes
from jetstream_client.values.types import AckLevel, Payload, Value
from jetstream_protocol import envelope, header_names
from jetstream_protocol.errors import (
    InvalidRequestError,
    JetstreamError,
    PermissionDeniedError,
    UnavailableError,
    UnknownOutcomeError,
)

_CALL_GRACE_SHARE = 0.05
"""The call for a route is waited for so much longer: it says which server does not answer."""

_NOTHING = (None, None, None, None, None)

_REPEAT_SECONDS = 2.0
"""A message with an id is published again after so long without an answer."""

_SWEEP_SECONDS = 0.1
"""How late a timeout may come. Each sweep costs under a millisecond at a full window."""


_KEY_MARK, _KEY_END = "p", "-"  # Our own tokens are hexadecimal numbers.


class NobodyListensError(UnavailableError):
    """NATS had no subscriber for the message: nothing was stored."""


class PublishOptions(NamedTuple):
    """What a publish asks of its streams: the arguments of `AsyncClient.publish`."""

    acks: str | Sequence[str] = "all"
    ack_level: AckLevel | None = None
    msg_id: str | None = None
    expected_offset: int | None = None


def check_options(options: PublishOptions) -> None:
    """Raise InvalidRequestError for what cannot be asked."""
    if options.msg_id is not None:
        if not options.msg_id:
            raise InvalidRequestError("msg_id is empty: give it at least one character")
        check_value("msg_id", options.msg_id)
    if options.expected_offset is not None:
        check_offset(options.expected_offset)
    if options.ack_level not in (None, "none", "leader", "all"):
        raise InvalidRequestError(
            f"invalid ack_level {options.ack_level!r}: say none, leader or all"
        )


def message_of(
    key: Payload | None, headers: HeadersLike | None, value: Value | None, options: PublishOptions
) -> tuple[list[tuple[str, str]], bytes]:
    """The message's headers and ours, and its payload: the value, or an envelope with it and with a
    key that no header can carry. Raises InvalidRequestError."""
    _, level, msg_id, expected_offset = options
    payload = value_to_bytes(value)
    if (key, headers, level, msg_id, expected_offset) == _NOTHING and payload is not None:
        return [], payload
    check_options(options)
    pairs = outgoing(headers)
    if msg_id is not None:
        pairs.append((header_names.MSG_ID, msg_id))
    if expected_offset is not None:
        # The same number under another name: sequences count from 1, so the last sequence is the
        # next offset.
        pairs.append((header_names.EXPECTED_LAST_SEQUENCE, str(expected_offset)))
    if level is not None:
        pairs.append((header_names.ACK, level))
    if key is not None:
        text = _header_text(key)
        if text is None:
            return pairs, envelope.encode_record(payload, key=to_bytes("a key", key))
        pairs.append((header_names.KEY, text))
    if payload is None:
        pairs.append((header_names.TOMBSTONE, "true"))
    return pairs, payload or b""


def _header_text(key: Payload) -> str | None:
    """The key as a header carries it; None: none carries it as it is."""
    try:
        text = (to_bytes("a key", key) or b"").decode()
        check_value("the key", text)
    except (UnicodeDecodeError, InvalidRequestError):
        return None
    return text


def unknown_outcome_error(subject: str, why: str) -> UnknownOutcomeError:
    return UnknownOutcomeError(
        f"the outcome of the publish to {subject!r} is unknown: {why}; "
        "the message may or may not have been stored"
    )


def doubtful_error(subject: str, error: JetstreamError) -> UnknownOutcomeError:
    """What the last refusal says of a message that an earlier attempt may have stored."""
    why = f"an earlier attempt may have succeeded, the last one: {error.message}"
    return unknown_outcome_error(subject, why)


class Listener(NamedTuple):
    """Gets the answers to tokens that begin with its key; see NatsInbox."""

    on_answer: Callable[[str, bytes | None], None]
    on_refusal: Callable[[str, JetstreamError], None]


class PlainPublisher:
    """Publishes one message at a time, over the connection that batched publishers use too.

    Belongs to the event loop it is first used on. `nats_urls` asks where NATS is; `trouble` says
    why no server answers.
    """

    def __init__(
        self,
        config: ClientConfig,
        routes: SubjectRoutes,
        nats_urls: Callable[[], Awaitable[Sequence[str]]],
        trouble: Callable[[], str],
        events: ConnectionEvents,
    ) -> None:
        self.events = events
        self._trouble = trouble
        self._config = config
        self._routes = routes
        self._nats_urls = nats_urls
        self._inbox: NatsInbox | None = None
        self._connecting_inbox: NatsInbox | None = None  # Also after a failed attempt.
        self._loading: asyncio.Future[Any] | None = None
        self._connecting: asyncio.Task[NatsInbox] | None = None
        self._pending: dict[str, Pending] = {}
        self._token = 0
        self._turns = random.randrange(1 << 16)  # So that not all clients begin with one stream.
        self.home = Home()
        self.turns = Turns(config.in_flight_max)
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._listeners: dict[str, Listener] = {}
        self._listened = 0
        self.limits: set[Callable[[int], None]] = set()
        """Called with the `max_payload` of each new connection."""
        self._closed = False

    @property
    def timeout(self) -> float:
        """Seconds that a call may take."""
        return self._config.timeout

    def listen(
        self,
        on_answer: Callable[[str, bytes | None], None],
        on_refusal: Callable[[str, JetstreamError], None],
    ) -> str:
        """A key to put in front of the caller's own tokens; answers come without it, until
        `forget`."""
        self._listened += 1
        key = f"{_KEY_MARK}{self._listened:x}{_KEY_END}"
        self._listeners[key] = Listener(on_answer, on_refusal)
        return key

    def forget(self, key: str) -> None:
        self._listeners.pop(key, None)

    async def publish(
        self,
        subject: str,
        value: Value | None,
        key: Payload | None,
        headers: HeadersLike | None,
        options: PublishOptions,
        timeout: float,
    ) -> PublishResult:
        """See AsyncClient.publish.

        One coroutine long, on the usual path: with thousands waiting in it, every object that
        each of them keeps alive is one more for the garbage collector to visit.
        """
        sent_headers, payload = message_of(key, headers, value, options)
        if not self.turns.take():
            await self.turns.wait()
        try:
            loop = self.home.here()
            if self._inbox is None:
                await self.loaded()
            deadline = loop.time() + timeout
            route = self._routes.known(subject) or await self.route(subject, deadline)
            target = subject
            if route.group is not None:
                target, route = self.place(route, subject, key, options)
            inbox = self._inbox
            if inbox is None or not inbox.is_connected:
                # **safety** What waits in a lost connection may come when nobody expects it any
                # more: its program has published it again, or the streams have forgotten its id.
                inbox = await self.connected(deadline)
            if options.ack_level == "none":
                route.check_listening(options.acks)
                await inbox.publish(target, payload, "", sent_headers, deadline)
                return PublishResult(subject)
            repeats = options.msg_id is not None and route.recognises_ids(timeout)
            pending = self._expect(Place(target, route), subject, options.acks, deadline, repeats)
            is_doubtful, acked = False, frozenset[str]()
            while True:
                try:
                    await inbox.publish(
                        pending.target, payload, pending.token, sent_headers, deadline
                    )
                    return await pending.future
                except JetstreamError as error:
                    failure = error
                finally:
                    del self._pending[pending.token]
                is_doubtful = is_doubtful or isinstance(failure, UnknownOutcomeError)
                acked_before, acked = acked, acked | pending.acked
                try:
                    pending = await self._again(pending, failure, key, options, deadline, repeats)
                    inbox = self._inbox or inbox
                except JetstreamError as error:
                    # The last refusal tells of the streams that acknowledged in its own attempt.
                    is_doubtful = is_doubtful or not acked_before <= pending.acked
                    if is_doubtful and not isinstance(error, UnknownOutcomeError):
                        raise doubtful_error(subject, error) from error
                    raise
        finally:
            self.turns.pass_on()

    def place(
        self, route: SubjectRoute, subject: str, key: Payload | None, options: PublishOptions
    ) -> Place:
        """Where a message for a keyed group goes: by its key, else by its id, so that the stream
        that has it already gets it again, else to each stream in turn."""
        check_acks_of_group(subject, options.acks)
        self._turns += 1
        chosen = to_bytes("a key", options.msg_id if key is None else key)
        place = route.place_for(subject, chosen, self._turns)
        if place.route.refusals:
            self._routes.forget(subject)  # The next publish asks again whether that is over.
        return place

    def _expect(
        self,
        place: Place,
        subject: str,
        acks: str | Sequence[str],
        deadline: float,
        repeats: bool,
        attempt: int = 1,
    ) -> Pending:
        """Be ready for the answers to a message that is about to be sent."""
        if repeats:
            deadline = min(deadline, asyncio.get_running_loop().time() + _REPEAT_SECONDS)
        self._token += 1
        target, route = place
        token = f"{self._token:x}{marked(route)}"
        expected = route.wanted(subject, acks)
        pending = Pending(token, subject, route, expected, acks == "any", deadline, attempt, target)
        self._pending[token] = pending
        if self._sweep_timer is None:
            loop = asyncio.get_running_loop()
            self._sweep_timer = loop.call_later(_SWEEP_SECONDS, self._sweep)
        return pending

    async def _again(
        self,
        failed: Pending,
        error: JetstreamError,
        key: Payload | None,
        options: PublishOptions,
        deadline: float,
        repeats: bool,
    ) -> Pending:
        """Wait, then expect the answers anew. Raises `error` if the message may be stored already
        and would not be recognised, if repeating does not help, or if the time is up."""
        place, curable = Place(failed.target, failed.route), error
        if isinstance(error, NobodyListensError):
            route = await self.route(failed.subject, deadline)  # Raises NoStreamError.
            place = Place(failed.subject, route)
            if route.group is not None:
                place = self.place(route, failed.subject, key, options)
            # In a class that is everybody's.
            curable = error = UnavailableError(f"{error.message}: {place.route.why_no_listener}")
        elif repeats:
            if isinstance(error, UnknownOutcomeError):
                curable = UnavailableError(error.message)
        elif failed.acks or not failed.route.is_covered_by(failed.expected):
            raise error
        step = next_step(curable, failed.attempt, random.random())
        if step is None or asyncio.get_running_loop().time() + step.wait >= deadline:
            raise error
        logger.info("publishing to %r: %s; trying again", failed.subject, curable.message)
        self.events.failed(curable)
        await asyncio.sleep(step.wait)
        try:
            if self._closed or self.why_lost:
                await self.connected(deadline)
        except UnavailableError:
            raise error from None
        subject, attempt = failed.subject, failed.attempt + 1
        return self._expect(place, subject, options.acks, deadline, repeats, attempt)

    # Answers.

    def _on_answer(self, token: str, payload: bytes | None) -> None:
        if token.startswith(_KEY_MARK):
            key, end, rest = token.partition(_KEY_END)
            listener = self._listeners.get(key + end)
            if listener is not None:
                listener.on_answer(rest, payload)
            return
        pending = self._pending.get(token)
        if pending is None:
            return  # It was given up, or has all the answers it waits for.
        if payload is None:
            pending.fail(NobodyListensError(f"nobody listens on {pending.subject!r} at the moment"))
        else:
            pending.answered(payload)

    def _on_refusal(self, subject: str, error: JetstreamError) -> None:
        """`subject` is in lower case, as NATS reports it; "" means every publish on its way."""
        for listener in list(self._listeners.values()):
            listener.on_refusal(subject, error)
        for pending in self._pending.values():
            if not subject:
                pending.fail(unknown_outcome_error(pending.subject, error.message))
            elif pending.target.lower() == subject:
                pending.fail(
                    PermissionDeniedError(f"NATS forbids publishing to {pending.target!r}")
                )

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for pending in self._pending.values():
            if pending.deadline <= now:
                # Perhaps a stream that the publish waits for is gone: ask the registry next time.
                self._routes.forget(pending.subject)
                got = f", {len(pending.acks)} acknowledged in time" if pending.acks else ""
                got += f", and {OF_OTHERS}" if pending.of_others else ""
                got += f": {self.why_lost}" if self.why_lost else ""
                pending.fail(
                    unknown_outcome_error(pending.subject, f"no acknowledgement in time{got}")
                )
        self._sweep_timer = None
        if self._pending:
            self._sweep_timer = loop.call_later(_SWEEP_SECONDS, self._sweep)

    @property
    def why_lost(self) -> str:
        """Why NATS cannot bring answers now; "": it can, or there was no connection yet."""
        return "" if self._inbox is None else self._inbox.why_lost

    # The connection.

    async def route(self, subject: str, deadline: float) -> SubjectRoute:
        """The streams to wait for. Raises NoStreamError, or UnavailableError if no server answers
        in time."""
        left = deadline - asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(left * (1 + _CALL_GRACE_SHARE)):
                return await self._routes.ask(subject)
        except TimeoutError:
            why = self._trouble() or "no server answered in time which streams listen"
            raise UnavailableError(f"{why}; nothing was published to {subject!r}") from None

    async def loaded(self) -> None:
        """Once nats-py is imported. All wait for the same and go on in the order of their calls."""
        if self._loading is None:
            self._loading = load_nats()
        await shared(self._loading)

    async def connected(self, deadline: float | None = None) -> NatsInbox:
        """One connection, however many publishers ask for it at the same time. While it is lost
        they wait for the next one: what nats-py would keep meanwhile may be too large for it."""
        if self._inbox is not None and self._inbox.is_connected:
            return self._inbox
        try:
            async with asyncio.timeout_at(deadline):
                if self._inbox is not None:
                    await self._inbox.wait_until_connected()
                    if self._inbox is not None and not self._inbox.is_closed:
                        return self._inbox
                return await self._one_connection()
        except TimeoutError:
            connecting = self._connecting_inbox
            reason = (
                connecting.why_not_connected if connecting else "cannot connect to NATS in time"
            )
            why = self._trouble() or self.why_lost or reason
            raise UnavailableError(f"{why}; nothing was published") from None

    def is_ready(self) -> bool:
        """Whether NATS takes messages now. If there was no connection yet, begins one."""
        if self._inbox is not None and not self._inbox.is_closed:
            return self._inbox.is_connected
        if not self._closed and self._connecting is None:
            self._begin_connecting()
        return False

    async def _one_connection(self) -> NatsInbox:
        if self._closed:  # Perhaps while it was waited for the one before.
            raise ClientClosedError("the client is closed; nothing was published")
        return await shared(self._connecting or self._begin_connecting())

    def _begin_connecting(self) -> asyncio.Task[NatsInbox]:
        self._connecting = asyncio.get_running_loop().create_task(self._connect())
        self._connecting.add_done_callback(self._forget_connecting)
        return self._connecting

    def _forget_connecting(self, task: asyncio.Task[NatsInbox]) -> None:
        self._connecting = None
        if not task.cancelled():
            task.exception()  # Waiting callers have seen it; perhaps none waits any more.

    async def _connect(self) -> NatsInbox:
        await self.loaded()
        urls = self._config.nats or await self._nats_urls()
        if not urls:
            raise UnavailableError("the cluster names no NATS server: give one as `nats`")
        inbox = self._connecting_inbox = NatsInbox(self._on_answer, self._on_refusal, self.events)
        inbox.on_reconnected = self._reconnected
        given = bool(self._config.nats) and not self._config.retry_on_failed_connect
        await inbox.connect(
            urls, self._config.nats_options, self._config.timeout, patient=not given
        )
        self._inbox = inbox
        self._reconnected()
        return inbox

    def _reconnected(self) -> None:
        """What the connection before this one took in one message does not count any more."""
        if self._inbox is not None:
            for limit in list(self.limits):
                limit(self._inbox.max_payload)

    async def close(self) -> None:
        """Everything published is sent; callers that still wait for an answer get an error."""
        self._closed = True
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        await end_tasks(self._connecting)
        inbox, self._inbox = self._inbox, None
        if inbox is not None:
            await inbox.close()
        for pending in self._pending.values():
            pending.fail(unknown_outcome_error(pending.subject, "the client was closed"))
