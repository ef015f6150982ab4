"""Replicas on nodes whose clocks differ: an id is known for its window of real time, not less.

The model is a simulated time that nobody sees: each node has a wall clock and a monotonic clock
that are off by amounts of their own. Leaderships move between replicas in sync.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from jetstream_protocol.batch import encode
from jetstream_server.log.commit_log import CommitLog, LogConfig
from tests.support.log_disk import MemoryDisk

SECOND = 1_000_000
HOUR = 3600 * SECOND
WINDOW = 120 * SECOND
NODES = (0, 1, 2)
CONFIG = LogConfig(segment_bytes=600, index_interval_bytes=64)
CLOCKS = st.tuples(
    *[st.tuples(st.integers(0, 100 * HOUR), st.integers(0, 100 * HOUR)) for _ in NODES]
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(0, 3)),
        st.tuples(st.just("pass_time"), st.integers(1, 2 * WINDOW)),
        st.tuples(st.just("transfer"), st.sampled_from(NODES)),
        st.tuples(st.just("restart"), st.sampled_from(NODES)),
        st.tuples(st.just("restart_without_file"), st.sampled_from(NODES)),
        st.tuples(st.just("replace"), st.sampled_from(NODES)),
    ),
    min_size=3,
    max_size=30,
)


class Replicas:
    def __init__(self, clocks: tuple[tuple[int, int], ...]) -> None:
        self.clocks = clocks
        self.now = 0
        self.epoch = 1
        self.leader = 0
        self.disks = [MemoryDisk() for _ in NODES]
        self.logs = [self.opened(node) for node in NODES]
        self.stored: dict[bytes, tuple[int, int]] = {}  # offset and real time of the last of an id
        self.always_here = set(NODES)  # has taken in every batch as it was made

    def opened(self, node: int) -> CommitLog:
        return CommitLog.open(
            self.disks[node], "/17", CONFIG, clean=True, duplicate_window_us=WINDOW
        )

    def monotonic(self, node: int) -> int:
        return self.now + self.clocks[node][1]

    def known(self, message_id: bytes) -> int | None:
        at = self.monotonic(self.leader)
        return self.logs[self.leader].producers.offset_of(b"s", message_id, at)

    def publish(self, number: int) -> None:
        message_id = b"%d" % number
        if self.known(message_id) is not None:
            return
        block = b"NATS/1.0\r\nNats-Msg-Id: %b\r\n\r\n" % message_id
        log = self.logs[self.leader]
        offset = log.append(
            encode([b"x"], b"s", header_blocks=[block]),
            leader_epoch=self.epoch,
            timestamp_us=self.now + self.clocks[self.leader][0],
            now_us=self.monotonic(self.leader),
        )
        self.stored[message_id] = offset, self.now
        for node in NODES:
            if node != self.leader:
                self.fetch(node, self.monotonic(node))

    def fetch(self, node: int, now_us: int | None) -> None:
        log, source = self.logs[node], self.logs[self.leader]
        while log.log_end_offset < source.log_end_offset:
            slice_ = source.read(log.log_end_offset, 1 << 20, source.log_end_offset)
            assert slice_ is not None
            log.append_replica(source.pread(slice_), now_us=now_us)

    def pass_time(self, microseconds: int) -> None:
        self.now += microseconds
        for node in NODES:
            self.logs[node].forget_message_ids(self.monotonic(node))

    def transfer(self, node: int) -> None:
        self.leader = node
        self.epoch += 1

    def restart(self, node: int, *, lost: bool = False) -> None:
        self.logs[node].close(clean=True)
        if lost and self.disks[node].exists("/17/producers"):
            self.disks[node].remove("/17/producers")
        self.logs[node] = self.opened(node)
        self.always_here.discard(node)

    def restart_without_file(self, node: int) -> None:
        self.restart(node, lost=True)

    def replace(self, node: int) -> None:
        """A new disk: all of the log is copied, long after it was appended."""
        if node == self.leader:
            return
        self.disks[node] = MemoryDisk()
        self.logs[node] = self.opened(node)
        self.fetch(node, None)
        self.always_here.discard(node)


@given(CLOCKS, STEPS)
def test_an_id_is_known_for_its_window_whoever_leads(
    clocks: tuple[tuple[int, int], ...], steps: list[tuple[str, int]]
) -> None:
    replicas = Replicas(clocks)
    for what, argument in steps:
        getattr(replicas, what)(argument)
        for message_id, (offset, at) in replicas.stored.items():
            known = replicas.known(message_id)
            if replicas.now - at <= WINDOW:
                assert known == offset, "would be stored twice"
            elif replicas.leader in replicas.always_here:
                assert known is None, "is remembered for too long"
