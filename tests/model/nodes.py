"""One node: the shipped `Replica` and its driver, each of its states known by a number.

A step is taken once for each state and input: it copies the objects, lets the shipped code decide,
and keeps what came of it. Time stands still at 0, except where LATER says that patience is over.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

from jetstream_protocol.errors import (
    DivergedError,
    FencedEpochError,
    InvalidRequestError,
    NotLeaderError,
    UnknownEpochError,
)
from jetstream_server.log.commit_log import CommitLog
from jetstream_server.replication.core.messages import Answer, FetchRequest, Records
from jetstream_server.replication.core.pending_isr import Outcome
from jetstream_server.replication.core.restart_trust import RunRecord, Trust, judge
from jetstream_server.replication.replica import Replica
from tests.model.log import Entry, ModelLog, Record
from tests.model.metadata import Metadata
from tests.model.naming import Named
from tests.model.process import Process, Proposal, session_of
from tests.support.services import services

RETRY = 1_000_000
"""A time at which retries are due."""
LATER = 20_000_000
"""A time at which every follower that is behind lags, too."""
REFUSALS = (FencedEpochError, InvalidRequestError, NotLeaderError, UnknownEpochError)


class Facts(NamedTuple):
    """What the model asks of a node, looked up once for each of its states."""

    runs: bool
    entries: tuple[Entry, ...]
    flushed_offset: int
    high_watermark: int
    led_epoch: int
    """-1: it does not lead."""
    leader: int
    """Whom it follows, -1: nobody."""
    position: int
    """The number of what it would ask now, -1: nothing."""
    incarnation: int
    may_have_lost: bool
    proposal: int
    """The number of the one it waits for, -1: none."""


class Nodes:
    """See the module."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self.states = Named(Process.key)
        self._facts: dict[int, Facts] = {}
        self._steps: dict[tuple[Any, ...], tuple[int, Any]] = {}
        self.messages = Named()

    def facts(self, state: int) -> Facts:
        found = self._facts.get(state)
        if found is None:
            found = self._facts[state] = self._look(self.states[state])
        return found

    def running(self, node_id: int, view: int) -> int:
        """A node as it is when the stream has just been created."""
        process = Process(node_id)
        incarnation = self._metadata.nodes(view)[node_id].incarnation
        self.start(process, incarnation, view)
        return self.states.of(process)

    def step(self, state: int, name: str, *inputs: Any) -> tuple[int, Any]:
        """The node after the method `name` below, and what that returned."""
        key = (state, name, *inputs)
        found = self._steps.get(key)
        if found is None:
            process = self.states[state].twin()
            output = getattr(self, name)(process, *inputs)
            process.forget_proposal()
            found = self._steps[key] = self.states.of(process), output
        return found

    def trust(self, state: int, registered_session: str) -> Trust:
        """What the shipped rule says of the log of a node that starts again."""
        process: Process = self.states[state]
        record = RunRecord((session_of(process.node_id, process.run),), boot_id="0")
        boot_id = "1" if process.power_lost else "0"
        begun = record.of_new_run(session_of(process.node_id, process.run + 1), boot_id)
        return judge(begun, registered_session, {int(self._metadata.stream_id): ""})

    def run_of(self, state: int) -> int:
        run: int = self.states[state].run
        return run

    def _look(self, process: Process) -> Facts:
        log, replica = process.log, process.replica
        if replica is None:
            return Facts(
                False, log.entries, log.flushed_offset, 0, -1, -1, -1, process.incarnation,
                process.power_lost, -1,
            )  # fmt: skip
        position = replica.position()
        return Facts(
            True, log.entries, log.flushed_offset, replica.high_watermark,
            replica.stream.leader_epoch if replica.leadership is not None else -1,
            replica.stream.leader if position is not None else -1,
            -1 if position is None else self.messages.of(position),
            process.incarnation, False,
            -1 if process.proposal is None else self.messages.of(process.proposal),
        )  # fmt: skip

    # Steps: what the driver does, in its order.

    def start(self, process: Process, incarnation: int, view: int) -> Proposal | None:
        """It has registered, and acts on the metadata that says so."""
        process.run += 1
        process.incarnation, process.sequence, process.proposal = incarnation, 0, None
        process.power_lost = False
        stream = self._metadata.stream(view)
        process.replica = Replica(
            stream,
            cast(CommitLog, process.log),
            services(),
            node_id=process.node_id,
            incarnation=incarnation,
        )
        return self.learn(process, view)

    def learn(self, process: Process, view: int) -> Proposal | None:
        replica = _running(process)
        replica.update(self._metadata.stream(view), self._metadata.nodes_by_id(view), 0)
        return _propose(process, 0)

    def publish(self, process: Process, number: int) -> Proposal | None:
        replica = _running(process)
        replica.append(cast(Any, Record(number)))
        return _propose(process, 0)

    def flush(self, process: Process) -> Proposal | None:
        process.log.flush()
        _running(process).moved()
        return _propose(process, 0)

    def fetch(self, process: Process, message: int) -> tuple[int, Proposal | None]:
        """The number of the answer, -1: refused."""
        request: FetchRequest = self.messages[message]
        try:
            answer = _running(process).fetch(request, 0, 1)
        except REFUSALS:
            return -1, None
        return self.messages.of(answer), _propose(process, 0)

    def accept(self, process: Process, message: int) -> None:
        answer: Answer = self.messages[message]
        data: Any = ()
        if isinstance(answer, Records) and answer.slice is not None:
            data = cast(Any, answer.slice).entries
        try:
            _running(process).accept(answer, data, 0)
        except DivergedError:
            pass  # It asks again.

    def wait(self, process: Process) -> Proposal | None:
        return _propose(process, RETRY)

    def lose_patience(self, process: Process) -> Proposal | None:
        return _propose(process, LATER)

    def settle(self, process: Process, number: int, outcome: Outcome) -> Proposal | None:
        """The proposal came to this."""
        replica = _running(process)
        leadership, change = replica.leadership, self.messages[number].change
        if leadership is not None and leadership._in_sync.pending == change:
            replica.settle(leadership._in_sync.pending, outcome, 0)
        return _propose(process, 0)

    def crash(self, process: Process, kept: int, power_lost: bool) -> None:
        """`kept` records are still there."""
        process.replica, process.incarnation, process.sequence = None, -1, 0
        flushed = process.log.flushed_offset
        process.log = ModelLog(process.log.entries[:kept], min(kept, flushed))
        process.power_lost = process.power_lost or power_lost


def _running(process: Process) -> Replica:
    assert process.replica is not None
    return process.replica


def _propose(process: Process, now_us: int) -> Proposal | None:
    change = _running(process).propose(now_us)
    if change is None:
        return None
    if process.proposal is None or process.proposal.change != change:
        process.sequence += 1
        process.proposal = Proposal(process.node_id, process.incarnation, process.sequence, change)
    return process.proposal
