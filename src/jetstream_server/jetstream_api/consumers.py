"""Requests about consumers. The node that leads the stream answers; other nodes ask it.

    CONSUMER.CREATE at any node ─> its stream's leader ─> LS+ …MSG.NEXT.<stream>.* ─> answer
    MSG.NEXT, acknowledgements, answers about flow ─> the leader, over its own leaf link

So pulls and acknowledgements go straight to the leader, and where no node leads a stream with
consumers, NATS itself says at once that nobody answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, Final

from jetstream_protocol import bounded_json
from jetstream_protocol.errors import JetstreamError, QuotaExceededError, UnavailableError
from jetstream_protocol.generated import common_pb2
from jetstream_protocol.subjects import covers
from jetstream_protocol.types import NO_NODE, NodeId, StreamId
from jetstream_server.background import run_in_background
from jetstream_server.clocks import Clocks
from jetstream_server.consumers.config import ConsumerConfig, DeliverPolicy
from jetstream_server.consumers.consumer import Consumer
from jetstream_server.consumers.leaderships import Leaderships
from jetstream_server.consumers.manager import Consumers
from jetstream_server.consumers.pulls import NO_RESPONDERS, REQUEST_TIMEOUT
from jetstream_server.jetstream_api.acknowledgements import Ack, AckKind, AckSubject
from jetstream_server.jetstream_api.answers import status_headers, time_text
from jetstream_server.jetstream_api.catalogue import INFOS_MAX, NAMES_MAX, Catalogue, fitting
from jetstream_server.jetstream_api.consumer_answers import consumer_info, remaining_ns
from jetstream_server.jetstream_api.consumer_requests import (
    CreateRequest,
    altered,
    pull_of,
)
from jetstream_server.jetstream_api.errors import (
    ApiError,
    bad_request_error,
    no_message_error,
    not_supported_error,
    too_many_subjects_error,
)
from jetstream_server.jetstream_api.heard_pulls import HeardPulls
from jetstream_server.jetstream_api.leaf.acknowledged import Acknowledged
from jetstream_server.jetstream_api.leaf.connection import LeafConnection
from jetstream_server.jetstream_api.leaf.parser import LeafMessage
from jetstream_server.jetstream_api.lost_pulls import (
    HEARD,
    LostPulls,
    ended_pulls,
    lost_since,
)
from jetstream_server.jetstream_api.outlet import LeafOutlet, flow_subject, mark_of
from jetstream_server.jetstream_api.reported_consumers import ReportedConsumers
from jetstream_server.jetstream_api.requests import (
    SUBJECTS_MAX,
    GetRequest,
    Request,
    api_name,
    beyond_us_of,
    body_of,
    check_empty,
    number,
    own_name,
    time_of,
)
from jetstream_server.jetstream_api.search import Search
from jetstream_server.jetstream_api.stream_reads import StreamReads, until_settled
from jetstream_server.jetstream_api.successors import HEAR, Successors
from jetstream_server.metadata.state.changes import Change, StreamChanged, StreamDeleted
from jetstream_server.metadata.state.registry import Registry
from jetstream_server.metadata.state.streams import StreamMetadata
from jetstream_server.replication.core.lake_bounds import start_offset
from jetstream_server.replication.replica import Replica
from jetstream_server.replication.replica_manager import ReplicaManager
from jetstream_server.security.acl import Operation
from jetstream_server.serving.grpc.peers import Peers

_PAGE_SPARE_BYTES: Final = 500
"""Of a page, for what is in it beside the consumers."""
_ATTEMPTS: Final = 12
"""Clients wait for 5 s; a new cluster needs a moment before it can keep anything."""
_NAME_BYTES: Final = 6

DENIED: Final = "403 Permission Denied"
AMBIGUOUS: Final = "400 Bad Request - several streams have that name"

_READY: Final = "READY"
"""Between nodes only: whether the new leader of a stream serves its consumers."""
_CRASH_SECONDS: Final = 1.5
"""A leader that hands over asks within so long whether its successor is ready, and ends the pulls
itself. Else it has crashed: so it has where its session has lapsed."""
_READY_ATTEMPTS: Final = 50
_READY_PAUSE_SECONDS: Final = 0.1

SERVED: Final = (
    "CONSUMER.CREATE", "CONSUMER.DURABLE.CREATE", "CONSUMER.INFO", "CONSUMER.NAMES",
    "CONSUMER.LIST", "CONSUMER.DELETE", "CONSUMER.PAUSE",
)  # fmt: skip
_READS: Final = ("CONSUMER.INFO", "CONSUMER.NAMES", "CONSUMER.LIST")


class ConsumerRequests:
    """For the loop's thread only."""

    def __init__(
        self,
        consumers: Consumers,
        leaderships: Leaderships,
        outlet: LeafOutlet,
        catalogue: Catalogue,
        search: Search,
        reads: StreamReads,
        registry: Registry,
        replicas: ReplicaManager,
        peers: Peers,
        clocks: Clocks,
        *,
        node_id: int,
        domain: str,
        cluster: str,
        account: str,
        creator: str,
    ) -> None:
        """account: in the subjects of acknowledgements; the same on every node. creator: of the
        consumers of NATS clients."""
        self._creator = creator
        self.consumers = consumers
        self._leaderships = leaderships
        self._outlet = outlet
        self._catalogue = catalogue
        self._search = search
        self._reads = reads
        self._registry = registry
        self._replicas = replicas
        self._peers = peers
        self._clocks = clocks
        self._node_id = NodeId(node_id)
        self._cluster = cluster
        self._pulls = f"$JS.{domain}.API.CONSUMER.MSG.NEXT.".encode()
        self._acks = f"$JS.ACK.{domain}.{account}.".encode()
        self._streams: dict[str, StreamId] = {}
        """The streams whose pulls are heard here, by their names in the API."""
        self._push: dict[bytes, set[Consumer]] = {}
        """Consumers that push, by the subject to which they do."""
        self._followed: dict[str, StreamId] = {}
        """The streams of other leaders whose pulls are heard here, by their names in the API."""
        self._heard_pulls = HeardPulls()
        self._lost_pulls = LostPulls(self._node_id, consumers, registry, peers, clocks, self._spawn)
        outlet.unheard = self._lost_pulls.unheard
        self._led_before: dict[StreamId, NodeId] = {}
        """Who led a stream before its leader of now, or of last."""
        self._reported_consumers = ReportedConsumers()
        self._leaving: set[asyncio.Task[None]] = set()
        self._successors = Successors(self._node_id, consumers, peers, self._spawn)
        self._by_ack: dict[bytes, tuple[Consumer, bytes]] = {}
        """Consumers that are acknowledged, with their marks, by the beginning of the subjects on
        which that is done."""
        consumers.began, consumers.ended = self._began, self._ended
        consumers.left = self._left
        leaderships.took_over = self._took_over

    @property
    def link(self) -> LeafConnection:
        assert self._outlet.link is not None
        return self._outlet.link

    def begin(self, link: LeafConnection) -> None:
        """Use this link, from now on. Call it once."""
        self._outlet.link = link
        self._lost_pulls.begin(link)
        link.on_interest, link.on_lost = self._interest_changed, self._lost_pulls.lost

    # Requests that are answered by JSON.

    async def answer(self, request: Request, payload: bytes) -> dict[str, Any]:
        """Raises ApiError, JetstreamError."""
        is_read = request.verb in _READS
        operation = Operation.DESCRIBE if is_read else Operation.READ
        stream = self._catalogue.stream(request.stream, operation)
        if request.verb not in SERVED:
            raise not_supported_error(request.verb)
        self._check_durable(request, payload, stream)

        async def attempt() -> dict[str, Any]:
            current = self._registry.stream_of(common_pb2.StreamRef(id=stream.id))
            made_at = self._registry.revision  # Who is answered that it was late still waits.
            if current.leader == self._node_id or current.leader == NO_NODE:
                return await self.answer_here(
                    current.id, request.verb, request.rest, payload, made_at
                )
            answer = await self._peers.ask_consumers(
                current.leader, current.id, request.verb, request.rest, payload, made_at
            )
            return _checked(bounded_json.loads(answer))

        return await until_settled(attempt, _ATTEMPTS)

    def _check_durable(self, request: Request, payload: bytes, stream: StreamMetadata) -> None:
        """Who makes or ends a durable consumer needs the right to commit in its name, as for a
        cursor. Raises PermissionDeniedError, ApiError."""
        if request.verb.endswith("CREATE"):
            create = CreateRequest.of(request.verb, request.stream, request.rest, payload, "new")
            if create.config.is_durable:
                self._catalogue.check_commit(stream, create.config.name)
        elif request.verb not in _READS:
            self._catalogue.check_commit(stream, request.rest)

    async def answer_for(
        self, stream_id: StreamId, verb: str, rest: str, payload: bytes, made_at: int
    ) -> bytes:
        """The answer for another node, which has checked the caller's rights: JSON, with `error`
        if it is a refusal. Raises JetstreamError."""
        try:
            found = await self.answer_here(stream_id, verb, rest, payload, made_at)
        except ApiError as error:
            found = {"error": error.to_json()}
        return json.dumps(found, separators=(",", ":")).encode()

    async def answer_here(
        self, stream_id: StreamId, verb: str, rest: str, payload: bytes, made_at: int
    ) -> dict[str, Any]:
        """made_at: see `Consumers.note_change`. Raises ApiError; JetstreamError: NotLeaderError,
        too."""
        if verb == HEAR:
            await until_settled(partial(self._follow, stream_id, payload), _ATTEMPTS)
            await self.link.settled()
            return {}
        if verb == HEARD:
            await self.link.settled()  # What was asked before has come then.
            lost_us = lost_since(payload, self._clocks.monotonic())
            return ended_pulls(self._heard_pulls.lost(stream_id, lost_us))
        stream = self._registry.stream_of(common_pb2.StreamRef(id=stream_id))
        replica = self._replicas.led_replica_of(stream)
        await self._leaderships.loaded(replica)
        if verb == _READY:
            self._heard_pulls.forget(stream_id)  # The leader before ends them.
            await self.link.settled()
            return {}
        if replica.leadership is not None and replica.leadership.seeks_end:
            # **safety** A watch of a bucket would believe that there is nothing.
            raise UnavailableError(f"the leader of {stream.full_name} does not know its end yet")
        if verb in ("CONSUMER.CREATE", "CONSUMER.DURABLE.CREATE"):
            return await self._create(stream, replica, verb, rest, payload, made_at)
        if verb in ("CONSUMER.NAMES", "CONSUMER.LIST"):
            return self._page(stream, verb, rest, payload)
        if verb != "CONSUMER.PAUSE":
            check_empty(payload)
        consumer = self._existing(stream, rest)
        if verb not in _READS:
            await self.consumers.note_change(replica, consumer.config, made_at)
            consumer = self._existing(stream, rest)
        if verb == "CONSUMER.PAUSE":
            found = await self._pause(consumer, body_of(payload))
            self._note_changed(verb, consumer)
            return found
        if verb == "CONSUMER.DELETE":
            await self.consumers.delete(consumer)
            self._note_changed(verb, consumer)
            return {"success": True}
        return await self._info(stream, consumer)

    def _existing(self, stream: StreamMetadata, name: str) -> Consumer:
        """Raises ApiError."""
        consumer = self.consumers.find(stream.id, name)
        if consumer is None:
            raise consumer_not_found_error()
        return consumer

    async def _create(
        self,
        stream: StreamMetadata,
        replica: Replica,
        verb: str,
        rest: str,
        payload: bytes,
        made_at: int,
    ) -> dict[str, Any]:
        create = CreateRequest.of(
            verb, api_name(stream.name), rest, payload, secrets.token_hex(_NAME_BYTES)
        )
        config = create.config
        if config.is_push and covers(stream.subject, config.deliver_subject.decode()):
            raise ApiError(400, 10081, "consumer deliver subject forms a cycle")
        if config.is_push and not self.link.may_answer(config.deliver_subject):
            to = config.deliver_subject.decode()
            raise ApiError(400, 10052, f"nothing may be sent to {to}: ingest.ack_subjects, and "
                           "publish of the leaf user, must allow it")  # fmt: skip
        found = self.consumers.find(stream.id, config.name)
        if found is None or found.config != config:
            await self.consumers.note_change(replica, config, made_at)
            found = self.consumers.find(stream.id, config.name)
        if found is not None and found.is_interrupted:
            self.consumers.end_interrupted(found)
            found = None
        if found is not None:
            await self._update(found, create)
        elif create.action == "update":
            raise ApiError(400, 10149, "consumer does not exist")
        else:
            replica.check_readable()  # It would begin somewhere else.
            position, selected = await self._start(stream, replica, config)
            found = await self._add(replica, config, position, selected)
            if found.config != config:  # Somebody else was faster.
                await self._update(found, create)
            self._note_changed(verb, found)
            await self.link.settled()
            await self._successors.prepared(stream.id)
        return await self._info(stream, found)

    async def _update(self, consumer: Consumer, create: CreateRequest) -> None:
        before, after = consumer.config, create.config
        if before == after:
            await self.consumers.alter(consumer, before)  # The first copy of it may be on its way.
            return
        if before.is_durable:  # The request may be of another kind, and was not checked then.
            self._catalogue.check_commit(consumer.replica.stream, before.name)
        if create.action == "create":
            raise ApiError(400, 10148, "consumer already exists")
        config = altered(before, after)
        if before.deliver_subject != after.deliver_subject:
            if consumer.is_bound:
                raise ApiError(400, 10013, "consumer name already in use")
            self._forget_push(consumer)
            consumer.alter(config)
            self._know_push(consumer)
            self._successors.began(consumer)
        await self.consumers.alter(consumer, config)
        self._note_changed("CONSUMER.UPDATE", consumer)

    def _note_changed(self, verb: str, consumer: Consumer) -> None:
        """For the audit log. Others than durable ones come and go with their clients."""
        if consumer.config.is_durable:
            stream, name = consumer.replica.stream, consumer.config.name
            self._catalogue.note_changed(verb, stream, name)

    async def _add(
        self, replica: Replica, config: ConsumerConfig, position: int, selected: list[int]
    ) -> Consumer:
        try:
            config = replace(config, creator=self._creator)
            return await self._leaderships.add(replica, config, position, selected)
        except QuotaExceededError as error:
            raise ApiError(
                400, 10026, f"maximum consumers limit reached: {error.message}"
            ) from None

    async def _pause(self, consumer: Consumer, body: dict[str, Any]) -> dict[str, Any]:
        until_us = time_of(body, "pause_until") or 0
        until_ns = beyond_us_of(body, "pause_until")
        altered = replace(consumer.config, pause_until_us=until_us, pause_until_ns=until_ns)
        await self.consumers.alter(consumer, altered)
        paused_us = consumer.paused_us
        found: dict[str, Any] = {
            "paused": paused_us > 0,
            "pause_until": time_text(until_us or None, until_ns),
        }
        return found | ({"pause_remaining": remaining_ns(paused_us)} if paused_us else {})

    async def _start(
        self, stream: StreamMetadata, replica: Replica, config: ConsumerConfig
    ) -> tuple[int, list[int]]:
        """The first offset of a new consumer, and offsets to take before. Raises ApiError,
        JetstreamError."""
        start, end = start_offset(replica.stream, replica.log), replica.high_watermark
        policy, selected = config.deliver_policy, list[int]()
        if (
            policy is DeliverPolicy.ALL
            and stream.config.keeps_last_of_subjects
            and not config.is_durable  # What these have to deliver first is replicated.
        ):
            policy = DeliverPolicy.LAST_PER_SUBJECT  # The others are as good as removed.
        position = start
        if policy is DeliverPolicy.NEW:
            assert replica.leadership is not None, "its consumers are loaded"
            replica.leadership.check_end()  # Else what was committed before would be delivered.
            position = end
        elif policy is DeliverPolicy.BY_START_SEQUENCE:
            position = config.start_sequence - 1
        elif policy is DeliverPolicy.BY_START_TIME:
            position = await self._reads.offset_at(stream, config.begins_us)
        elif policy is DeliverPolicy.LAST:
            position = await self._last(stream, config, end)
        elif policy is DeliverPolicy.LAST_PER_SUBJECT:
            selected, position = await self._search.last_offsets(stream, config.filters)
            if config.is_durable and len(selected) > SUBJECTS_MAX:
                raise too_many_subjects_error(SUBJECTS_MAX)
        return max(position, start), selected

    async def _last(self, stream: StreamMetadata, config: ConsumerConfig, end: int) -> int:
        """The last message that is wanted; the end without any."""
        found = []
        for each in config.filters or (stream.subject,):
            try:
                found.append((await self._search.one(stream, GetRequest(last_subject=each))).offset)
            except ApiError as error:
                if error.err_code != no_message_error().err_code:
                    raise
        return max(found, default=end)

    def _page(self, stream: StreamMetadata, verb: str, rest: str, payload: bytes) -> dict[str, Any]:
        if rest:
            raise bad_request_error()
        offset, is_list = number(body_of(payload), "offset"), verb == "CONSUMER.LIST"
        limit = INFOS_MAX if is_list else NAMES_MAX
        known = self.consumers.of(stream.id)
        offset = min(offset, len(known))
        found: dict[str, Any] = {"total": len(known), "offset": offset, "limit": limit}
        page: list[Any] = [each.config.name for each in known[offset : offset + limit]]
        if is_list:
            page = [self._info_now(stream, each) for each in known[offset : offset + limit]]
        kept = fitting(page, self.link.max_payload - _PAGE_SPARE_BYTES)
        return found | {"consumers": kept} | ({"limit": len(kept)} if len(kept) < len(page) else {})

    async def _info(self, stream: StreamMetadata, consumer: Consumer) -> dict[str, Any]:
        consumer.replica.check_readable()  # Nothing would seem to be pending.
        await consumer.feed.count()
        return self._info_now(stream, consumer)

    def _info_now(self, stream: StreamMetadata, consumer: Consumer) -> dict[str, Any]:
        """Without looking further for what is pending."""
        cluster = {"name": self._cluster, "leader": f"node-{self._node_id}"}
        return consumer_info(
            consumer, stream.name, consumer.feed.pending, cluster, self._clocks.wall()
        )

    # What is heard for consumers.

    def _listen(self, stream: StreamMetadata) -> None:
        """Have the clients of a stream's consumers reach this node."""
        name = api_name(stream.name)
        self._streams[name] = stream.id
        for each in self._heard(name):
            self.link.listen(each)

    def _heard(self, name: str) -> list[bytes]:
        """Patterns: NATS closes a link for a literal subject that its user may not hear."""
        token = name.encode()
        return [
            self._pulls + token + b".*",
            self._acks + token + b".>",
            b"$JS.FC." + token + b".*.*",
        ]

    # Following leaderships.

    def _took_over(self, replica: Replica) -> None:
        name = api_name(replica.stream.name)
        if self._followed.pop(name, None) is not None:
            self._listen(replica.stream)
            self._spawn(self._end_heard(replica.stream.id), "ending pulls")
        reported = self._reported_consumers.forget(replica.stream.id, replica.stream.leader_epoch)
        self.consumers.add_interrupted(replica, reported)

    def _spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = run_in_background(coroutine, name)
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)
        return task

    async def _end_heard(self, stream_id: StreamId) -> None:
        """End the pulls that the leader before had, if it has crashed."""
        before = self._registry.nodes.get(self._led_before.pop(stream_id, NO_NODE))
        if before is None or not before.fenced:
            await asyncio.sleep(_CRASH_SECONDS)
        pulls = self._heard_pulls.end(stream_id, self._clocks.monotonic())
        for pull in pulls:
            pull.is_heard = True  # Else its client is gone.
        self._lost_pulls.owe(pulls)

    async def _follow(self, stream_id: StreamId, report: bytes) -> None:
        """Hear the pulls of a stream that another node leads, and what it tells of consumers.
        Raises JetstreamError: this node has not heard of that leader, or of its own copy, yet."""
        stream = self._registry.streams.get(stream_id)
        is_copy = stream is not None and self._node_id in stream.copies
        if stream is None or not is_copy or stream.leader == self._node_id:
            raise UnavailableError("this node does not know yet who leads the stream; try again")
        name = api_name(stream.name)
        self._followed[name] = stream.id
        self.link.listen(self._heard(name)[0])
        with contextlib.suppress(ValueError):  # Of a later version.
            self._reported_consumers.take(stream.id, report)

    def _left(self, stream_id: StreamId, consumers: list[Consumer]) -> None:
        for consumer in consumers:
            consumer.stop()
        if self.link.is_connected:
            self._spawn(self._end_pulls(stream_id, consumers), "ending pulls")
        else:  # The new leader is not asked: it ends what it has heard.
            self._close(consumers)

    async def _end_pulls(self, stream_id: StreamId, consumers: list[Consumer]) -> None:
        """End the pulls that wait once the new leader hears pulls: clients ask again at once, and
        would be told that nobody answers."""
        for _ in range(_READY_ATTEMPTS):
            if await self._is_ready(stream_id):
                break
            await asyncio.sleep(_READY_PAUSE_SECONDS)
        self._close(consumers)

    def _close(self, consumers: Iterable[Consumer]) -> None:
        for consumer in consumers:
            self._lost_pulls.owe(consumer.pulls.unheard(self.link.is_heard))
            consumer.close(REQUEST_TIMEOUT)

    async def _is_ready(self, stream_id: StreamId) -> bool:
        stream = self._registry.streams.get(stream_id)
        if stream is None or stream.leader == self._node_id:
            return True
        if stream.leader == NO_NODE:
            return False
        try:
            await self._peers.ask_consumers(stream.leader, stream_id, _READY, "", b"")
        except JetstreamError:
            return False
        return True

    async def close(self) -> None:
        """End everything that this has begun, and all consumers."""
        self._successors.close()
        await self._leaderships.close()
        tasks = list(self._leaving)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def apply(self, change: Change) -> None:
        """Call it with each change of the metadata, after the leaderships have taken it."""
        if isinstance(change, StreamChanged):
            before = change.before
            if before.leader not in (NO_NODE, change.after.leader):
                self._led_before[before.id] = before.leader
            self._stream_changed(change.after)
        elif isinstance(change, StreamDeleted):
            self.withdraw(change.stream.id)
            self._stop_following(change.stream.id)

    def _stream_changed(self, stream: StreamMetadata) -> None:
        replica = self._replicas.get(stream.id)
        if replica is None or replica.leadership is None:
            self.withdraw(stream.id)
            if self._node_id not in stream.copies:
                self._stop_following(stream.id)
            return
        if self.consumers.of(stream.id):
            self._successors.prepare(stream)

    def withdraw(self, stream_id: StreamId) -> None:
        """Hear nothing more for the consumers of a stream: another node leads it."""
        self._successors.forget(stream_id)
        for name in [name for name, each in self._streams.items() if each == stream_id]:
            del self._streams[name]
            pulls, *others = self._heard(name)
            for each in (*others, *([] if name in self._followed else [pulls])):
                self.link.stop_listening(each)

    def _stop_following(self, stream_id: StreamId) -> None:
        self._heard_pulls.forget(stream_id)
        self._led_before.pop(stream_id, None)
        self._reported_consumers.forget(stream_id)
        for name in [name for name, each in self._followed.items() if each == stream_id]:
            del self._followed[name]
            if name not in self._streams:
                self.link.stop_listening(self._heard(name)[0])

    def takes(self, message: LeafMessage) -> bool:
        """Take a message for consumers. Returns whether it is one."""
        subject = message.subject
        if subject.startswith(self._pulls):
            self._pull(message, subject[len(self._pulls) :].decode("utf-8", "replace"))
        elif subject.startswith(b"$JS.FC."):
            self._flow_answered(subject.decode("utf-8", "replace"))
        elif subject.startswith(self._acks):
            self._acknowledge(message)
        else:
            return False
        return True

    def _find(self, stream: str, name: str) -> Consumer | None:
        stream_id = self._streams.get(stream)
        return None if stream_id is None else self.consumers.find(stream_id, name)

    def _pull(self, message: LeafMessage, rest: str) -> None:
        if not message.reply or not self.link.may_answer(message.reply):
            return
        self._lost_pulls.asked_again(message.reply)
        stream, _, name = rest.partition(".")
        consumer = self._find(stream, name)
        if stream in self._streams and len(self._registry.streams_named(own_name(stream))) > 1:
            # **safety** The node that leads the other one hears it, too.
            self.link.refuse(message.reply, status_headers(AMBIGUOUS))
        elif consumer is None and stream in self._followed and stream not in self._streams:
            self._remember(self._followed[stream], message)
        elif consumer is None:
            self.link.refuse(message.reply, status_headers(NO_RESPONDERS))
        elif not self._outlet.may_use(consumer):
            self._catalogue.note_denied(consumer.replica.stream, consumer.config.name)
            self.link.refuse(message.reply, status_headers(DENIED))
        else:
            self._pull_from(consumer, message.reply, message.payload)

    def _remember(self, stream_id: StreamId, message: LeafMessage) -> None:
        """Remember a pull that another node answers."""
        now_us = self._clocks.monotonic()
        with contextlib.suppress(ApiError):
            self._heard_pulls.take(stream_id, pull_of(message.payload, message.reply, now_us))

    def _pull_from(self, consumer: Consumer, reply: bytes, payload: bytes) -> None:
        try:
            pull = pull_of(payload, reply, self._clocks.monotonic())
        except ApiError as error:
            self.link.refuse(reply, status_headers(f"400 {error.description}"))
            return
        consumer.pull(pull)

    def _flow_answered(self, subject: str) -> None:
        tokens = subject.split(".")
        consumer = self._find(tokens[2], tokens[3]) if len(tokens) == 5 else None
        if consumer is None or consumer.flow is None:
            return
        if subject == flow_subject(consumer, consumer.flow.asked):
            consumer.flow.answered(consumer.flow.asked)
            consumer.wake()

    def _acknowledge(self, message: LeafMessage) -> None:
        at = AckSubject.of(message.subject)
        if at is None:
            return
        consumer, mark = self._by_ack.get(at.consumer, (None, b""))
        if consumer is None or mark != at.mark:
            if self._answer_to(message.reply) is not None and Ack.of(message.payload) is not None:
                self.link.send(message.reply, b"", status_headers(NO_RESPONDERS))
        elif not self._outlet.may_use(consumer):
            # Whoever waits for an answer learns by its time-out.
            self._catalogue.note_denied(consumer.replica.stream, consumer.config.name)
        elif consumer.deliveries.was_delivered(at.sequence - 1):
            self._take_ack(consumer, at, message)

    def acknowledged(self, at: Acknowledged) -> None:
        """Take acknowledgements that nobody waits for. Those of what was not delivered have no
        effect."""
        consumer, mark = self._by_ack.get(at.consumer, (None, b""))
        if consumer is not None and mark == at.mark and self._outlet.may_use(consumer):
            end = consumer.deliveries.position
            consumer.acknowledge_some([each - 1 for each in at.sequences if each <= end])

    def _take_ack(self, consumer: Consumer, at: AckSubject, message: LeafMessage) -> None:
        ack, then = Ack.of(message.payload), self._answer_to(message.reply)
        offset = at.sequence - 1
        if ack is None:
            return
        if ack.kind is AckKind.NAK:
            consumer.refuse(offset, at.delivery, ack.delay_us, then)
        elif ack.kind is AckKind.PROGRESS:
            consumer.extend(offset, at.delivery, then)
        elif ack.kind is AckKind.NEXT:
            consumer.acknowledge(offset, None)
            if then is not None:
                self._pull_from(consumer, message.reply, ack.rest)
        else:
            consumer.acknowledge(offset, then)

    def _answer_to(self, reply: bytes) -> Callable[[], None] | None:
        """Tells a client that its acknowledgement counts; None: it does not ask, or may not be
        answered."""
        if not reply or not self.link.may_answer(reply):
            return None

        def tell() -> None:
            self.link.send(reply, b"")

        return tell

    # Who listens.

    def _know_push(self, consumer: Consumer) -> None:
        if consumer.config.is_push:
            self._push.setdefault(consumer.config.deliver_subject, set()).add(consumer)

    def _forget_push(self, consumer: Consumer) -> None:
        found = self._push.get(consumer.config.deliver_subject, set())
        found.discard(consumer)
        if not found:
            self._push.pop(consumer.config.deliver_subject, None)

    def _began(self, consumer: Consumer) -> None:
        stream = consumer.replica.stream
        if consumer.config.acknowledges:
            self._by_ack[self._ack_of(consumer)] = consumer, mark_of(consumer).encode()
        self._know_push(consumer)
        if api_name(stream.name) not in self._streams:
            self._listen(stream)
            self._successors.prepare(stream)
        else:
            self._successors.began(consumer)

    def _ack_of(self, consumer: Consumer) -> bytes:
        name = f"{api_name(consumer.replica.stream.name)}.{consumer.config.name}"
        return self._acks + name.encode()

    def _ended(self, consumer: Consumer) -> None:
        known, _ = self._by_ack.get(self._ack_of(consumer), (None, b""))
        if known is consumer:
            del self._by_ack[self._ack_of(consumer)]
        self._forget_push(consumer)
        self._successors.ended(consumer)

    def _interest_changed(self, subjects: list[bytes]) -> None:
        """Wake consumers that push, if somebody has begun or ceased to listen."""
        if not subjects:
            self._lost_pulls.back([*self._streams.values()])
            for consumer in self.consumers:
                consumer.reached()
            return
        self._lost_pulls.interest_changed()
        # All at once: clients may begin and cease as fast as they like.
        is_any = any(b"*" in each or each.endswith(b">") for each in subjects)
        pushed = self._push if is_any else self._push.keys() & set(subjects)
        for consumer in set[Consumer]().union(*(self._push[each] for each in pushed)):
            consumer.wake()


def consumer_not_found_error() -> ApiError:
    return ApiError(404, 10014, "consumer not found")


def _checked(answer: dict[str, Any]) -> dict[str, Any]:
    """Raises ApiError for a refusal of another node."""
    error = answer.get("error")
    if isinstance(error, dict):
        raise ApiError(error["code"], error["err_code"], error["description"])
    return answer
