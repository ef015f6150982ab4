"""Which logs a node may call trusted after a restart, and who leads if none is trusted."""

from __future__ import annotations

from dataclasses import replace

from jetstream_protocol.types import NO_NODE, NodeId
from jetstream_server.replication.core.restart_trust import RunRecord, Trust, judge
from jetstream_server.replication.core.unclean_election import ReplicaReport, choose_unclean
from tests.unit.replication.cores import nodes, stream

FINE = {1: "", 2: ""}


def run(boot_id: str = "boot") -> RunRecord:
    return RunRecord().of_new_run("first", boot_id).of_registered_run("first")


class TestJudge:
    def test_the_same_boot_is_trusted(self) -> None:
        assert judge(run().of_new_run("second", "boot"), "first", FINE) == Trust(True, ())

    def test_another_boot_is_not_unless_the_stop_was_clean(self) -> None:
        assert judge(run().of_new_run("second", "other"), "first", FINE) == Trust(False, ())
        assert judge(run().of_clean_end().of_new_run("second", "other"), "first", FINE) == Trust(
            True, ()
        )

    def test_a_run_that_never_registered_hides_no_power_failure(self) -> None:
        record = run().of_new_run("second", "other").of_new_run("third", "other")
        assert judge(record, "first", FINE) == Trust(False, ())

    def test_a_folder_of_another_session_is_not_believed_at_all(self) -> None:
        record = RunRecord.from_dict(None).of_new_run("second", "boot")
        assert judge(record, "first", FINE) == Trust(False, (1, 2))

    def test_damage_and_failed_flushes_are_named(self) -> None:
        record = run().suspecting(2).of_new_run("second", "boot")
        assert judge(record, "first", {1: "rot", 2: "", 3: ""}) == Trust(True, (1, 2))

    def test_the_record_survives_its_state_file(self) -> None:
        record = run().suspecting(4).folder_replaced(7).streams_lost(3)
        assert RunRecord.from_dict(record.to_dict()) == record


class TestUnclean:
    def waiting(self) -> dict[NodeId, ReplicaReport]:
        return {
            NodeId(1): ReplicaReport(10, last_epoch=3, log_end_offset=9, damaged=False),
            NodeId(2): ReplicaReport(10, last_epoch=4, log_end_offset=5, damaged=True),
        }

    WAITING = replace(stream(()), leader=NO_NODE, last_known=(NodeId(1), NodeId(2)))

    def chosen(self, *, is_late: bool, **ends: ReplicaReport) -> int | None:
        """Who is elected, with other reports in place of those of `waiting`, by n0, n1, n2."""
        reports = {**self.waiting(), **{NodeId(int(key[1])): each for key, each in ends.items()}}
        command = choose_unclean(self.WAITING, nodes(), reports, is_late=is_late)
        return None if command is None else command.leader

    def test_the_highest_epoch_and_end_leads_damaged_or_not(self) -> None:
        command = choose_unclean(self.WAITING, nodes(), self.waiting(), is_late=True)
        assert command is not None
        assert (command.leader, command.incarnations) == (2, (10, 10))

    def test_it_waits_for_everyone_alive_in_the_incarnation_that_told(self) -> None:
        of = self.WAITING
        assert choose_unclean(of, nodes(n1=True), self.waiting(), is_late=True) is None
        old = {**self.waiting(), NodeId(1): ReplicaReport(9, 3, 9, False)}
        assert choose_unclean(of, nodes(), old, is_late=True) is None

    def test_other_replicas_are_candidates_and_waited_for_a_while(self) -> None:
        assert self.chosen(is_late=False) is None
        assert self.chosen(is_late=False, n0=ReplicaReport(10, 4, 6, True)) == 0
        assert self.chosen(is_late=False, n0=ReplicaReport(10, 4, 4, False)) == 2
        assert self.chosen(is_late=True, n0=ReplicaReport(9, 4, 6, True)) == 2, "an earlier run's"

    def test_any_log_is_waited_for_while_the_last_known_ones_have_no_records(self) -> None:
        lost = ReplicaReport(10, -1, 0, True)
        assert self.chosen(is_late=True, n1=lost, n2=lost) is None
        assert self.chosen(is_late=True, n1=lost, n2=lost, n0=ReplicaReport(10, 0, 1, True)) == 0
        assert self.chosen(is_late=True, n1=lost, n2=lost, n0=lost) == 0
        assert self.chosen(is_late=True, n1=lost) == 2

    def test_a_log_that_never_had_a_record_is_worth_electing(self) -> None:
        empty, lost = ReplicaReport(10, -1, 0, False), ReplicaReport(10, -1, 0, True)
        assert self.chosen(is_late=False, n1=empty, n2=lost) is None
        assert self.chosen(is_late=True, n1=lost, n2=empty) == 2

    def test_who_ends_before_a_log_that_was_begun_anew_is_no_candidate(self) -> None:
        """What lay in front was removed everywhere; its offsets must not be given again."""
        anew = ReplicaReport(10, -1, 500, False)
        behind, beyond = ReplicaReport(10, 3, 400, False), ReplicaReport(10, 3, 510, False)
        assert self.chosen(is_late=False, n1=anew, n2=anew, n0=behind) == 1
        assert self.chosen(is_late=False, n1=anew, n2=anew, n0=beyond) == 0
        assert self.chosen(is_late=True, n1=anew, n2=anew) == 1
