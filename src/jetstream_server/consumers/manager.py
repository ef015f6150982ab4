"""The consumers of the streams that this node leads.

A durable consumer is kept in `__cursors`: who leads its stream next claims it, and goes on. Another
one lives here only: when another node leads, it is gone, and its client makes a new one.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import structlog

from jetstream_protocol.errors import JetstreamError, QuotaExceededError, UnavailableError
from jetstream_protocol.types import StreamId
from jetstream_server.background import run_in_background
from jetstream_server.clocks import Clocks
from jetstream_server.consumers.config import ConsumerConfig
from jetstream_server.consumers.consumer import Consumer, Outlet
from jetstream_server.consumers.deliveries import Deliveries
from jetstream_server.consumers.feed import Feed, Reader, wanted_of
from jetstream_server.consumers.keeper import Keeper, States, StateWrite
from jetstream_server.consumers.kept import Kept, consumer_key, epoch_of
from jetstream_server.consumers.pulls import REQUEST_TIMEOUT, PullRoom
from jetstream_server.metadata.state.changes import Change, StreamChanged, StreamDeleted
from jetstream_server.replication.core.unreadable import is_readable
from jetstream_server.replication.replica import Replica
from jetstream_server.replication.replica_manager import ReplicaManager

NO_REVISION: Final = -1

logger = structlog.get_logger("jetstream.consumers")

CONSUMERS_MAX: Final = 10_000
"""On one node. Each costs about 5 KB while it waits."""
SELECTED_MAX: Final = 4_000_000
"""Offsets that all consumers of a node are to take before the rest: 40 bytes each. A watch of a
bucket has one for each key until it has got it."""
STORED_SECONDS: Final = 5.0
"""How long acknowledgements and changes may take to be committed."""
_LOOK_SECONDS: Final = 0.25
_FORGET_PAUSES: Final = (0.0, 1.0, 5.0, 30.0)


class Consumers:
    """For the loop's thread only."""

    def __init__(
        self,
        replicas: ReplicaManager,
        reader: Reader,
        outlet: Outlet,
        clocks: Clocks,
        states: States,
        note_change: Callable[[str, int], Awaitable[object]],
        per_principal: int = 0,
    ) -> None:
        """states: of durable consumers. note_change: that of the metadata. per_principal: how many
        one may have created; 0: any number."""
        self._replicas = replicas
        self._reader = reader
        self._outlet = outlet
        self._clocks = clocks
        self._states = states
        self._note_change = note_change
        self._room = PullRoom()
        self._by_stream: dict[StreamId, dict[str, Consumer]] = {}
        self._count = 0
        self._per_principal = per_principal
        self._created: Counter[str] = Counter()
        """By their creators."""
        self._begun: list[tuple[str, int]] = []
        """Creator, and number of offsets selected, of those that are being created."""
        self.ended: Callable[[Consumer], None] = lambda _: None
        """Called with each consumer that is gone."""
        self.began: Callable[[Consumer], None] = lambda _: None
        """Called with each consumer, before it is started."""
        self.left: Callable[[StreamId, list[Consumer]], None] = _close_all
        """Called with the consumers of a stream that another node leads now: closes them."""
        self._forgetting: set[asyncio.Task[None]] = set()
        self._taken: dict[StreamId, int] = {}
        """Streams whose durable consumers a later leader has, of which this node has not heard; and
        the leader epoch of this node."""

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Consumer]:
        for consumers in self._by_stream.values():
            yield from consumers.values()

    def of(self, stream_id: StreamId) -> list[Consumer]:
        """The consumers of a stream, by name."""
        found = self._by_stream.get(stream_id, {})
        return [found[name] for name in sorted(found)]

    def count(self, stream_id: StreamId) -> int:
        """How many consumers of a stream this node serves."""
        return len(self._by_stream.get(stream_id, {}))

    def find(self, stream_id: StreamId, name: str) -> Consumer | None:
        return self._by_stream.get(stream_id, {}).get(name)

    def check_has(self, replica: Replica) -> None:
        """Raise UnavailableError if another leader has claimed the durable consumers of the stream:
        one that is not here may be there."""
        if self._taken.get(replica.stream.id) == replica.stream.leader_epoch:
            raise UnavailableError("another node leads the stream now; try again")

    def _check_room(self, creator: str) -> None:
        """Raise QuotaExceededError if this node serves as many consumers as it may, at all or of
        that creator."""
        created = self._created[creator] + sum(each == creator for each, _ in self._begun)
        if self._count + len(self._begun) >= CONSUMERS_MAX:
            raise QuotaExceededError(f"this node serves {CONSUMERS_MAX} consumers already")
        if creator and created >= self._per_principal > 0:
            raise QuotaExceededError(
                f"{creator} has {created} consumers on this node, as many as it may "
                "have: delete some, or raise security.consumers_per_principal"
            )

    async def note_change(self, replica: Replica, config: ConsumerConfig, made_at: int) -> None:
        """Note that a caller is about to make, alter or end a consumer. made_at: the revision of
        the metadata at which the call was sent; 0: unknown. **safety** Raises UnavailableError for
        a late copy of a call. What is not durable has one reader, who makes it anew."""
        if config.is_durable:
            what = f"consumer {config.name!r} of {replica.stream.full_name}"
            await self._note_change(what, made_at)

    async def create(
        self, replica: Replica, config: ConsumerConfig, position: int, selected: Iterable[int] = ()
    ) -> Consumer | None:
        """Add a consumer, and start it; None: there is one of this name by now. position: the first
        offset. selected: see Feed. Raises QuotaExceededError, JetstreamError."""
        self._check_room(config.creator)
        chosen = tuple(selected)
        if chosen and len(chosen) + self._selected > SELECTED_MAX:
            raise QuotaExceededError(
                f"consumers of this node are to get {SELECTED_MAX} last messages already; try again"
            )
        begun = config.creator, len(chosen)
        self._begun.append(begun)
        try:
            return await self._create(replica, config, position, chosen)
        finally:
            self._begun.remove(begun)

    @property
    def _selected(self) -> int:
        """Offsets that consumers are to take before the rest."""
        served = sum(len(each.feed.selected) for each in self)
        return served + sum(selected for _, selected in self._begun)

    async def _create(
        self, replica: Replica, config: ConsumerConfig, position: int, chosen: tuple[int, ...]
    ) -> Consumer | None:
        first = min(position, *chosen) if chosen else position
        epoch, now_us = replica.stream.leader_epoch, self._clocks.wall()
        kept = Kept(config, first, 0, first - 1, (), chosen, position, epoch, now_us)
        revision = NO_REVISION
        if config.is_durable:
            key = consumer_key(replica.stream.id, config.name)
            (state,) = await self._states.write([StateWrite(key, kept.encode(), NO_REVISION)])
            if state.is_refused:
                return None
            revision = state.revision
        if self.find(replica.stream.id, config.name) is not None:
            return None
        if not self._is_led(replica) or replica.stream.leader_epoch != epoch:
            # Who leads now claims what was kept; this node may, anew.
            raise UnavailableError("the stream has another leader now; try again")
        return self._add(replica, kept, revision)

    def _add(
        self, replica: Replica, kept: Kept, revision: int, *, is_interrupted: bool = False
    ) -> Consumer:
        """Add a consumer as it was kept, and start it. revision: of its record."""
        config = kept.config
        deliveries = Deliveries(config, kept.position)
        kept.into(deliveries, self._clocks.monotonic())
        consumer = Consumer(
            config,
            deliveries,
            Feed(
                self._reader,
                replica,
                wanted_of(replica, config),
                max(kept.position, kept.rest),
                kept.selected,
            ),
            self._outlet,
            self._clocks,
            self._inactive,
            created_us=kept.created_us,
            epoch=kept.epoch,
            room=self._room,
            is_interrupted=is_interrupted,
        )
        if config.is_durable:
            consumer.keeper = Keeper(
                self._states,
                consumer_key(replica.stream.id, config.name),
                revision,
                consumer.keep,
                lambda: self._fenced(consumer),
            )
        self._by_stream.setdefault(replica.stream.id, {})[config.name] = consumer
        self._count += 1
        self._created[config.creator] += 1
        self.began(consumer)
        consumer.start()
        return consumer

    def add_interrupted(self, replica: Replica, found: Iterable[Kept]) -> None:
        """Add consumers of an earlier leader which are not durable, as far as there is room: their
        readers are to notice that they have lost their place."""
        for each in found:
            is_known = self.find(replica.stream.id, each.config.name) is not None
            if self._is_led(replica) and not is_known and self._count < CONSUMERS_MAX:
                self._add(replica, each, NO_REVISION, is_interrupted=True)

    async def load(self, replicas: Sequence[Replica]) -> None:
        """Take over the durable consumers of streams that this node leads. Each state is claimed
        before it is used: a leader before stores nothing more. Raises JetstreamError."""
        by_id = {replica.stream.id: replica for replica in replicas}
        states = await self._states.load(list(by_id))
        while states:
            claims, kept = [], []
            for state in states:
                replica = by_id[StreamId(int(state.key.split(b"/")[1]))]
                if not self._is_led(replica):
                    continue  # **safety** The log of a follower may lack what was delivered.
                try:
                    before = Kept.decode(state.value)
                except ValueError as error:
                    name = state.key.decode(errors="replace")
                    logger.error("consumer_unreadable", consumer=name, reason=str(error))
                    continue
                if before.epoch > replica.stream.leader_epoch:
                    self._taken[replica.stream.id] = replica.stream.leader_epoch
                    continue
                found = replace(_held(before, replica), epoch=replica.stream.leader_epoch)
                kept.append((replica, found))
                claims.append(StateWrite(state.key, found.encode(), state.revision))
            states = []
            answers = await self._states.write(claims) if claims else []
            for (replica, found), claim in zip(kept, answers, strict=True):
                if claim.is_refused:
                    if claim.value and epoch_of(claim.value) <= found.epoch:
                        states.append(claim)  # The leader before was faster. Again.
                    elif claim.value:
                        self._taken[replica.stream.id] = found.epoch
                elif (
                    self._is_led(replica)
                    and self.find(replica.stream.id, found.config.name) is None
                ):
                    self._add(replica, found, claim.revision)

    def _is_led(self, replica: Replica) -> bool:
        return self._replicas.get(replica.stream.id) is replica and replica.leadership is not None

    async def alter(self, consumer: Consumer, config: ConsumerConfig) -> None:
        """Give it that configuration. Returns once every later leader knows it. Raises
        UnavailableError."""
        if config != consumer.config:
            consumer.alter(config)
        if consumer.keeper is not None and not consumer.keeper.is_settled:
            stored = asyncio.Event()
            consumer.keeper.when_stored(stored.set)
            await self.until_stored(consumer, stored)

    async def until_stored(self, consumer: Consumer, stored: asyncio.Event) -> None:
        """Raises UnavailableError if that takes too long, or another node leads now."""
        for _ in range(int(STORED_SECONDS / _LOOK_SECONDS)):
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
                    await stored.wait()
                    return
            if self.find(consumer.replica.stream.id, consumer.config.name) is not consumer:
                break
        raise UnavailableError("it is not known to be committed; try again")

    async def delete(self, consumer: Consumer) -> None:
        """End a consumer for good. Raises JetstreamError, if its state cannot be deleted now."""
        if consumer.keeper is not None and not await self._delete_own(consumer):
            raise UnavailableError("another node leads the stream now; try again")
        self._end(consumer)

    def end_interrupted(self, consumer: Consumer) -> None:
        """End one whose reader has noticed that it has lost its place, and begins it anew."""
        self._end(consumer)

    def _end(self, consumer: Consumer) -> None:
        if consumer.keeper is not None:
            consumer.keeper.abandon()
        self._remove(consumer)
        consumer.close()

    def _inactive(self, consumer: Consumer) -> None:
        self._end(consumer)
        if consumer.keeper is not None:
            self._spawn(self._forget_own(consumer))

    def _fenced(self, consumer: Consumer) -> None:
        """Another leader has taken it over, or it was deleted."""
        if consumer.keeper is not None and consumer.keeper.is_replaced:
            self._taken[consumer.replica.stream.id] = consumer.epoch
        self._remove(consumer)
        consumer.close(REQUEST_TIMEOUT)

    def _forget(self, consumers: Sequence[Consumer]) -> None:
        """Delete the states of consumers that are gone."""
        keys = [
            consumer_key(each.replica.stream.id, each.config.name)
            for each in consumers
            if each.config.is_durable
        ]
        if keys:
            self._spawn(self._forget_keys(keys))

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = run_in_background(coroutine, "deleting consumers")
        self._forgetting.add(task)
        task.add_done_callback(self._forgetting.discard)

    async def _delete_own(self, consumer: Consumer) -> bool:
        """Delete its record. False: a later leader has claimed it. **safety** Not the record of
        another consumer of this name, made since, nor what a later leader has claimed. Raises
        JetstreamError."""
        assert consumer.keeper is not None
        key = consumer_key(consumer.replica.stream.id, consumer.config.name)
        revision = consumer.keeper.revision
        while True:
            (state,) = await self._states.write([StateWrite(key, None, revision)])
            if not state.is_refused or not state.value:
                return True
            try:
                found = Kept.decode(state.value)
            except ValueError:
                return False  # Of a later version, so of a later leader.
            if found.created_us != consumer.created_us:
                return True
            if found.epoch != consumer.epoch:
                return False
            revision = state.revision  # Its own, by a write that was under way or not answered.

    async def _forget_own(self, consumer: Consumer) -> None:
        """Delete the record of a consumer that nobody uses."""
        for pause in _FORGET_PAUSES:
            await asyncio.sleep(pause)
            try:
                await self._delete_own(consumer)
                return
            except JetstreamError as error:
                logger.warning("consumers_not_deleted", count=1, reason=error.message)

    async def _forget_keys(self, keys: list[bytes]) -> None:
        for pause in _FORGET_PAUSES:
            await asyncio.sleep(pause)
            try:
                await self._states.write([StateWrite(key, None, None) for key in keys])
                return
            except JetstreamError as error:
                logger.warning("consumers_not_deleted", count=len(keys), reason=error.message)

    def _remove(self, consumer: Consumer) -> None:
        stream_id = consumer.replica.stream.id
        consumers = self._by_stream.get(stream_id, {})
        if consumers.get(consumer.config.name) is consumer:
            del consumers[consumer.config.name]
            self._count -= 1
            self._created[consumer.config.creator] -= 1
            if not self._created[consumer.config.creator]:
                del self._created[consumer.config.creator]
            if not consumers:
                del self._by_stream[stream_id]
            self.ended(consumer)

    # Following the metadata.

    def apply(self, change: Change) -> None:
        """Call it with each change of the metadata, after the replicas have taken it."""
        if isinstance(change, StreamDeleted):
            self._taken.pop(change.stream.id, None)
            gone = self.of(change.stream.id)
            for consumer in gone:
                self._end(consumer)
            self._forget(gone)
        elif isinstance(change, StreamChanged):
            self._leader_changed(change.after.id)

    def _leader_changed(self, stream_id: StreamId) -> None:
        """Let go of the consumers of a stream that this node does not lead any more, and of durable
        ones of an earlier leadership: they are claimed again."""
        replica = self._replicas.get(stream_id)
        if replica is None or self._taken.get(stream_id) != replica.stream.leader_epoch:
            self._taken.pop(stream_id, None)
        gone = [
            each
            for each in self.of(stream_id)
            if replica is not each.replica
            or replica.leadership is None
            or (each.config.is_durable and each.epoch != replica.stream.leader_epoch)
        ]
        for consumer in gone:
            self._remove(consumer)
        if gone:
            self.left(stream_id, gone)

    async def close(self) -> None:
        """End every consumer: clients ask again, and another node answers."""
        for consumer in list(self):
            self._remove(consumer)
            consumer.close(REQUEST_TIMEOUT)
        for task in self._forgetting:
            task.cancel()
        await asyncio.gather(*self._forgetting, return_exceptions=True)


def _held(kept: Kept, replica: Replica) -> Kept:
    """What is kept, as far as the log has what its leader had. **safety** Else new records at
    offsets that were delivered before would be passed over."""
    if not is_readable(replica.check_readable):
        return kept  # Such a log looks empty.
    log = replica.log
    found = kept.before(log.epochs.end_of(kept.epoch, log.log_end_offset))
    if found is not kept:
        logger.warning(
            "consumer_moved_back", consumer=kept.config.name, stream=replica.stream.full_name,
            position=found.position, before=kept.position,
        )  # fmt: skip
    return found


def _close_all(stream_id: StreamId, consumers: list[Consumer]) -> None:
    for consumer in consumers:
        consumer.close(REQUEST_TIMEOUT)
