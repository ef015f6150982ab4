"""Streams that move: when the old replicas may go."""

from __future__ import annotations

from jetstream_protocol.types import NO_NODE
from jetstream_server.metadata.state import reassignment_decisions
from jetstream_server.metadata.state.streams import StreamMetadata
from jetstream_server.replication.drivers import controller
from tests.simulation.mutants.installing import Patches, mutant
from tests.simulation.runner import REASSIGNED


@mutant(kind=REASSIGNED)
def moves_before_the_new_replicas_are_in_sync(patches: Patches) -> None:
    """The old replicas go as soon as one of the target leads."""

    def may_finish(stream: StreamMetadata) -> bool:
        return bool(stream.target_replicas) and stream.leader in stream.target_replicas

    for module in (reassignment_decisions, controller):
        patches.set(module, "may_finish", may_finish)


@mutant(kind=REASSIGNED)
def takes_the_leader_s_replica_away(patches: Patches) -> None:
    """The old replicas go although one of them leads."""

    def may_finish(stream: StreamMetadata) -> bool:
        target = stream.target_replicas
        return bool(target) and stream.leader != NO_NODE and not set(target) - set(stream.isr)

    for module in (reassignment_decisions, controller):
        patches.set(module, "may_finish", may_finish)
    patches.set(controller, "leaving_leaders", lambda tables, moves_max: [])
