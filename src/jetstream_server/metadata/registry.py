"""The metadata state machine: commands in their one order in, results out; the same on every node.

    command = {"op": "create_stream", …fields, "id": [incarnation, sequence], "controller_epoch": n}

`id` makes a command happen once: a repetition is answered with the first result, and a command
of a process that has been replaced is refused. Before it has an incarnation a process gives its
session token instead: it may only send commands that are harmless when repeated.
`controller_epoch` makes a command void under a newer controller. Both may be absent. A result is
{"revision": n, …}, or with {"error": {code, message}}.

Invariants. `apply` is deterministic (no clock, randomness or set order; the proposer supplies time
and ids) and total: whatever the text, it returns a result; a refused command changes nothing but
the revision. Every decision is complete before the first change is made.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from jetstream_protocol.errors import (
    FencedEpochError,
    InternalError,
    InvalidRequestError,
    JetstreamError,
    PreconditionFailedError,
    StorageError,
    from_proto,
)
from jetstream_protocol.generated import common_pb2
from jetstream_protocol.types import StreamId
from jetstream_server.metadata import leadership_commands, node_commands, stream_commands
from jetstream_server.metadata.changes import (
    Change,
    ControllerChanged,
    DeletionsLearned,
    LeaderReported,
    NodeChanged,
    SettingsChanged,
    StreamCreated,
    diff_nodes,
    diff_streams,
)
from jetstream_server.metadata.decision import Decide, Decision
from jetstream_server.metadata.fields import Fields
from jetstream_server.metadata.results import ResultWindows
from jetstream_server.metadata.state_image import StateImage
from jetstream_server.metadata.streams import (
    ClusterSettings,
    ControllerClaim,
)
from jetstream_server.metadata.tables import Tables

COMMAND_LENGTH_MAX = 1 << 20
"""A command names streams and nodes; nothing legitimate comes near a megabyte."""

REPEATABLE = ("register_node", "set_cluster", "barrier")
"""Operations that a process may propose before it has an incarnation."""

REVISIONS_PER_RECOVERY = 1_000_000
"""More than the lost voters can have applied that this group has not: they, too, had to tell it."""

_BUGS = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, AssertionError)
"""What a mistake in a decision would raise, alike on every node. Nothing has changed then, and
refusing the command is the lesser evil: an exception here would stop every node for good."""

OPERATIONS: dict[str, tuple[int, Decide]] = {
    # name: (feature level from which it is understood by every node, how it is decided)
    "create_stream": (1, stream_commands.create_stream),
    "delete_stream": (1, stream_commands.delete_stream),
    "alter_stream": (1, stream_commands.alter_stream),
    "confirm_flush": (1, stream_commands.confirm_flush),
    "change_isr": (1, leadership_commands.change_isr),
    "transfer_leader": (1, leadership_commands.transfer_leader),
    "elect_leader": (1, leadership_commands.elect_leader),
    "distrust_replica": (1, leadership_commands.distrust_replica),
    "report_leader": (1, leadership_commands.report_leader),
    "register_node": (1, node_commands.register_node),
    "fence_node": (1, node_commands.fence_node),
    "unfence_node": (1, node_commands.unfence_node),
    "drain_node": (1, node_commands.drain_node),
    "remove_node": (1, node_commands.remove_node),
    "claim_controller": (1, node_commands.claim_controller),
    "set_cluster": (1, node_commands.set_cluster),
    "barrier": (1, node_commands.barrier),
}


class Registry(Tables):
    """All metadata, and the one way to change it."""

    __slots__ = ("_changes", "_results", "revision")

    def __init__(self) -> None:
        super().__init__()
        self.revision = 0
        self._results = ResultWindows()
        self._changes: list[Change] = []

    def apply(self, command: str, revision: int) -> str:
        """Apply one command as `revision`, which must be higher than the last; never raises."""
        assert revision > self.revision, "commands are applied in order, each once"
        self.revision = revision
        try:
            return self._apply(_parse(command), revision)
        except JetstreamError as error:
            return _encode(_error_result(error, revision))

    def take_changes(self) -> list[Change]:
        """What has changed since the last call, in order."""
        changes, self._changes = self._changes, []
        return changes

    def _apply(self, values: dict[str, Any], revision: int) -> str:
        op, command_id = values.pop("op", None), values.pop("id", None)
        controller_epoch = values.pop("controller_epoch", None)
        if command_id is None:
            return self._decide(op, controller_epoch, values, revision)
        incarnation, sequence = _checked_id(command_id)
        if isinstance(incarnation, str):
            if op not in REPEATABLE:
                raise PreconditionFailedError(f"this process must register before {op!r}")
            return self._decide(op, controller_epoch, values, revision)
        known = self._results.find(incarnation, sequence)
        if known is None:
            try:
                known = self._decide(op, controller_epoch, values, revision)
            except JetstreamError as error:
                known = _encode(_error_result(error, revision))
            self._results.add(incarnation, sequence, known)
        return known

    def _decide(
        self, op: object, controller_epoch: object, values: dict[str, Any], revision: int
    ) -> str:
        level, decide = OPERATIONS.get(op, (0, None)) if isinstance(op, str) else (0, None)
        if decide is None or level > self.settings.feature_level:
            raise InvalidRequestError(
                f"unknown metadata operation {str(op)[:100]!r} at feature level "
                f"{self.settings.feature_level}: a newer version's?"
            )
        if controller_epoch is not None and controller_epoch != self.controller.epoch:
            raise FencedEpochError(
                f"controller epoch {controller_epoch!r} ended; it is {self.controller.epoch}"
            )
        try:
            decision: Decision = decide(self, Fields(values, str(op)), revision)
        except _BUGS as error:
            raise InternalError(f"{op} failed: {error!r}") from error
        self.commit(decision.changes)
        for change in decision.changes:
            if isinstance(change, NodeChanged):
                self._follow_incarnation(change)
            elif isinstance(change, SettingsChanged) and _is_recovery(change):
                # Ids are revisions, and the lost voters may have given out some more.
                self.revision += REVISIONS_PER_RECOVERY
        self._changes.extend(decision.changes)
        return _encode({"revision": revision, **decision.result})

    def _follow_incarnation(self, change: NodeChanged) -> None:
        """Keep results for current incarnations only: others can propose no more."""
        before, after = change.before, change.after
        if before is not None and (after is None or after.incarnation != before.incarnation):
            self._results.close(before.incarnation)
        if after is not None and (before is None or after.incarnation != before.incarnation):
            self._results.open(after.incarnation)

    def snapshot(self) -> bytes:
        """The whole state, compact; `restore` on any node gives an equal registry."""
        return self.capture().encode()

    def capture(self) -> StateImage:
        """The state as of now, to be encoded later or by another thread."""
        return StateImage(
            head={
                "revision": self.revision,
                "settings": self.settings.to_dict(),
                "controller": self.controller.to_dict(),
                "deleted": list(self.deleted),
                "reports": [[key, *self.reports[key]] for key in sorted(self.reports)],
                "results": self._results.to_list(),
            },
            nodes=[self.nodes[node_id] for node_id in sorted(self.nodes)],
            streams=[self.streams[stream_id] for stream_id in sorted(self.streams)],
        )

    def follow(self, changes: Sequence[Change], revision: int) -> None:
        """Become what another copy of this registry became by these changes."""
        self.commit(changes)
        self.revision = revision

    def restore(self, snapshot: bytes) -> None:
        """Become the state of a snapshot; watchers are told the difference (`take_changes`).

        Raises StorageError, unchanged, when it is of another format or no snapshot at all.
        """
        fresh = _restored(snapshot)
        changes: list[Change] = []
        if fresh.settings != self.settings:
            changes.append(SettingsChanged(self.settings, fresh.settings))
        if fresh.controller != self.controller:
            changes.append(ControllerChanged(self.controller, fresh.controller))
        changes.extend(diff_nodes(self.nodes, fresh.nodes))
        told = self.deleted.keys() | self.streams.keys()
        if learned := tuple(known for known in fresh.deleted if known not in told):
            changes.append(DeletionsLearned(learned))
        changes.extend(diff_streams(self.streams, fresh.streams, fresh.deleted))
        for slot in (*Tables.__slots__, "_results", "revision"):
            setattr(self, slot, getattr(fresh, slot))
        self._changes.extend(changes)


def check_result(result: dict[str, Any]) -> dict[str, Any]:
    """A result that is no error; otherwise the JetstreamError it stands for is raised."""
    error = result.get("error")
    if error is None:
        return result
    raise from_proto(common_pb2.Error(code=error["code"], message=error["message"]))


def _parse(command: str) -> dict[str, Any]:
    if len(command) > COMMAND_LENGTH_MAX:
        raise InvalidRequestError(f"metadata command longer than {COMMAND_LENGTH_MAX} characters")
    try:
        values = json.loads(command)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError("metadata command is not JSON") from error
    if not isinstance(values, dict):
        raise InvalidRequestError("metadata command is not a JSON object")
    return values


def _checked_id(command_id: object) -> tuple[int | str, int]:
    match command_id:
        case [(int() | str()) as incarnation, int(sequence)] if sequence >= 0:
            return incarnation, sequence
    raise InvalidRequestError("a command's id is [incarnation, sequence]")


def _error_result(error: JetstreamError, revision: int) -> dict[str, Any]:
    return {"revision": revision, "error": {"code": error.code, "message": error.message}}


def _encode(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _restored(snapshot: bytes) -> Registry:
    image = StateImage.decode(snapshot)
    registry = Registry()
    try:
        registry.revision = image.head["revision"]
        registry.settings = ClusterSettings.from_dict(image.head["settings"])
        registry.controller = ControllerClaim.from_dict(image.head["controller"])
        changes: list[Change] = [NodeChanged(None, node) for node in image.nodes]
        changes.append(DeletionsLearned(tuple(map(StreamId, image.head.get("deleted", ())))))
        changes.extend(StreamCreated(stream) for stream in image.streams)
        for stream_id, *reports in image.head["reports"]:
            standing = tuple((node_id, at_us) for node_id, at_us in reports)
            changes.append(LeaderReported(StreamId(stream_id), standing))
        registry._results = ResultWindows.from_list(image.head["results"])
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(f"metadata snapshot cannot be read: {error}") from error
    registry.commit(changes)
    return registry


def _is_recovery(change: SettingsChanged) -> bool:
    return change.before.recoveries != change.after.recoveries
