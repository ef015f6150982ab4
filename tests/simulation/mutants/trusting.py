"""What is believed of a log after a restart, a failed flush, or damage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from jetstream_protocol.errors import StorageError
from jetstream_protocol.logfiles.recorded import Recorded
from jetstream_server.log import recovered_state, recovery
from jetstream_server.log.commit_log import CommitLog
from jetstream_server.log.health import Health
from jetstream_server.log.producers import Producers
from jetstream_server.log.storage import LogStorage
from jetstream_server.metadata.state import node_decisions, registry
from jetstream_server.metadata.state.commands import ConfirmFlush, RegisterNode
from jetstream_server.metadata.state.decision import Decision
from jetstream_server.metadata.state.operations import Operation
from jetstream_server.metadata.state.streams import StreamMetadata
from jetstream_server.metadata.state.tables import Tables
from jetstream_server.replication import found_logs
from jetstream_server.replication.core import restart_trust as trust
from jetstream_server.replication.core.restart_trust import RunRecord, Trust
from jetstream_server.replication.drivers import membership
from jetstream_server.replication.drivers.log_replacement import LogReplacement
from jetstream_server.replication.replica import Replica
from jetstream_server.replication.run_record import RunRecordFile
from tests.simulation.mutants.installing import Patches, mutant
from tests.simulation.runner import COMPACTED, DAMAGED
from tests.simulation.scenarios import (
    FailingDisks,
    LateFlushes,
    LateRegistrations,
    LostBeginnings,
    SlowLeaders,
)


@mutant()
def trusts_logs_after_a_power_failure(patches: Patches) -> None:
    """A node vouches for its logs although the machine has restarted."""
    begun = RunRecord.of_new_run

    def begin(self: RunRecord, session: str, boot_id: str) -> RunRecord:
        return replace(begun(self, session, boot_id), power_lost=False)

    patches.set(RunRecord, "of_new_run", begin)


@mutant()
def trusts_a_clean_stop_for_ever(patches: Patches) -> None:
    """The mark of a clean stop is not taken back when the next run begins."""
    begun = RunRecord.of_new_run

    def begin(self: RunRecord, session: str, boot_id: str) -> RunRecord:
        return replace(begun(self, session, boot_id), clean=self.clean)

    patches.set(RunRecord, "of_new_run", begin)


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
    begun = RunRecord.of_new_run

    def begin(self: RunRecord, session: str, boot_id: str) -> RunRecord:
        return begun(replace(self, power_lost=False), session, boot_id)

    patches.set(RunRecord, "of_new_run", begin)


@mutant(FailingDisks)
def trusts_damaged_logs(patches: Patches) -> None:
    """A log in which recovery found corruption is vouched for."""
    judge = trust.judge

    def lenient(record: RunRecord, registered: str | None, problems: Mapping[int, str]) -> Trust:
        return judge(record, registered, dict.fromkeys(problems, ""))

    patches.set(membership, "judge", lenient)


@mutant(kind=DAMAGED)
def registers_as_trusted_whatever_it_lost(patches: Patches) -> None:
    """A node vouches for its logs, whatever the record of its runs and recovery say."""
    patches.set(membership, "judge", lambda *arguments: Trust(True, ()))


@mutant(kind=DAMAGED)
def begins_runs_without_a_record(patches: Patches) -> None:
    """A run is recorded once it is registered, as what the one before it was."""
    patches.set(RunRecordFile, "begin", lambda self, session, boot_id: None)


@mutant(FailingDisks, kind=DAMAGED)
def opens_suspect_logs_as_good(patches: Patches) -> None:
    """A log whose fsync failed in an earlier run is opened as every other, and told to be good. And
    it is not written again, without which that would be true."""
    patches.set(LogStorage, "write_again", lambda self, offset: None)
    judge = trust.judge

    def lenient(record: RunRecord, registered: str | None, problems: Mapping[int, str]) -> Trust:
        return judge(replace(record, suspects=()), registered, problems)

    patches.set(membership, "judge", lenient)
    patches.set(found_logs, "_forget_checkpoint", lambda disk, directory: None)
    init = Replica.__init__

    def as_any(self: Replica, *arguments: Any, **rest: Any) -> None:
        init(self, *arguments, **{**rest, "rebuild": False})

    as_any.__kwdefaults__ = init.__kwdefaults__
    patches.set(Replica, "__init__", as_any)


@mutant(FailingDisks, kind=DAMAGED)
def never_distrusts_a_failed_log(patches: Patches) -> None:
    """A node whose log has failed does not tell the metadata."""
    patches.set(LogReplacement, "_distrust", lambda self, replica: None)


@mutant(LostBeginnings)
def lets_logs_in_that_may_lack_their_beginning(patches: Patches) -> None:
    """Where nothing says where a log starts, what is left of it is taken for the whole."""
    patches.set(recovery, "_is_start_unknown", lambda found: False)


@mutant(kind=DAMAGED)
def takes_what_lacks_its_beginning_for_nothing(patches: Patches) -> None:
    """A log without its first segment counts no more in an unclean election than an empty one."""
    patches.set(CommitLog, "is_lost", property(lambda self: self.lacks_beginning))


@mutant(LostBeginnings)
def acknowledges_again_what_was_lost_in_front(patches: Patches) -> None:
    """A repetition of what lies in a lost segment passes for stored."""
    patches.set(Producers, "forget_before", lambda self, log_start_offset: None)


@mutant(FailingDisks)
def trusts_failed_flushes(patches: Patches) -> None:
    """That an fsync failed is forgotten at the next start, and nothing is written again."""
    patches.set(LogStorage, "write_again", lambda self, offset: None)
    patches.set(RunRecord, "suspecting", lambda self, stream_id: self)


@mutant(FailingDisks)
def flushes_again_after_a_failure(patches: Patches) -> None:
    """A failed fsync is tried again, and its success believed."""

    def go_on(self: Health, error: OSError, doing: str) -> StorageError:
        return StorageError(doing)

    def retry(self: Replica, error: StorageError) -> None:
        self.flush()

    patches.set(Health, "_take_offline", go_on)
    patches.set(Replica, "fail", retry)


@mutant(FailingDisks)
def cuts_corruption_off(patches: Patches) -> None:
    """Recovery cuts the log at the first bad batch, whatever speaks against it."""
    patches.set(recovery._Scan, "_evidence_of_damage", lambda *arguments: "")
    patches.set(Recorded, "end_offset", 0)


@mutant(FailingDisks)
def takes_the_first_segment_for_the_log_start(patches: Patches) -> None:
    """What is missing in front passes for removed by retention."""
    loss = recovery._loss_at_beginning

    def lenient(directory: str, found: recovery.Recovered) -> str:
        return "" if found.segments else loss(directory, found)

    patches.set(recovery, "_loss_at_beginning", lenient)


@mutant(FailingDisks)
def takes_a_lost_folder_for_an_empty_log(patches: Patches) -> None:
    """A log that is gone passes for one that never held anything."""
    loss = recovery._loss_at_beginning

    def lenient(directory: str, found: recovery.Recovered) -> str:
        return loss(directory, found) if found.segments else ""

    patches.set(recovery, "_loss_at_beginning", lenient)


@mutant(FailingDisks)
def forgets_what_was_flushed(patches: Patches) -> None:
    """Nothing but the checkpoint says how far the log reached."""
    patches.set(recovered_state, "read_offsets", lambda disk, directory: None)


@mutant(FailingDisks)
def cuts_off_what_the_same_boot_wrote(patches: Patches) -> None:
    """After the death of the process alone, a bad end passes for a torn append all the same."""
    patches.set(Recorded, "is_same_boot", False)
    patches.set(Recorded, "may_be_same_boot", False)


@mutant(LateRegistrations)
def believes_a_late_registration(patches: Patches) -> None:
    """A registration of a run that is over takes the node from the run that replaced it."""
    decide = node_decisions.register_node

    def lenient(tables: Tables, command: RegisterNode) -> Decision:
        return decide(tables, replace(command, replaces=None))

    operation = Operation(RegisterNode, lenient)
    operations = {**registry.OPERATIONS, RegisterNode.op: operation}
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

    def at_once(self: Replica) -> ConfirmFlush | None:
        self._flush_target = 0
        return confirmation(self)

    patches.set(Replica, "flush_confirmation", at_once)


@mutant(LateFlushes)
def needs_no_flush_confirmation(patches: Patches) -> None:
    """Changing flush to `group` earns trust after a power failure at once."""
    flushes = property(lambda self: self.config.flush == "group")
    patches.set(StreamMetadata, "flushes_before_ack", flushes)


@mutant(kind=COMPACTED)
def empties_logs_whose_failure_is_not_recorded(patches: Patches) -> None:
    """A log that nobody counts on is emptied at once, although its leader is about to add it."""
    patches.set(Replica, "is_failure_recorded", property(lambda self: True))


@mutant()
def takes_flushed_records_for_torn(patches: Patches) -> None:
    """After a power failure the last records of a log are cut off, though they were flushed."""
    open_log = found_logs.open_log

    def open_cut(*arguments: Any, **settings: Any) -> Any:
        log, unreadable_reason = open_log(*arguments, **settings)
        end, record = log.log_end_offset - 3, arguments[4]
        is_sound = not (log.offline_reason or unreadable_reason)
        if record.power_lost and is_sound and end > log.log_start_offset:
            log.truncate(end)
            log.incomplete_reason = "its last records were torn"
        return log, unreadable_reason

    patches.set(found_logs, "open_log", open_cut)


@mutant(kind=DAMAGED)
def removes_the_beginning_after_a_lossy_election(patches: Patches) -> None:
    """A replica drops its first segments once an election has lost something."""
    update = Replica.update

    def drops(self: Replica, *arguments: Any) -> Any:
        changes = update(self, *arguments)
        log = self.log
        is_sound = not (self.unreadable_reason or log.offline_reason)
        if self.stream.lossy_elections and is_sound and log.segment_count > 2:
            base = list(log.damage.segments())[2].base_offset
            if base <= min(self.high_watermark, log.flushed_offset):
                log.begin_advance(base)
                log.finish_advance()
        return changes

    patches.set(Replica, "update", drops)
