"""Whatever happens to a log, what it remembers never lets a batch in twice, nor past a gap, and
never takes one batch or message for another.

The model is the log itself: the batches in it, producer by producer. Operations are what a leader,
a follower and a restart do; a leader appends what the memory lets it.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from jetstream_protocol.batch import EncodedBatch, encode
from jetstream_protocol.errors import OutOfSequenceError
from jetstream_protocol.producer_batch import BATCHES_IN_FLIGHT_MAX
from jetstream_server.log.commit_log import CommitLog, LogConfig
from jetstream_server.log.producers import StoredBatch
from tests.support.log_batches import read_all
from tests.support.log_disk import MemoryDisk
from tests.support.log_producers import lets_in

PRODUCERS = (1, 2, 3)
WINDOW_US = 10_000
FILE = "/17/producers"


SUBJECTS = (b"s", b"t")


def produced(producer_id: int, sequence: int, content: int = 0) -> EncodedBatch:
    values = [b"%08d" % content] * producer_id
    return encode(values, b"s", producer_id=producer_id, producer_sequence=sequence)


CONFIG = LogConfig(segment_bytes=3 * produced(3, 0).length, index_interval_bytes=64)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("produce"), st.tuples(st.sampled_from(PRODUCERS), st.integers(1, 8))),
        st.tuples(st.just("id"), st.tuples(st.integers(0, 5), st.sampled_from(SUBJECTS))),
        st.tuples(st.just("plain"), st.just(0)),
        st.tuples(st.just("flush"), st.just(0)),
        st.tuples(st.just("truncate"), st.integers(1, 2 * BATCHES_IN_FLIGHT_MAX)),
        st.tuples(st.just("replace"), st.integers(1, 2 * BATCHES_IN_FLIGHT_MAX)),
        st.tuples(st.just("reopen"), st.sampled_from(["kill", "clean"])),
        st.tuples(st.just("spoil"), st.sampled_from(["missing", "garbage", 1, 2, 3])),
    ),
    min_size=3,
    max_size=30,
)


class Scenario:
    """A log, the files it is made of, and whether its producers stand as its batches say."""

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.log = self.opened(clean=False)
        self.epoch = 0
        self.time = 0
        self.files: list[bytes] = []

    def opened(self, *, clean: bool) -> CommitLog:
        return CommitLog.open(self.disk, "/17", CONFIG, clean=clean, duplicate_window_us=WINDOW_US)

    def append(self, batch: EncodedBatch) -> None:
        self.time += 1
        self.log.append(batch, leader_epoch=self.epoch, timestamp_us=self.time)

    def do(self, what: str, argument: object) -> None:
        getattr(self, what)(argument)
        if self.disk.exists(FILE) and self.disk.read_file(FILE) not in self.files[-1:]:
            self.files.append(self.disk.read_file(FILE))

    def produce(self, wanted: tuple[int, int]) -> None:
        producer_id, count = wanted
        for _ in range(count):
            sequence = len(self.stored(producer_id))
            if lets_in(self.log, producer_id, sequence):
                self.append(produced(producer_id, sequence, content=self.time))

    def id(self, chosen: tuple[int, bytes]) -> None:
        number, subject = chosen
        message_id = b"%d" % number
        if self.log.producers.offset_of(subject, message_id, self.time) is None:
            block = b"NATS/1.0\r\nNats-Msg-Id: %b\r\n\r\n" % message_id
            self.append(encode([b"m" + subject + message_id], subject, header_blocks=[block]))

    def plain(self, _: int) -> None:
        self.append(encode([b"plain"], b"s"))

    def flush(self, _: int) -> None:
        self.log.flush()

    def truncate(self, count: int) -> None:
        """As a follower whose leader knows less."""
        batches = read_all(self.log)
        if not batches:
            return
        self.log.truncate(batches[-count:][0].header.base_offset)
        self.epoch += 1

    def replace(self, count: int) -> None:
        """The same, and as many plain records of another leader in their place."""
        end = self.log.log_end_offset
        self.truncate(count)
        while self.log.log_end_offset < end:
            self.plain(0)

    def reopen(self, how: str) -> None:
        if how == "clean":
            self.log.close(clean=True)
        self.log = self.opened(clean=how == "clean")

    def spoil(self, how: str | int) -> None:
        """The file suffers while the log is closed; a number: an older one is put in its place."""
        self.log.close(clean=True)
        if how == "missing" and self.disk.exists(FILE):
            self.disk.remove(FILE)
        elif how == "garbage" and self.disk.exists(FILE):
            self.disk.put(FILE, b"garbage")
        elif isinstance(how, int) and how <= len(self.files):
            self.disk.put(FILE, self.files[-how])
        self.log = self.opened(clean=True)

    def stored(self, producer_id: int) -> list[StoredBatch]:
        return [
            StoredBatch(h.producer_sequence, h.base_offset, h.next_offset, h.body_crc)
            for h in (each.header for each in read_all(self.log))
            if h.producer_id == producer_id
        ]


def repeated(log: CommitLog, producer_id: int, sequence: int, crc: int) -> StoredBatch | None:
    """What the log takes that batch for; None: it is refused."""
    try:
        return log.producers.check(producer_id, sequence, crc)
    except OutOfSequenceError:
        return None


@given(STEPS)
def test_nothing_is_let_in_twice_nor_past_a_gap_nor_taken_for_another(
    steps: list[tuple[str, object]],
) -> None:
    scenario = Scenario()
    for what, argument in steps:
        scenario.do(what, argument)
        log = scenario.log
        for producer_id in PRODUCERS:
            stored = scenario.stored(producer_id)
            assert [each.sequence for each in stored] == list(range(len(stored)))
            end = len(stored)
            for sequence in range(max(0, end - BATCHES_IN_FLIGHT_MAX), end):
                assert not lets_in(log, producer_id, sequence), "would be stored twice"
            for sequence in range(end + 1, end + 3 * BATCHES_IN_FLIGHT_MAX):
                assert not lets_in(log, producer_id, sequence), "would leave a gap"
            for each in stored[-BATCHES_IN_FLIGHT_MAX:]:
                known = repeated(log, producer_id, each.sequence, each.body_crc)
                assert known in (each, None), "is taken for another"
            remembered = dict(log.producers.image()[0]).get(producer_id)
            assert remembered is None or set(remembered.batches) <= set(stored)
        found = {}
        for each in read_all(log):
            for offset, value in zip(each.offsets(), each.values(), strict=True):
                if value is not None and value.startswith(b"m"):
                    assert value not in found, "stored twice"
                    found[value] = offset
        for value, offset in found.items():
            subject, message_id = value[1:2], value[2:]
            assert log.producers.offset_of(subject, message_id, scenario.time) == offset
