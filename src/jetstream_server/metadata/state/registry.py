"""The metadata state machine: takes commands in their one order, the same on every node.

    command = {"op": "create_stream", …fields, "id": [incarnation, sequence], "controller_epoch": n,
               "made_at": n}

`id` makes a command happen once: a repetition gets the first result, and a command of a process
that has been replaced is refused. Before it has an incarnation, a process gives its session token
instead, and may only send commands that are harmless when repeated. `controller_epoch` makes a
command void under a newer controller, and `made_at` makes a caller's command void after a later one
about the same thing (last_changes.py). All three may be absent. A result is {"revision": n, …}, or
with {"error": {code, message}}.

Invariants. `apply` is deterministic (no clock, randomness or set order; the proposer supplies time
and ids) and total: it returns a result for any text. A refused command changes nothing but the
revision. Every decision is complete before the first change is made.
"""

from __future__ import annotations

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
from jetstream_protocol.types import StreamId, WallUs
from jetstream_server.metadata.state import commands
from jetstream_server.metadata.state.activity import outbox_after
from jetstream_server.metadata.state.changes import (
    ActivityChanged,
    Change,
    ControllerChanged,
    DeletionsLearned,
    LeaderReported,
    NodeChanged,
    SecurityChanged,
    SettingsChanged,
    StreamCreated,
    diff_nodes,
    diff_streams,
)
from jetstream_server.metadata.state.cluster import ClusterSettings, ControllerClaim
from jetstream_server.metadata.state.command_json import Envelope, decode_command
from jetstream_server.metadata.state.commands import MADE_AT_LEVEL
from jetstream_server.metadata.state.fields import Fields
from jetstream_server.metadata.state.last_changes import LastChanges
from jetstream_server.metadata.state.operations import OPERATIONS, REPEATABLE
from jetstream_server.metadata.state.outbox import Outbox
from jetstream_server.metadata.state.results import ResultWindows
from jetstream_server.metadata.state.state_image import StateImage
from jetstream_server.metadata.state.tables import Tables
from jetstream_server.security.state import SecurityState

REVISIONS_PER_RECOVERY = 1_000_000_000
"""More than the lost voters can have applied without this group: one a second for thirty years."""
REVISIONS_PER_EARLIER_RECOVERY = 1_000_000
"""Below RECOVERY_LEVEL."""

_BUGS = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, AssertionError)
"""Exceptions that a bug in a decision would raise, on every node alike. Nothing has changed then,
and the command is refused: an unhandled exception would stop every node for ever."""


