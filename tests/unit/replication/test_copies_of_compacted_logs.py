"""A log copied from compacted ones brings no deleted key back."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest

from jetstream_protocol.batch import encode
from jetstream_protocol.errors import DivergedError
from jetstream_protocol.types import LeaderEpoch, NodeId, WallUs
from jetstream_server.log.commit_log import CommitLog, LogConfig
from jetstream_server.replication.core.messages import INCOMPLETE, LeaderSnapshot, Records
from jetstream_server.replication.drivers.compaction import removable_below, status_of, urgency
from jetstream_server.replication.replica import Replica
from tests.support.compacting import GRACE_US, compact, records, table
from tests.support.log_batches import read_all
from tests.support.log_disk import FaultyDisk, Killed, MemoryDisk
from tests.support.log_start import advance_log_start
from tests.support.services import services
from tests.unit.replication.cores import nodes, stream

VALUE_AT, TOMBSTONE_AT = 5, 12


class Node:
    """A replica of a compacted stream, leading or following as it is told."""

    def __init__(self, node_id: int, segment_bytes: int = 300) -> None:
        self.disk = MemoryDisk()
        config = LogConfig(segment_bytes=segment_bytes)
        self.log = CommitLog.open(self.disk, "/1", config, clean=False)
        self.node_id = NodeId(node_id)
        metadata = replace(stream(()), leader=NodeId(-1), was_compacted=True)
        self.replica = Replica(metadata, self.log, services(), node_id=node_id, incarnation=10)

    def fill(self) -> None:
        """A value, its tombstone, and others around."""
        for offset in range(20):
            key = b"deleted" if offset in (VALUE_AT, TOMBSTONE_AT) else b"%d" % offset
            value = None if offset == TOMBSTONE_AT else b"v"
            self.log.append(encode([value], b"s", keys=[key]), leader_epoch=1, timestamp_us=0)
        self.log.seal()
        self.log.flush()

    def compact(self) -> None:
        """Until the tombstone is gone."""
        for wall_us in (1, 1 + GRACE_US):
            compact(self.disk, self.log, wall_us=wall_us)
        assert TOMBSTONE_AT not in [offset for offset, _, _ in records(self.log)]

    def leads(self, epoch: int, *followers: Node, minimum: int = 1) -> None:
        """Alone in sync; with a minimum of 1, what it holds is committed."""
        metadata = replace(
            stream((self.node_id,), minimum=minimum, leader_epoch=epoch, stream_epoch=epoch),
            leader=self.node_id, leader_epoch=LeaderEpoch(epoch), was_compacted=True,
        )  # fmt: skip
        for node in (self, *followers):
            node.replica.update(metadata, nodes(), 0)
        self.log.flush()  # It notes its epoch first.
        self.replica.moved()

    def says(self) -> int:
        """As of which stream epoch it tells its position."""
        position = self.replica.position()
        assert position is not None
        return position.stream_epoch

    def copy(self, leader: Node, *, until: int) -> None:
        """Batch by batch, until this log stands there or beyond."""
        for _ in range(100):
            position = self.replica.position()
            assert position is not None
            answer = leader.replica.fetch(position, 0, bytes_max=1)
            data = b""
            if isinstance(answer, Records) and answer.slice is not None:
                data = leader.log.pread(answer.slice)
            self.replica.accept(answer, data, 0)
            if self.log.log_end_offset >= until:
                return
        raise AssertionError(f"it stands at {self.log.log_end_offset}")

    def follow(self, leader: Node) -> None:
        """Fetch until the leader has nothing to send. It does not repeat what it has sent."""
        told: LeaderSnapshot | None = None
        for _ in range(100):
            position = self.replica.position()
            assert position is not None
            answer = leader.replica.fetch(position, 0)
            data = b""
            if isinstance(answer, Records):
                if answer.slice is not None:
                    data = leader.log.pread(answer.slice)
                elif answer.snapshot == told:
                    return
            told = answer.snapshot if isinstance(answer, Records) else None
            self.replica.accept(answer, data, 0)
        raise AssertionError(f"it still asks, at {self.log.log_end_offset}")

    def reopen(self, disk: MemoryDisk) -> None:
        """After the process was killed."""
        stopped = replace(self.replica.stream, leader=NodeId(-1))
        self.disk = disk
        self.log = CommitLog.open(disk, "/1", LogConfig(segment_bytes=300), clean=False)
        self.replica = Replica(stopped, self.log, services(), node_id=self.node_id, incarnation=10)


def isr_with(leader: Node) -> tuple[int, ...]:
    """What the leader would propose now, or has."""
    leadership = leader.replica.leadership
    assert leadership is not None
    change = leadership.propose(1)
    return leadership.isr if change is None else change.isr


def test_a_copy_begun_under_one_leader_is_not_continued_from_a_log_that_is_less_compacted() -> None:
    """It would copy deleted records from there, and then go on with the first leader, which does
    not say so."""
    compacted, other, copy = Node(0), Node(1), Node(2)
    for node in (compacted, other):
        node.fill()
    compacted.compact()
    compacted.leads(2, copy)
    copy.copy(compacted, until=1)
    other.leads(3, copy)
    copy.copy(other, until=VALUE_AT + 1)
    assert copy.log.log_end_offset <= TOMBSTONE_AT
    compacted.leads(4, copy)
    copy.copy(compacted, until=20)
    assert table(records(copy.log)) == table(records(compacted.log))


def test_a_leader_whose_log_is_a_copy_says_which_tombstones_it_never_had() -> None:
    compacted, copy, behind = Node(0), Node(1), Node(2)
    compacted.fill()
    compacted.leads(2, copy, behind)
    behind.copy(compacted, until=VALUE_AT + 1)
    compacted.compact()
    copy.copy(compacted, until=20)
    copy.leads(3, behind)
    behind.copy(copy, until=20)
    assert table(records(behind.log)) == table(records(compacted.log))


def test_an_incomplete_copy_acknowledges_nothing() -> None:
    """It may be begun anew yet: a leader that counted on it would have committed what is gone."""
    compacted, copy = Node(0), Node(1)
    compacted.fill()
    compacted.compact()
    compacted.leads(2, copy)
    leadership = compacted.replica.leadership
    assert leadership is not None
    copy.copy(compacted, until=VALUE_AT + 1)
    copy.copy(compacted, until=copy.log.log_end_offset + 1)
    assert copy.log.log_end_offset < copy.log.copied_under
    assert leadership.position_of(copy.node_id) > VALUE_AT
    assert copy.says() == INCOMPLETE
    assert leadership.propose(1) is None
    copy.copy(compacted, until=20)
    copy.copy(compacted, until=20)
    assert copy.says() == 2
    change = leadership.propose(2)
    assert change is not None
    assert change.isr == (0, 1)


def test_an_incomplete_copy_is_still_incomplete_after_a_kill() -> None:
    compacted, copy = Node(0), Node(1)
    compacted.fill()
    compacted.compact()
    compacted.leads(2, copy)
    copy.copy(compacted, until=VALUE_AT + 1)
    under = copy.log.copied_under
    assert copy.log.log_end_offset < under
    again = CommitLog.open(copy.disk, "/1", LogConfig(segment_bytes=300), clean=False)
    assert again.copied_under == under


def test_whoever_leads_with_an_incomplete_copy_says_nothing_of_what_is_lost() -> None:
    """Elected uncleanly, it has all there is. Others that hold more, or copies begun under another
    leader, begin anew before they count, and not later."""
    compacted, elected, same, whole = Node(0), Node(1), Node(2), Node(2)
    for node in (compacted, whole):
        node.fill()
        node.compact()
    compacted.leads(2, elected, same)
    for node in (elected, same):
        node.copy(compacted, until=VALUE_AT + 1)
    end = elected.log.log_end_offset
    for epoch, node in ((3, same), (4, whole)):
        elected.leads(epoch, node)
        assert elected.log.tombstones_gone_below <= end < TOMBSTONE_AT
        node.copy(elected, until=0)
        leadership = elected.replica.leadership
        assert leadership is not None
        assert leadership.propose(1) is None
        assert node.log.log_end_offset == node.log.log_start_offset == 0
        for _ in range(2):
            node.copy(elected, until=end)
        change = leadership.propose(2)
        assert change is not None
        assert change.isr == (1, 2)
        assert table(records(node.log)) == table(records(elected.log))


def test_a_copy_cut_to_its_leaders_end_begins_anew_although_nothing_is_appended() -> None:
    compacted, elected, longer = Node(0), Node(1), Node(2)
    compacted.fill()
    compacted.compact()
    compacted.leads(2, elected, longer)
    longer.copy(compacted, until=20)
    elected.copy(compacted, until=15)
    elected.leads(3, longer)
    longer.follow(elected)
    assert isr_with(elected) == (1, 2)
    assert table(records(longer.log)) == table(records(elected.log))


def test_a_copy_of_which_nothing_is_left_is_complete() -> None:
    compacted, empty, copy = Node(0), Node(1), Node(2)
    compacted.fill()
    compacted.compact()
    compacted.leads(2, empty, copy)
    copy.copy(compacted, until=2)
    empty.leads(3, copy)
    copy.follow(empty)
    assert copy.log.log_end_offset == 0
    assert isr_with(empty) == (1, 2)


def test_a_kill_while_a_log_is_emptied_leaves_nothing_that_passes_for_complete() -> None:
    def begun() -> tuple[Node, Node]:
        """A copy, and a leader with a longer log of which nothing was compacted."""
        compacted, copy, elected = Node(0), Node(1), Node(2)
        compacted.fill()
        for offset in range(8):
            key = b"deleted" if offset == VALUE_AT else b"%d" % offset
            elected.log.append(encode([b"v"], b"s", keys=[key]), leader_epoch=1, timestamp_us=0)
        compacted.compact()
        compacted.leads(2, copy, elected)
        copy.copy(compacted, until=7)
        elected.leads(3, copy)
        return copy, elected

    copy, elected = begun()
    before = copy.disk.operations
    copy.follow(elected)
    for after in range(copy.disk.operations - before):
        copy, elected = begun()
        copy.disk.crash_after = copy.disk.operations + after
        with pytest.raises(Killed):
            copy.follow(elected)
        copy.reopen(copy.disk.killed())
        elected.leads(4, copy)
        copy.follow(elected)
        assert isr_with(elected) == (1, 2), after
        assert table(records(copy.log)) == table(records(elected.log)), after


def test_whoever_leads_with_an_incomplete_copy_goes_on_although_the_disk_is_full() -> None:
    compacted, elected, other = Node(0), Node(1), Node(2)
    disk = FaultyDisk(elected.disk)
    elected.log = CommitLog.open(disk, "/1", LogConfig(segment_bytes=300), clean=False)
    elected.replica = Replica(
        elected.replica.stream, elected.log, services(), node_id=1, incarnation=10
    )
    compacted.fill()
    compacted.compact()
    compacted.leads(2, elected)
    elected.copy(compacted, until=15)
    disk.fail("write_atomic", "compaction", errno.ENOSPC)
    elected.leads(3, other)
    assert elected.log.offline_reason == ""
    assert elected.log.tombstones_gone_below <= elected.log.log_end_offset
    other.follow(elected)
    assert isr_with(elected) == (1, 2)


def put(node: Node, epoch: int, *keys: bytes) -> None:
    """A batch for each key, whose value says of which epoch it is."""
    for key in keys:
        node.log.append(
            encode([b"of epoch %d" % epoch], b"s", keys=[key]), leader_epoch=epoch, timestamp_us=0
        )


def compacted_with_epochs() -> Node:
    """Epochs 1, 3 and 5 begin at offsets 0, 4 and 12. Of the records up to 20, the last of `a` and
    the last five are left, and the empty first batch of each epoch."""
    node = Node(0, segment_bytes=10_000)
    put(node, 1, *[b"a"] * 4)
    put(node, 3, *[b"a"] * 8)
    put(node, 5, *[b"a"] * 3, *[b"%d" % key for key in range(5)])
    node.log.seal()
    node.log.flush()
    compact(node.disk, node.log)
    bases = [batch.header.base_offset for batch in read_all(node.log)]
    assert bases == [0, 4, 12, 14, 15, 16, 17, 18, 19]
    return node


def test_a_reader_whose_epoch_has_lost_all_its_records_goes_on_at_a_copy() -> None:
    compacted, copy = compacted_with_epochs(), Node(1)
    compacted.leads(6, copy)
    copy.copy(compacted, until=20)
    copy.leads(7)
    for offset, epoch in ((2, 1), (4, 1), (5, 3), (9, 3), (12, 3), (13, 5)):
        found = copy.replica.read(offset, 1, epoch)
        assert found is not None
        assert found.next_offset > offset
    for offset, epoch in ((5, 1), (13, 3), (20, 3)):
        with pytest.raises(DivergedError):
            copy.replica.read(offset, 1, epoch)


def test_a_follower_keeps_no_other_history_that_ends_in_a_gap_where_its_leaders_copy_begins() -> (
    None
):
    """It led in epoch 2, was cut off, and comes back when what others appended in its place has
    been removed by compaction and from the front."""
    compacted, copy, cut_off = compacted_with_epochs(), Node(1), Node(2)
    put(cut_off, 1, *[b"a"] * 4)
    put(cut_off, 2, *[b"never committed"] * 4)
    advance_log_start(compacted.log, 7)
    compacted.leads(6, copy)
    copy.copy(compacted, until=20)
    assert copy.log.log_start_offset == 7
    copy.leads(7, cut_off)
    cut_off.follow(copy)
    assert table(records(cut_off.log)) == table(records(copy.log))


def lose_compaction_state(node: Node, damage: bytes | None) -> None:
    """Killed, and started again without the file, or with one that does not read."""
    node.disk = node.disk.killed()
    if damage is None:
        node.disk.remove("/1/compaction")
    else:
        node.disk.put("/1/compaction", damage)
    node.reopen(node.disk)
    assert [found.path for found in node.log.damaged_files] == ["/1/compaction"]


@pytest.mark.parametrize("damage", [None, b"rot"])
def test_a_leader_that_lost_its_state_lets_nobody_keep_what_was_deleted(
    damage: bytes | None,
) -> None:
    compacted, behind = Node(0), Node(1)
    compacted.fill()
    compacted.leads(2, behind)
    behind.copy(compacted, until=VALUE_AT + 1)
    compacted.compact()
    lose_compaction_state(compacted, damage)
    compacted.leads(3, behind)
    behind.copy(compacted, until=20)
    assert table(records(behind.log)) == table(records(compacted.log))


@pytest.mark.parametrize("damage", [None, b"rot"])
def test_an_incomplete_copy_that_lost_its_state_is_begun_anew(damage: bytes | None) -> None:
    compacted, other, copy = Node(0), Node(1), Node(2)
    for node in (compacted, other):
        node.fill()
    compacted.compact()
    compacted.leads(2, copy)
    copy.copy(compacted, until=VALUE_AT + 1)
    assert copy.log.log_end_offset < copy.log.copied_under
    lose_compaction_state(copy, damage)
    other.leads(3, copy)
    copy.copy(other, until=VALUE_AT + 1)
    compacted.leads(4, copy)
    copy.copy(compacted, until=0)
    assert copy.log.log_end_offset == 0
    copy.follow(compacted)
    assert isr_with(compacted) == (0, 2)
    assert table(records(copy.log)) == table(records(compacted.log))


@pytest.mark.parametrize("damage", [None, b"rot"])
def test_gaps_are_taken_from_a_leader_that_lost_its_state_and_leads_alone(
    damage: bytes | None,
) -> None:
    """Below its minimum it could get no follower back in sync if it did not know that they are
    committed."""
    compacted, empty = Node(0), Node(1)
    compacted.fill()
    compacted.compact()
    lose_compaction_state(compacted, damage)
    compacted.leads(3, empty, minimum=2)
    empty.follow(compacted)
    assert empty.log.log_end_offset == compacted.log.log_end_offset


def test_a_copy_that_is_under_way_goes_on_while_its_leader_removes_tombstones() -> None:
    """A slow copy would begin anew at each pass, and never end."""
    leader, copier = Node(0), Node(1)
    leader.fill()
    leader.leads(2, copier)
    compact(leader.disk, leader.log, wall_us=1)  # From now on the grace time runs.
    copier.copy(leader, until=8)
    has = copier.log.log_end_offset
    leadership = leader.replica.leadership
    assert leadership is not None
    over = WallUs(2 + leader.replica.stream.config.tombstone_grace_us)
    assert has < TOMBSTONE_AT
    below = removable_below(leader.replica, over)
    assert below == 0
    compact(leader.disk, leader.log, wall_us=over, removable_below=below)
    copier.copy(leader, until=has + 1)
    assert copier.log.log_end_offset > has, "it has not begun anew"

    leadership.hear(copier.node_id, is_silent=True)
    assert removable_below(leader.replica, over) == 20, "nobody waits for a node that is away"
    leadership.hear(copier.node_id, is_silent=False)
    copier.follow(leader)
    assert removable_below(leader.replica, over) == 20
    assert b"deleted" not in table(records(copier.log))


def test_a_copy_that_is_under_way_makes_no_pass_due() -> None:
    """However far it comes: its leader would compact the log over and over."""
    leader, copier = Node(0), Node(1)
    leader.fill()
    leader.compact()
    leader.fill()
    leader.leads(2, copier)
    compact(leader.disk, leader.log, wall_us=2 + GRACE_US)
    over = WallUs(2 + GRACE_US + leader.replica.stream.config.tombstone_grace_us)

    def is_due() -> bool:
        below = removable_below(leader.replica, over)
        return urgency(status_of(leader.replica), over, below) > 0

    def sweep() -> int:
        below = removable_below(leader.replica, over)
        compact(leader.disk, leader.log, wall_us=over, removable_below=below)
        return leader.log.compaction.state.swept_below

    assert is_due()
    copier.copy(leader, until=1)
    for until in range(2, 32):
        copier.copy(leader, until=until)
        assert not is_due()
        assert until % 10 or sweep() == 20, "what is due for other reasons removes no more"
    assert leader.log.compaction.state.tombstones == 1
    copier.follow(leader)
    assert is_due()
    assert sweep() == 40
    assert leader.log.compaction.state.tombstones == 0
    assert not is_due()
