"""Each safety rule is needed: with a rule switched off, the simulation finds a loss.

A mutant must die within SEEDS_MAX seeds; most die within a few.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from pysyncobj import SyncObj

from jetstream_protocol.errors import StorageError
from jetstream_protocol.logfiles.synced_length import SyncedLength
from jetstream_protocol.types import NodeId
from jetstream_server.metadata.raft import journal_recovery
from jetstream_server.metadata.raft import messages as raft_messages
from jetstream_server.metadata.raft.core import RaftCore
from jetstream_server.metadata.raft.journal import Journal
from jetstream_server.metadata.raft.messages import Message
from jetstream_server.metadata.raft.standing import VoterState, VoterStatus
from jetstream_server.metadata.raft.voting import Voting

from . import test_raft_disks
from .raft_disks import walk
from .raft_fabric import Fabric, SimulatedNode

SEEDS_MAX = 300
LIKELY = (0, 1, 8, 9, 10, 35, 82, 136)
"""Tried first: each kills one of the mutants, as the product is now. It prints which."""
Mutate = Callable[[pytest.MonkeyPatch], None]


def sends_before_it_syncs(patch: pytest.MonkeyPatch) -> None:
    """Votes and acknowledgements leave before the journal's sync."""

    def sync(fabric: Fabric, node: SimulatedNode) -> None:
        if fabric.dice.random() < 0.03:
            node.journal.sync()

    patch.setattr(Fabric, "sync", sync)
    patch.setattr(Journal, "is_synced", True)


def forgets_its_vote(patch: pytest.MonkeyPatch) -> None:
    def save(journal: Journal, term: int, voted_for: str) -> None:
        journal.term, journal.voted_for = term, voted_for

    patch.setattr(Journal, "save_vote", save)


def commits_beside_a_snapshot(patch: pytest.MonkeyPatch) -> None:
    decode = raft_messages._DECODERS[2]

    def decode_believing(data: memoryview) -> Message:
        return {**decode(data), "commit_index": 1_000_000}

    patch.setitem(raft_messages._DECODERS, 2, decode_believing)


def acknowledges_a_refused_snapshot(patch: pytest.MonkeyPatch) -> None:
    """As pysyncobj does: as far as its own log goes."""

    def take_piece(core: RaftCore, message: Message) -> bool:
        complete = core.core_receiver.add(*message["serialized"])
        core.core_refused = complete and not core.core_machine.restore(
            core.core_receiver.snapshot.data
        )
        message["serialized"] = complete
        return True

    install = RaftCore._SyncObj__loadDumpFile
    answer = SyncObj._SyncObj__sendNextNodeIdx

    def load(core: RaftCore, clearJournal: bool) -> None:
        if core.core_refused:
            core.core_receiver.take()
        else:
            install(core, clearJournal)

    patch.setattr(RaftCore, "core_refused", False, raising=False)
    patch.setattr(RaftCore, "_take_piece", take_piece)
    patch.setattr(RaftCore, "_SyncObj__loadDumpFile", load)
    patch.setattr(RaftCore, "_SyncObj__sendNextNodeIdx", answer)


def votes_whatever_it_lost(patch: pytest.MonkeyPatch) -> None:
    """An empty or cut journal is taken for one that holds all it promised."""

    def may_vote(voting: Voting, own: VoterStatus, *, is_pristine: bool) -> bool:
        return True

    def counts(voting: Voting, node_id: NodeId, applied_session: str | None) -> bool:
        return voting.is_known(node_id)

    patch.setattr(Voting, "may_vote", may_vote)
    patch.setattr(Voting, "counts", counts)


def counts_learners(patch: pytest.MonkeyPatch) -> None:
    def counts(voting: Voting, node_id: NodeId, applied_session: str | None) -> bool:
        return voting.is_known(node_id)

    patch.setattr(Voting, "counts", counts)


def founds_with_a_majority(patch: pytest.MonkeyPatch) -> None:
    """A new journal is a voter's at once, as if only new groups had such."""

    def may_found(voting: Voting, own: VoterStatus, *, is_pristine: bool) -> bool:
        return own.state == VoterState.NEW and is_pristine

    def may_vote(voting: Voting, own: VoterStatus, *, is_pristine: bool) -> bool:
        return own.state == VoterState.VOTER

    patch.setattr(Voting, "may_found", may_found)
    patch.setattr(Voting, "may_vote", may_vote)


def takes_what_was_synced_for_a_torn_write(patch: pytest.MonkeyPatch) -> None:
    promised = journal_recovery._promised_length

    def nothing_promised(
        generation: int, synced: SyncedLength | None, identity: int, size: int
    ) -> journal_recovery._Promised:
        return replace(promised(generation, synced, identity, size), length=0, doubt="")

    patch.setattr(journal_recovery, "_promised_length", nothing_promised)


def takes_copies_for_the_journal(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("jetstream_server.metadata.raft.journal.identity_of", lambda path: 1)


def records_no_run(patch: pytest.MonkeyPatch) -> None:
    """The run record is not written when a run begins."""
    patch.setattr(VoterStatus, "with_run", lambda standing, session: standing)


def keeps_the_runs_of_a_lost_journal(patch: pytest.MonkeyPatch) -> None:
    """So a newer snapshot beside an older journal names one of them, and restores the vote."""

    def lost(standing: VoterStatus) -> VoterStatus:
        return replace(standing, state=VoterState.LEARNER, runs=standing.runs[-1:])

    patch.setattr(VoterStatus, "after_loss", lost)


def restores_the_vote_without_the_others(patch: pytest.MonkeyPatch) -> None:
    """A learner takes its vote back when it has begun another run, not when that is committed."""

    def begun(standing: VoterStatus, session: str) -> VoterStatus:
        return replace(standing, state=VoterState.VOTER, runs=(*standing.runs, session))

    patch.setattr(VoterStatus, "with_run", begun)


@pytest.mark.parametrize(
    "mutate",
    [
        sends_before_it_syncs,
        forgets_its_vote,
        commits_beside_a_snapshot,
        acknowledges_a_refused_snapshot,
        votes_whatever_it_lost,
        founds_with_a_majority,
        takes_what_was_synced_for_a_torn_write,
        takes_copies_for_the_journal,
        records_no_run,
        keeps_the_runs_of_a_lost_journal,
        restores_the_vote_without_the_others,
    ],
)
def test_the_mutant_dies(mutate: Mutate, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch)
    for seed in dict.fromkeys([*LIKELY, *range(SEEDS_MAX)]):
        try:
            walk(seed, 3)
        except (AssertionError, StorageError) as error:
            print(f"{mutate.__name__} seed {seed}: {error}")
            return
    pytest.fail(f"{mutate.__name__} survived {SEEDS_MAX} seeds")


def test_the_mutant_counts_learners_dies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chance hardly reaches it: a learner has to be all that a leader is linked to."""
    counts_learners(monkeypatch)
    with pytest.raises(AssertionError):
        test_raft_disks.test_a_learner_s_acknowledgement_makes_no_majority(tmp_path, monkeypatch)
