"""Batches that producers send straight to the leader."""

from __future__ import annotations

from typing import Any

from jetstream_server.ingest.stream.acks import Answer, Direct
from jetstream_server.ingest.stream.envelopes import ArrivedBatch
from jetstream_server.ingest.stream.pending_acks import PendingAcks
from jetstream_server.ingest.stream.stream_ingest import StreamIngest
from jetstream_server.log.producers import Producers, StoredBatch
from tests.simulation.mutants.installing import Patches, mutant


@mutant()
def acknowledges_what_another_leader_took(patches: Patches) -> None:
    """A leader that is replaced says of the batches that still wait that they are stored."""

    def drop(self: PendingAcks) -> None:
        for pending in list(self._pending):
            for answer in pending.answers:
                if isinstance(answer.reply, Direct):
                    self.answer(answer)
        self._pending.clear()

    patches.set(PendingAcks, "drop", drop)


@mutant()
def forgets_numbers_between_the_ways(patches: Patches) -> None:
    """What was sent by one way is not known when it is repeated by the other."""
    store, check = StreamIngest._store_batch, Producers.check
    way: list[bool] = [False]
    taken: dict[tuple[int, int], bool] = {}

    def store_by_way(self: StreamIngest, arrived: ArrivedBatch) -> None:
        way[0] = isinstance(arrived.reply, Direct)
        store(self, arrived)

    def of_this_way(
        self: Producers, producer_id: int, sequence: int, body_crc: int
    ) -> StoredBatch | None:
        found = check(self, producer_id, sequence, body_crc)
        by = taken.setdefault((producer_id, sequence), way[0])
        return found if by == way[0] else None

    patches.set(StreamIngest, "_store_batch", store_by_way)
    patches.set(Producers, "check", of_this_way)


@mutant()
def answers_out_of_order(patches: Patches) -> None:
    """Of two batches that wait on connections, each gets the other one's answer."""
    wait = PendingAcks.wait

    def exchanged(self: PendingAcks, pending: Any) -> None:
        last = self._pending[-1] if self._pending else None
        if last is not None and _is_direct(last.answers) and _is_direct(pending.answers):
            last.answers[0], pending.answers[0] = (
                last.answers[0]._replace(reply=pending.answers[0].reply),
                pending.answers[0]._replace(reply=last.answers[0].reply),
            )
        wait(self, pending)

    patches.set(PendingAcks, "wait", exchanged)


def _is_direct(answers: list[Answer]) -> bool:
    return bool(answers) and isinstance(answers[0].reply, Direct)
