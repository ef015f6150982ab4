"""What is believed of a log after a restart, a failed flush, or damage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from jetstream_protocol.errors import StorageError
from jetstream_server.log import recovery
from jetstream_server.log.health import Health
from jetstream_server.metadata import (
    node_commands,
    registry,
)
from jetstream_server.metadata.streams import StreamMetadata
from jetstream_server.replication import membership, trust
from jetstream_server.replication.replica import Replica
from jetstream_server.replication.replicas import Replicas
from jetstream_server.replication.trust import RunRecord, Trust
from tests.simulation.mutants.installing import Patches, mutant
from tests.simulation.scenarios import FailingDisks, LateFlushes, LateRegistrations, SlowLeaders


@mutant()
def trusts_logs_after_a_power_failure(patches: Patches) -> None:
    """A node vouches for its logs although the machine has restarted."""
    begun = RunRecord.begun

    def begin(self: RunRecord, session: str, boot_id: str) -> RunRecord:
        return replace(begun(self, session, boot_id), power_lost=False)

    patches.set(RunRecord, "begun", begin)


@mutant()
def trusts_a_clean_stop_for_ever(patches: Patches) -> None:
    """The mark of a clean stop is not taken back when the next run begins."""
    begun = RunRecord.begun

    def begin(self: RunRecord, session: str, boot_id: str) -> RunRecord:
        return replace(begun(self, session, boot_id), clean=self.clean)

    patches.set(RunRecord, "begun", begin)


@mutant(SlowLeaders)
def trusts_any_folder(patches: Patches) -> None:
    """A data folder that the registered session did not write is believed."""
    judge = trust.judge

    def lenient(record: RunRecord, registered: str | None, problems: Mapping[int, str]) -> Trust:
        return judge(record, None, problems)

    patches.set(membership, "judge", lenient)


@mutant(LateRegistrations)
def forgets_runs_that_never_registered(patches: Patches) -> None:
    """A run that ended before it registered leaves no trace of what it found lost."""
    begun = RunRecord.begun

    def begin(self: RunRecord, session: str, boot_id: str) -> RunRecord:
        return begun(replace(self, power_lost=False), session, boot_id)

    patches.set(RunRecord, "begun", begin)


@mutant(FailingDisks)
def trusts_damaged_logs(patches: Patches) -> None:
    """A log in which recovery found corruption is vouched for."""
    judge = trust.judge

    def lenient(record: RunRecord, registered: str | None, problems: Mapping[int, str]) -> Trust:
        return judge(record, registered, dict.fromkeys(problems, ""))

    patches.set(membership, "judge", lenient)


@mutant(FailingDisks)
def trusts_failed_flushes(patches: Patches) -> None:
    """That an fsync failed is forgotten at the next start."""
    patches.set(RunRecord, "suspecting", lambda self, stream_id: self)


@mutant(FailingDisks)
def flushes_again_after_a_failure(patches: Patches) -> None:
    """A failed fsync is tried again, and its success believed."""

    def go_on(self: Health, error: OSError, doing: str) -> StorageError:
        return StorageError(doing)

    def retry(self: Replicas, replica: Replica, error: StorageError) -> None:
        self.flush(replica)

    patches.set(Health, "_take_offline", go_on)
    patches.set(Replicas, "failed", retry)


@mutant(FailingDisks)
def cuts_corruption_off(patches: Patches) -> None:
    """Recovery cuts the log at the first bad batch, although valid ones follow."""
    patches.set(recovery._Scan, "_find_valid_behind", lambda *arguments: "")


@mutant(LateRegistrations)
def believes_a_late_registration(patches: Patches) -> None:
    """A registration of a run that is over takes the node from the run that replaced it."""
    decide = node_commands.register_node

    def lenient(tables: Any, fields: Any, revision: int) -> Any:
        fields.text("replaces", "")
        fields._values.pop("replaces", None)
        return decide(tables, fields, revision)

    operations = {**registry.OPERATIONS, "register_node": (1, lenient)}
    patches.set(registry, "OPERATIONS", operations)


@mutant(LateFlushes)
def confirms_flushes_too_early(patches: Patches) -> None:
    """A follower confirms its flush while the leader still counts what is in memory only."""
    may_confirm = Replica._may_confirm_flush

    def early(self: Replica) -> bool:
        if self.following is not None:
            self.following._confirmable = True
        return may_confirm(self)

    patches.set(Replica, "_may_confirm_flush", early)


@mutant(LateFlushes)
def confirms_without_a_flush(patches: Patches) -> None:
    """A replica confirms a flush that has not taken place."""
    confirmation = Replica.flush_confirmation

    def at_once(self: Replica) -> dict[str, Any] | None:
        self._flush_target = 0
        return confirmation(self)

    patches.set(Replica, "flush_confirmation", at_once)


@mutant(LateFlushes)
def needs_no_flush_confirmation(patches: Patches) -> None:
    """Changing flush to `group` earns trust after a power failure at once."""
    flushes = property(lambda self: self.config.flush == "group")
    patches.set(StreamMetadata, "flushes_before_ack", flushes)
