"""A metadata group goes on with the voters that are left, and without who lacks the recovery."""

from __future__ import annotations

import errno
import json
from dataclasses import replace
from pathlib import Path

import pytest

from jetstream_protocol.errors import PreconditionFailedError, StorageError
from jetstream_protocol.logfiles.metadata_records import Entry, Snapshot
from jetstream_protocol.types import NO_NODE, NodeId
from jetstream_server.metadata.member.unsafe_recovery import (
    must_begin_anew,
    plan_recovery,
    read_metadata,
    recover,
)
from jetstream_server.metadata.raft.group_file import Group, GroupFile
from jetstream_server.metadata.raft.handshake import cluster_digest
from jetstream_server.metadata.raft.journal import Journal
from jetstream_server.metadata.raft.voters import Voters
from jetstream_server.metadata.state.activity import ACTIVITY
from jetstream_server.metadata.state.command_json import Command, encode_command
from jetstream_server.metadata.state.commands import (
    FEATURE_LEVEL_MAX,
    RECOVERY_LEVEL,
    CreateStream,
    FenceNode,
    RegisterNode,
    SetCluster,
)
from jetstream_server.metadata.state.node_decisions import (
    EPOCHS_PER_EARLIER_RECOVERY,
    EPOCHS_PER_RECOVERY,
    EVENTS_PER_RECOVERY,
)
from jetstream_server.metadata.state.nodes import FeatureLevel
from jetstream_server.metadata.state.outbox import Outbox
from jetstream_server.metadata.state.registry import (
    REVISIONS_PER_EARLIER_RECOVERY,
    REVISIONS_PER_RECOVERY,
)
from tests.unit.metadata.cluster import ADDRESSES, Cluster

VOTERS = (NodeId(0), NodeId(1), NodeId(2))
GROUP = Group(NodeId(2), tuple((voter, "") for voter in VOTERS), "ours")


def create(name: str, replicas: tuple[int, ...], observers: tuple[int, ...] = ()) -> Command:
    return CreateStream(
        name=name,
        subject=name,
        replicas=tuple(map(NodeId, replicas)),
        observers=tuple(map(NodeId, observers)),
        created_at_us=0,
    )


def written(directory: Path, *commands: Command, group: Group = GROUP) -> str:
    """A metadata folder whose journal holds these, in term 3."""
    directory.mkdir(exist_ok=True)
    GroupFile(str(directory), group).replace(group)
    journal = Journal.open(str(directory))
    for index, command in enumerate(commands, start=1):
        data = b'\x00{"v":1}\n' + encode_command(command).encode()
        journal.append(Entry(data, index, 3))
    journal.sync()
    journal.close()
    return str(directory)


def register(node_id: int, feature_level_max: int = 1) -> Command:
    return RegisterNode(
        node_id=NodeId(node_id),
        session=f"s{node_id}",
        addresses=ADDRESSES,
        feature_level_max=FeatureLevel(feature_level_max),
    )


NODES = [register(node_id) for node_id in (0, 1, 2)]


def test_the_plan_says_who_is_lost_and_what_is_known_here(tmp_path: Path) -> None:
    directory = written(tmp_path, *NODES, create("all", (0, 1, 2)), create("lost", (0, 1)))
    plan = plan_recovery(directory, [NodeId(2)])
    assert plan.lost == (0, 1)
    assert (plan.after.voters, plan.after.cluster_id) == ((2,), "ours")
    assert (plan.known.term, plan.known.last_index) == (3, 5)
    assert [stream.name for stream in plan.gone] == ["lost"]
    assert plan.unled == ()


def test_the_plan_names_the_nodes_that_do_not_vote_and_of_which_it_takes_all_to_stay(
    tmp_path: Path,
) -> None:
    directory = written(tmp_path, *NODES, register(4), register(3), create("there", (1, 3)))
    plan = plan_recovery(directory, [NodeId(2)])
    assert (plan.assumed_alive, plan.gone) == ((3, 4), ())
    not_voting = written(
        tmp_path / "3", *NODES, register(3), group=replace(GROUP, node_id=NodeId(3))
    )
    assert plan_recovery(not_voting, [NodeId(2)]).assumed_alive == ()


