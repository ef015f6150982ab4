"""The controller's driver: claims the role, hears heartbeats, proposes what the cores decide."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from jetstream_protocol.types import NodeId, StreamId
from jetstream_server.replication.controller import unclean_elections
from jetstream_server.replication.lease import Heartbeat
from jetstream_server.replication.session_messages import LogEnd
from jetstream_server.replication.sessions import FenceNode, Sessions
from tests.simulation.metadata import View

if TYPE_CHECKING:
    from tests.simulation.process import Process


class ControllerRole:
    """Of one process; `sessions` is None while it is not the controller, as far as it knows."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._log_ends: dict[NodeId, dict[StreamId, LogEnd]] = {}
        self._term = 0
        """How often it has been elected to lead the group."""
        self._claiming = False
        self._electing = False
        self._granted_until_us = 0
        self.sessions: Sessions | None = None

    def begin_term(self) -> None:
        """This process leads the metadata group from now on. What it claimed in an earlier term it
        has no part in any more, whatever it has heard of since (carriage.py)."""
        self._term += 1
        self._claiming = False
        if self.sessions is not None:
            self.sessions = None
            self._granted_until_us = self._process.world.now
        self.claim()

    def claim(self) -> None:
        """This process leads the metadata group, and says so."""
        process = self._process
        if process.cluster.metadata.leader is process and not self._claiming:
            self._claiming = True
            process.cluster.metadata.propose(
                process,
                {"op": "claim_controller", "node_id": process.node_id},
                partial(self._claimed, self._term),
            )

    def _claimed(self, term: int, code: str, result: dict[str, Any]) -> None:
        if term != self._term:
            return  # Elected again since, it has claimed again.
        self._claiming = False
        if code:
            self.claim()
            return
        process = self._process
        epoch = int(result["epoch"])
        if process.view.controller.epoch != epoch:
            return  # Another claim came later, and is applied here already.
        self._log_ends.clear()
        self.sessions = Sessions(
            process.cluster.session_settings,
            claim_revision=epoch,
            nodes=process.view.nodes,
            now_us=process.world.now,
            earlier_sure_at_us=max(
                process.cluster.metadata.earlier_sure_at_us, self._granted_until_us
            ),
        )
        process.world.count("controller claimed")
        process.note(f"is the controller, epoch {epoch}")

    def renew(self, sure_at_us: int) -> None:
        if self.sessions is not None:
            self.sessions.renew(sure_at_us)

    def apply(self, before: View, view: View) -> None:
        """Metadata was applied here."""
        sessions = self.sessions
        if sessions is None:
            return
        if view.controller.epoch != sessions.claim_revision:
            self.sessions = None
            self._granted_until_us = self._process.world.now
        elif view.nodes is not before.nodes:
            sessions.update(view.nodes, view.revision, self._process.world.now)

    def on_heartbeat(self, heartbeat: Heartbeat, log_ends: Sequence[LogEnd]) -> None:
        process, sessions = self._process, self.sessions
        if sessions is None:
            return
        self._log_ends[heartbeat.node_id] = {each.stream_id: each for each in log_ends}
        runs_from_us = sessions.heard(heartbeat, process.world.now)
        if runs_from_us is not None:
            process.cluster.network.send(
                process.node_id, heartbeat.node_id, "on_grant", runs_from_us
            )

    def tick(self) -> None:
        process, sessions = self._process, self.sessions
        if sessions is None:
            self.claim()  # Also when a late claim, even an own one, voided the one that held.
            return
        epoch = sessions.claim_revision
        for decision in sessions.decide(process.world.now):
            process.world.count(
                "node fenced" if isinstance(decision, FenceNode) else "node unfenced"
            )
            if process.world.trace is not None:
                process.note(str(decision))
            process.propose({**decision.command(), "controller_epoch": epoch})
        stream = process.view.stream
        if stream is None or self._electing:
            return
        streams = {stream.id: stream}
        for command in unclean_elections(streams, process.view.nodes, self._log_ends):
            self._electing = True
            process.cluster.faults.election_proposed(command["leader"])
            process.propose({**command, "controller_epoch": epoch}, self._elected)

    def _elected(self, code: str, result: dict[str, Any]) -> None:
        self._electing = False