class Registry(Tables):
    """All metadata, and the one way to change it."""

    __slots__ = ("_changes", "_last_changes", "_results")

    def __init__(self) -> None:
        super().__init__()
        self._results = ResultWindows()
        self._last_changes = LastChanges()
        self._changes: list[Change] = []

    def apply(self, command: str, revision: int) -> dict[str, Any]:
        """Apply one command as `revision`, which must be higher than the last one, and return its
        result. Never raises."""
        assert revision > self.revision, "commands are applied in order, each once"
        self.revision = revision
        try:
            return self._apply(decode_command(command), revision)
        except JetstreamError as error:
            return _error_result(error, revision)

    def take_changes(self) -> list[Change]:
        """The changes since the last call, in order."""
        changes, self._changes = self._changes, []
        return changes

    def _apply(self, envelope: Envelope, revision: int) -> dict[str, Any]:
        if envelope.id is None:
            return self._decide(envelope, revision)
        incarnation, sequence = envelope.id
        if isinstance(incarnation, str):
            if envelope.op not in REPEATABLE:
                raise PreconditionFailedError(f"this process must register before {envelope.op!r}")
            return self._decide(envelope, revision)
        result = self._results.find(incarnation, sequence)
        if result is None:
            try:
                result = self._decide(envelope, revision)
            except JetstreamError as error:
                result = _error_result(error, revision)
            self._results.add(incarnation, sequence, result)
        return result

    def _decide(self, envelope: Envelope, revision: int) -> dict[str, Any]:
        op, epoch, level = envelope.op, envelope.controller_epoch, self.settings.feature_level
        operation = OPERATIONS.get(op) if isinstance(op, str) else None
        if operation is None or operation.command.level > level:
            raise InvalidRequestError(
                f"unknown metadata operation {str(op)[:100]!r} at feature level {level}: "
                "a newer version's?"
            )
        if epoch is not None and epoch != self.controller.epoch:
            raise FencedEpochError(
                f"controller epoch {epoch!r} ended; it is {self.controller.epoch}"
            )
        made_at = envelope.fields.pop("made_at", None) if level >= MADE_AT_LEVEL else None
        dated = Fields({"made_at": made_at}, str(op))
        try:
            command = operation.command.parse(envelope.fields, level)
            about = operation.about(self, command)
            if dated.has("made_at"):
                self._last_changes.check(about, dated.integer("made_at"))
            decision = operation.decide(self, command)
        except _BUGS as error:
            raise InternalError(f"{op} failed: {error!r}") from error
        self.commit(decision.changes)
        for change in decision.changes:
            if isinstance(change, NodeChanged):
                self._follow_incarnation(change)
            elif isinstance(change, SettingsChanged) and _is_recovery(change):
                # Ids are revisions, and the lost voters may have given out more of them.
                is_earlier = level < commands.RECOVERY_LEVEL
                self.revision += (
                    REVISIONS_PER_EARLIER_RECOVERY if is_earlier else REVISIONS_PER_RECOVERY
                )
        if level >= MADE_AT_LEVEL:
            self._last_changes.note(about, self.revision)
        self._changes.extend(decision.changes)
        self._note_activity(decision.changes)
        return {"revision": revision, **decision.result}

    def _note_activity(self, changes: Sequence[Change]) -> None:
        """Note events in the entry that makes the changes, so that neither is ever without the
        other."""
        before, after = self.activity, outbox_after(self, changes)
        if after is not before:
            change = ActivityChanged(before, after)
            self.commit((change,))
            self._changes.append(change)

    def _follow_incarnation(self, change: NodeChanged) -> None:
        """Keep results for current incarnations only: others cannot propose any more."""
        before, after = change.before, change.after
        if before is not None and (after is None or after.incarnation != before.incarnation):
            self._results.close(before.incarnation)
        if after is not None and (before is None or after.incarnation != before.incarnation):
            self._results.open(after.incarnation)

    def check_understood(self) -> None:
        """Raise StorageError at a feature level that this software does not know. **safety** Such a
        level allows commands that the other nodes apply and this one would refuse."""
        level = self.settings.feature_level
        if level > commands.FEATURE_LEVEL_MAX:
            raise StorageError(
                f"the metadata is at feature level {level}, and this software understands "
                f"{commands.FEATURE_LEVEL_MAX}: update this server"
            )

    def snapshot(self) -> bytes:
        """The whole state, compact. `restore` gives an equal registry on any node."""
        return self.capture().encode()

    def capture(self) -> StateImage:
        """The current state, to be encoded later or by another thread."""
        security = {} if self.security == SecurityState() else {"security": self.security.to_dict()}
        activity = {} if self.activity == Outbox() else {"activity": self.activity.to_dict()}
        last_changes = self._last_changes.to_dict()
        lakes = [[stream_id, made_us] for stream_id, made_us in self.deleted.items() if made_us]
        return StateImage(
            head={
                "revision": self.revision,
                "settings": self.settings.to_dict(),
                "controller": self.controller.to_dict(),
                "deleted": list(self.deleted),
                **({"deleted_lakes": lakes} if lakes else {}),
                "reports": [[key, *self.reports[key]] for key in sorted(self.reports)],
                "results": self._results.copy(),
                **({"last_changes": last_changes} if last_changes else {}),
                **security,
                **activity,
            },
            nodes=[self.nodes[node_id] for node_id in sorted(self.nodes)],
            streams=[self.streams[stream_id] for stream_id in sorted(self.streams)],
        )

    def follow(self, changes: Sequence[Change], revision: int) -> None:
        """Apply the changes of another copy of this registry."""
        self.commit(changes)
        self.revision = revision

    def restore(self, snapshot: bytes) -> None:
        """Take over the state of a snapshot. Watchers get the difference (`take_changes`).

        Raises StorageError, with nothing changed, when it has another format or a newer feature
        level, or is not a snapshot.
        """
        fresh = _registry_from(snapshot)
        changes: list[Change] = []
        if fresh.settings != self.settings:
            changes.append(SettingsChanged(self.settings, fresh.settings))
        if fresh.controller != self.controller:
            changes.append(ControllerChanged(self.controller, fresh.controller))
        if fresh.security != self.security:
            changes.append(SecurityChanged(self.security, fresh.security))
        if fresh.activity != self.activity:
            changes.append(ActivityChanged(self.activity, fresh.activity))
        changes.extend(diff_nodes(self.nodes, fresh.nodes))
        known_ids = self.deleted.keys() | self.streams.keys()
        learned = tuple(each for each in fresh.deleted.items() if each[0] not in known_ids)
        if learned:
            changes.append(DeletionsLearned(learned))
        changes.extend(diff_streams(self.streams, fresh.streams, fresh.deleted))
        for slot in (*Tables.__slots__, "_last_changes", "_results"):
            setattr(self, slot, getattr(fresh, slot))
        self._changes.extend(changes)


def check_result(result: dict[str, Any]) -> dict[str, Any]:
    """Return the result, or raise the JetstreamError that it stands for."""
    error = result.get("error")
    if error is None:
        return result
    raise from_proto(common_pb2.Error(code=error["code"], message=error["message"]))


def _error_result(error: JetstreamError, revision: int) -> dict[str, Any]:
    return {"revision": revision, "error": {"code": error.code, "message": error.message}}


def _registry_from(snapshot: bytes) -> Registry:
    image = StateImage.decode(snapshot)
    registry = Registry()
    try:
        registry.revision = image.head["revision"]
        registry.settings = ClusterSettings.from_dict(image.head["settings"])
        registry.controller = ControllerClaim.from_dict(image.head["controller"])
        if "security" in image.head:
            registry.security = SecurityState.from_dict(image.head["security"])
        if "activity" in image.head:
            registry.activity = Outbox.from_dict(image.head["activity"])
        changes: list[Change] = [NodeChanged(None, node) for node in image.nodes]
        deleted = dict.fromkeys(map(StreamId, image.head.get("deleted", ())), WallUs(0))
        deleted.update(image.head.get("deleted_lakes", ()))
        changes.append(DeletionsLearned(tuple(deleted.items())))
        changes.extend(StreamCreated(stream) for stream in image.streams)
        for stream_id, *reports in image.head["reports"]:
            standing = tuple((node_id, at_us) for node_id, at_us in reports)
            changes.append(LeaderReported(StreamId(stream_id), standing))
        registry._results = image.head["results"]
        registry._last_changes = LastChanges(image.head.get("last_changes"))
        registry.commit(changes)
        registry.check_understood()
        registry.capture()  # What cannot be ordered could not be written again.
    except _BUGS as error:
        raise StorageError(f"metadata snapshot cannot be read: {error!r}") from error
    return registry


def _is_recovery(change: SettingsChanged) -> bool:
    return change.before.recoveries != change.after.recoveries