def test_the_plan_names_streams_of_which_only_the_lost_were_in_sync(tmp_path: Path) -> None:
    fenced = FenceNode(node_id=2)
    directory = written(tmp_path, *NODES, create("all", (0, 1, 2)), fenced)
    plan = plan_recovery(directory, [NodeId(2)])
    assert (plan.gone, [stream.name for stream in plan.unled]) == ((), ["all"])


def test_the_plan_names_streams_of_which_only_an_observer_is_left(tmp_path: Path) -> None:
    nodes = [register(node_id, feature_level_max=3) for node_id in (0, 1, 2)]
    level = SetCluster(feature_level=FeatureLevel(3))
    watched = create("watched", (0, 1), observers=(2,))
    lost = create("lost", (0,), observers=(1,))
    directory = written(tmp_path, *nodes, level, watched, lost, create("kept", (1, 2)))
    plan = plan_recovery(directory, [NodeId(2)])
    assert [stream.name for stream in plan.observed] == ["watched"]
    assert plan.observers_left(plan.observed[0]) == [2]
    assert [stream.name for stream in plan.gone] == ["lost"]
    assert plan.unled == ()


def test_nothing_changes_but_the_voters_and_the_token_and_all_who_stay_get_the_same_one(
    tmp_path: Path,
) -> None:
    five = tuple((NodeId(voter), "") for voter in range(5))
    left = [NodeId(4), NodeId(3)]
    tokens = set()
    for node_id in left:
        group = Group(node_id, five, "ours")
        directory = written(tmp_path / str(node_id), group=group)
        journal = (tmp_path / str(node_id) / "journal").read_bytes()
        recover(directory, plan_recovery(directory, left))
        assert (tmp_path / str(node_id) / "journal").read_bytes() == journal
        after = GroupFile.read(directory).group
        assert after == replace(group, addresses=five[3:], recoveries=after.recoveries)
        tokens.add(after.recoveries)
    assert len(tokens) == 1
    with pytest.raises(PreconditionFailedError, match="recovered already: its voters are 3, 4;"):
        plan_recovery(directory, left)
    other = plan_recovery(directory, [NodeId(3)]).after.recoveries
    assert (len(other), (other[0],)) == (2, *tokens)


def test_who_is_to_be_lost_does_not_recover(tmp_path: Path) -> None:
    """It may hold what the others know nothing of."""
    directory = written(tmp_path, group=replace(GROUP, node_id=NodeId(0)))
    with pytest.raises(PreconditionFailedError, match="node 0 is one of the voters 0, 1, 2"):
        plan_recovery(directory, [NodeId(2)])
    staying = written(tmp_path, group=replace(GROUP, node_id=NodeId(3)))
    assert plan_recovery(staying, [NodeId(2)]).lost == (0, 1)


@pytest.mark.parametrize(
    ("voters", "message"),
    [
        ((0, 1, 2), "say there which of them are left"),
        ((1, 2), "a majority: start them"),
        ((2, 3), "node 3 is none of the voters 0, 1, 2"),
    ],
)
def test_what_is_not_the_way_is_refused_with_what_is(
    tmp_path: Path, voters: tuple[int, ...], message: str
) -> None:
    directory = written(tmp_path)
    with pytest.raises(PreconditionFailedError, match=message):
        plan_recovery(directory, [NodeId(voter) for voter in voters])


def test_a_folder_that_never_belonged_to_a_group_is_refused(tmp_path: Path) -> None:
    directory = written(tmp_path, group=replace(GROUP, cluster_id=""))
    with pytest.raises(PreconditionFailedError, match="nothing to recover"):
        plan_recovery(directory, [NodeId(2)])
    with pytest.raises(StorageError, match=r"group\.json"):
        plan_recovery(str(tmp_path / "none"), [NodeId(2)])


def test_the_metadata_is_read_from_snapshot_and_journal_without_what_was_truncated(
    tmp_path: Path,
) -> None:
    directory = written(tmp_path, *NODES, create("a", (0,)), create("b", (0,)))
    journal = Journal.open(directory)
    journal.truncate(5)
    journal.append(Entry(b'\x00{"v":1}\n' + encode_command(create("c", (0,))).encode(), 5, 4))
    journal.sync()
    journal.close()
    journal = Journal.open(directory)
    journal.save_vote(7, "1")  # Says nothing of what is known here.
    journal.sync()
    journal.close()
    known = read_metadata(directory)
    assert [stream.name for stream in known.registry.streams.values()] == ["a", "c"]
    assert (known.term, known.last_index) == (4, 5)


