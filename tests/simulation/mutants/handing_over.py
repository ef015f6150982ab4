"""Planned hand-overs. The last two cost no record: they leave publishers in doubt where nothing is
wrong."""

from __future__ import annotations

from typing import Any, cast

from jetstream_protocol.types import NodeId, StreamId
from jetstream_server.ingest.ingest import Ingest
from jetstream_server.ingest.nats.delivery import Delivery
from jetstream_server.ingest.stream.stand_by import StandBy
from jetstream_server.ingest.stream.stream_ingest import StreamIngest
from jetstream_server.metadata.state.streams import StreamMetadata
from jetstream_server.replication.drivers.hand_over import HandOver
from tests.simulation.mutants.installing import Patches, mutant
from tests.simulation.peers import SimulatedPeers
from tests.simulation.scenarios import LeftStandingBy, PlannedHandOvers


@mutant(LeftStandingBy)
def stores_what_it_kept_whatever_its_log(patches: Patches) -> None:
    """What was kept is stored although the old leader went on, and may have stored it too."""
    store = StandBy.store

    def always(self: StandBy, ingest: StreamIngest, leader_epoch: int, log_end_offset: int) -> bool:
        return store(self, ingest, leader_epoch, 0)

    patches.set(StandBy, "store", always)


@mutant(PlannedHandOvers)
def stores_what_it_kept_whoever_led_meanwhile(patches: Patches) -> None:
    """What was kept is stored by a later leadership too, after another leader refused it."""
    store = StandBy.store

    def always(self: StandBy, ingest: StreamIngest, leader_epoch: int, log_end_offset: int) -> bool:
        return store(self, ingest, self.leader_epoch + 1, log_end_offset)

    patches.set(StandBy, "store", always)
    patches.set(Ingest, "led_elsewhere", lambda self, replica: None)  # It ends the stand-by, too.


@mutant(LeftStandingBy)
def stays_subscribed_although_the_old_leader_went_on(patches: Patches) -> None:
    """What was kept is dropped, and what is on the way from NATS is stored: by both."""
    store = StandBy.store

    def always(self: StandBy, ingest: StreamIngest, leader_epoch: int, log_end_offset: int) -> bool:
        store(self, ingest, leader_epoch, log_end_offset)
        self._ingest = ingest
        return True

    patches.set(StandBy, "store", always)


@mutant(PlannedHandOvers)
def listens_before_the_old_leader_is_silent(patches: Patches) -> None:
    """The target keeps what comes from when it was asked whether it can."""
    prepare, stand_by = HandOver.prepare, Ingest.stand_by
    early: dict[Ingest, list[Delivery]] = {}

    def at_once(self: HandOver, stream_id: StreamId, **rest: bool) -> None:
        prepare(self, stream_id, **rest)
        ingest = cast(Ingest, self._publishers)
        if ingest not in early:
            early[ingest] = []
            ingest._connection.subscribe("orders", "", early[ingest].append)

    async def with_what_came(self: Ingest, stream: StreamMetadata, *arguments: int) -> int:
        gap_us = await stand_by(self, stream, *arguments)
        standing = self._standing_by.get(stream.id)
        if standing is not None:
            standing._kept = [*early.get(self, ()), *(standing._kept or ())]
        return gap_us

    patches.set(HandOver, "prepare", at_once)
    patches.set(Ingest, "stand_by", with_what_came)


@mutant(PlannedHandOvers)
def calls_nobody_off(patches: Patches) -> None:
    """A hand-over is given up, and the target goes on keeping what the old leader refuses."""

    async def not_at_all(
        self: HandOver, target: NodeId, stream_id: StreamId, leader_epoch: int
    ) -> None:
        cast(SimulatedPeers, self._successors).called_off(stream_id, target)

    patches.set(HandOver, "_cancel_stand_by", not_at_all)


@mutant(PlannedHandOvers)
def gives_the_leadership_before_the_tail(patches: Patches) -> None:
    """The leadership moves before the target has the tail and its publishers their answers."""

    async def at_once(self: HandOver, *arguments: Any) -> None:
        return None

    patches.set(HandOver, "_replicate_tail", at_once)


@mutant(PlannedHandOvers)
def hands_over_without_draining(patches: Patches) -> None:
    """What NATS had delivered by then is not waited for."""

    async def at_once(self: Ingest, stream_id: int) -> None:
        ingest = self._streams[stream_id]
        ingest.is_handed_over = True
        self._unsubscribe(ingest)

    patches.set(Ingest, "pause", at_once)