def test_voters_that_the_log_has_named_are_those_of_which_some_are_left(tmp_path: Path) -> None:
    directory = written(tmp_path, *NODES)
    journal = Journal.open(directory)
    named = Voters.of({NodeId(voter): f"host-{voter}:1" for voter in (1, 2, 3, 4)})
    journal.append(Entry(b"\x04" + named.encode([4]), 4, 3))
    journal.sync()
    journal.close()
    with pytest.raises(PreconditionFailedError, match="none of the voters 1, 2, 3, 4"):
        plan_recovery(directory, [NodeId(0)])
    plan = plan_recovery(directory, [NodeId(2)])
    assert plan.lost == (1, 3, 4)
    recover(directory, plan)
    after = GroupFile.read(directory).group
    assert (after.addresses, after.is_named) == (((2, "host-2:1"),), True)
    assert after.voter_set == Voters.of({NodeId(2): "host-2:1"}, recoveries=1)
    # The next one begins with what is left, whatever the log says.
    with pytest.raises(PreconditionFailedError, match="recovered already: its voters are 2;"):
        plan_recovery(directory, [NodeId(2)])


@pytest.mark.parametrize(
    ("node_id", "recoveries", "after", "anew"),
    [
        (3, 1, 3, True),
        (3, 1, 1_000_000_001, False),
        (3, 2, 1_000_000_001, True),
        (3, 0, 3, False),
        (2, 1, 3, False),
    ],
)
def test_a_node_that_does_not_vote_gives_up_a_snapshot_from_before_the_recovery_once(
    tmp_path: Path, node_id: int, recoveries: int, after: int, anew: bool
) -> None:
    """recoveries: of the group. after: the term of the entry after the snapshot."""
    journal = Journal.open(str(tmp_path))
    base = tuple(Entry(b"\x01", index, 3) for index in (4, 5))
    journal.install(Snapshot(5, 3, b"state", base))
    journal.append(Entry(b"\x01", 6, after))
    journal.sync()
    group = Group(NodeId(node_id), ((NodeId(2), ""),), "ours", ("t",) * recoveries)
    assert must_begin_anew(group, journal) == anew
    journal.save_vote(9, "2")
    journal.sync()
    journal.begin_anew()
    assert not must_begin_anew(group, journal)
    journal.append(Entry(b"\x01", 1, 0))
    journal.sync()
    journal.close()
    again = Journal.open(str(tmp_path))
    assert [entry.index for entry in again.held] == [1]
    assert (again.snapshot_index, again.term, again.lost) == (0, 9, "")
    again.close()


def test_a_crash_while_it_gives_it_up_leaves_the_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal.open(str(tmp_path))
    base = tuple(Entry(b"\x01", index, 3) for index in (4, 5))
    journal.install(Snapshot(5, 3, b"state", base))
    journal.append(Entry(b"\x01", 6, 3))
    journal.sync()

    def fail(path: str) -> None:
        raise OSError(errno.EIO, "no")

    with monkeypatch.context() as patch:
        patch.setattr("os.remove", fail)
        with pytest.raises(StorageError, match="offline"):
            journal.begin_anew()
    journal.close()
    again = Journal.open(str(tmp_path))
    assert (again.snapshot_index, again.last_index, again.lost) == (5, 5, "")
    assert must_begin_anew(Group(NodeId(3), ((NodeId(2), ""),), "ours", ("t",)), again)
    again.close()


def recording(level: FeatureLevel, name: str = ACTIVITY) -> Cluster:
    """Three nodes at that feature level, and an internal stream."""
    cluster = Cluster()
    for node_id in (0, 1, 2):
        cluster.register(node_id, feature_level_max=level)
    cluster.do(SetCluster(feature_level=level))
    cluster.create(name, "", (0, 1, 2), internal=True)
    return cluster


class TestRecovered:
    """What the recovered group's first command does."""

    @pytest.mark.parametrize(
        ("level", "epochs", "revisions"),
        [
            (RECOVERY_LEVEL, EPOCHS_PER_RECOVERY, REVISIONS_PER_RECOVERY),
            (RECOVERY_LEVEL - 1, EPOCHS_PER_EARLIER_RECOVERY, REVISIONS_PER_EARLIER_RECOVERY),
        ],
    )
    def test_epochs_and_ids_begin_beyond_what_the_lost_voters_may_have_given_out(
        self, level: int, epochs: int, revisions: int
    ) -> None:
        """Older software skips fewer, and all nodes must decide alike."""
        cluster = recording(FeatureLevel(level))
        stream = cluster.create()
        before = cluster.registry.revision
        cluster.do(SetCluster(recoveries=["t"]))
        after = cluster.now(stream)
        assert after.leader_epoch == stream.leader_epoch + epochs
        assert after.stream_epoch == stream.stream_epoch + epochs
        for node_id in (0, 1, 2):
            cluster.register(node_id, feature_level_max=level)
        assert cluster.create("b", "b").id == before + 1 + revisions + 4

    def test_all_sessions_end_and_who_was_in_sync_leads_again_once_it_registers(self) -> None:
        cluster = Cluster(3)
        stream = cluster.create()
        cluster.do(SetCluster(recoveries=["t"]))
        after = cluster.now(stream)
        assert (after.leader, after.isr, set(after.elr)) == (NO_NODE, (), {0, 1, 2})
        assert all(node.fenced for node in cluster.registry.nodes.values())
        cluster.register(1)
        after = cluster.now(stream)
        assert (after.leader, after.isr, after.lossy_elections) == (1, (1,), 0)

    def test_events_of_activity_begin_beyond_what_the_lost_voters_may_have_noted(self) -> None:
        cluster = recording(FEATURE_LEVEL_MAX)
        before = cluster.registry.activity
        cluster.do(SetCluster(recoveries=["t"]))
        after = cluster.registry.activity
        assert after.events[: len(before.events)] == before.events
        new = [json.loads(event) for event in after.events[len(before.events) :]]
        first = before.next_sequence + EVENTS_PER_RECOVERY
        assert [event["sequence"] for event in new] == list(range(first, first + len(new)))
        assert new[0]["type"] == "cluster_changed"

    def test_older_software_numbers_them_as_before(self) -> None:
        """All nodes must decide alike."""
        cluster = recording(FeatureLevel(RECOVERY_LEVEL - 1))
        cluster.do(SetCluster(recoveries=["t"]))
        outbox = cluster.registry.activity
        assert outbox.next_sequence == len(outbox.events) + 1

    def test_without_activity_it_has_no_numbers(self) -> None:
        cluster = recording(FEATURE_LEVEL_MAX, name="__cursors")
        cluster.do(SetCluster(recoveries=["t"]))
        assert cluster.registry.activity == Outbox()

    def test_it_happens_once(self) -> None:
        cluster = Cluster(3)
        stream = cluster.create()
        cluster.do(SetCluster(recoveries=["t"]))
        after, revision = cluster.now(stream), cluster.registry.revision
        cluster.do(SetCluster(recoveries=["t"]))
        assert (cluster.now(stream), cluster.registry.revision) == (after, revision + 1)
        with pytest.raises(PreconditionFailedError, match="other recoveries"):
            cluster.do(SetCluster(recoveries=["u"]))
        cluster.do(SetCluster(recoveries=["t", "u"]))
        assert (
            cluster.now(stream).leader_epoch
            == stream.leader_epoch + 2 * EPOCHS_PER_EARLIER_RECOVERY
        )

    def test_a_snapshot_keeps_it(self) -> None:
        cluster = Cluster(3)
        cluster.do(SetCluster(recoveries=["t"]))
        again = Cluster()
        again.registry.restore(cluster.registry.snapshot())
        assert again.registry.settings.recoveries == ("t",)
        assert again.registry.revision == cluster.registry.revision


def test_groups_of_different_recoveries_are_told_apart() -> None:
    digests = [cluster_digest("c"), cluster_digest("c", ["t"]), cluster_digest("c", ["t", "u"])]
    assert len(set(digests)) == 3
    assert cluster_digest("", ["t"]) == bytes(16)
