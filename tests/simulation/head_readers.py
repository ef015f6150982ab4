"""A reader at the head of one stream: it follows, and fetches when its follow has ended.

It speaks the data plane's frames with the shipped server, over a connection to one node after
another, and does what the SDK does (jetstream_client/transport/follow.py): it follows once nothing
more is known to be there, gives credit back, says that it is there, fetches again what arrived
damaged, and goes elsewhere when a node is silent. A seed has it or has not by a random number of
its own.

No byte is sent to it that is not committed at that moment; what it takes is all of it, each record
once and in order; at rest it has everything. It is told that its history is gone, or that it is
beyond the end, only after an election that lost records. After such an election it begins anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import TYPE_CHECKING

from jetstream_protocol.batch import HEADER_BYTES, Batch, BatchHeader
from jetstream_protocol.errors import (
    CorruptBatchError,
    DivergedError,
    JetstreamError,
    OffsetOutOfRangeError,
    RecordsDamagedError,
    from_proto,
)
from jetstream_protocol.frames import PROTOCOL_VERSION, Kind
from jetstream_protocol.generated import common_pb2
from jetstream_protocol.generated import dataplane_pb2 as pb
from jetstream_protocol.types import NO_EPOCH
from jetstream_server.net.frame_reader import Frame
from jetstream_server.replication.core.lake_bounds import start_offset
from tests.simulation.connection import Arrival, SimulatedConnection
from tests.simulation.network import Pipe
from tests.simulation.shadows import Entry, entry_of
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from jetstream_server.replication.replica import Replica
    from tests.simulation.process import Process
    from tests.simulation.watched import WatchedStream

SHARE = 0.3
"""Of the seeds."""
CLIENT = -1
"""Where it is, for the network: no link to it is ever cut."""
ANSWER_BYTES = 1_000
"""A few batches: now and then it lags."""
CREDIT_BYTES = 4_000
PATIENCE_US = 1_200_000
"""So long may a node be silent: several times as long as a follow may."""
SAYS_EACH_US = 300_000
MOVES = 0.02
"""Of the answers after which it goes to another node."""


class Link:
    """A connection to one run of a node. lossy_elections: how many there were when it began."""

    def __init__(self, reader: HeadReader, process: Process, lossy_elections: int) -> None:
        network = process.cluster.network
        self.process = process
        self.lossy_elections = lossy_elections
        self.sent_to: int | None = None
        """How far what was asked last has been answered; None: nobody knows."""
        self._reader = reader
        self._server = SimulatedConnection(process, CLIENT)
        self._server.carried_by(self, self)
        self._from_server = Pipe(network, process.node_id, CLIENT, "client", self.arrived)
        self._to_server = Pipe(network, CLIENT, process.node_id, "client", self._server.arrived)
        loop, serve = process.loop, process.node.data_plane.serve
        process.world.later(200, loop, loop.enter, serve, self._server)

    def send(self, item: Arrival) -> None:
        """The server sends it."""
        if isinstance(item, Frame):
            self._reader.is_sent(self, item)
        self._from_server.send(item)

    def arrived(self, item: Arrival) -> None:
        self._reader.arrived(self, item)

    def say(self, kind: Kind, correlation: int, head: Message) -> None:
        self._to_server.send(Frame(kind, correlation, head.SerializeToString(), b""))

    def close(self) -> None:
        self._to_server.send(EOFError())


class HeadReader:
    """See the module. position: what it has taken."""

    def __init__(self, stream: WatchedStream, random: Random) -> None:
        self._stream = stream
        self._world = stream.world
        self._random = random
        self.position = 0
        self.is_here = False
        self._last_epoch = int(NO_EPOCH)
        self._high_watermark = 0
        self._must_fetch = False
        self._refuses = False
        """What arrived last was damaged."""
        self._link: Link | None = None
        self._correlation = 0
        self._is_following = False
        self._gives_credit = True
        self._taken = 0
        self._heard_at = self._said_at = 0
        self._restart_at: int | None = None
        """Where to begin anew, as the error says that is on its way."""

    def begin(self) -> None:
        """Draw whether this seed has it, and start."""
        self.is_here = self._random.random() < SHARE
        if self.is_here:
            self._tick()

    def _tick(self) -> None:
        world = self._world
        if self._link is not None:
            if self._is_outdated(self._link):
                self._begin_anew()
            elif world.now - self._heard_at > PATIENCE_US:
                world.count("follow: a node was silent")
                self._leave()
        if self._link is None:
            self._connect()
        world.later(self._random.randint(5_000, 100_000), None, self._tick)

    # Where it reads.

    def _is_outdated(self, link: Link) -> bool:
        return link.lossy_elections != self._stream.stream.lossy_elections

    def _begin_anew(self) -> None:
        """An election has lost records."""
        self._leave()
        self._begin_at(0)

    def _begin_at(self, offset: int) -> None:
        self.position, self._last_epoch, self._high_watermark = offset, int(NO_EPOCH), 0

    def _connect(self) -> None:
        process = self._random.choice(self._stream.cluster.machines).process
        if process is None or not process.serves or process.stopping:
            return
        replica = process.replica_of(self._stream.stream_id)
        lossy = self._stream.stream.lossy_elections
        if replica is None or (lossy and not self._knows(process, replica, lossy)):
            return
        self._link = Link(self, process, lossy)
        self._heard_at = self._world.now
        self._link.say(Kind.HELLO, 0, pb.Hello(version=PROTOCOL_VERSION, client="simulated"))

    def _knows(self, process: Process, replica: Replica, lossy: int) -> bool:
        """Who has not heard of the election, or not from its leader, shows what is lost."""
        leads = replica.leadership is not None and process.node.membership.lease_held()
        return leads and replica.stream.lossy_elections == lossy

    def _leave(self) -> None:
        if self._link is not None:
            self._link.close()
        self._link, self._is_following, self._must_fetch = None, False, False

    # What it asks.

    def _ask(self) -> None:
        link = self._link
        assert link is not None
        self._correlation += 1
        fetch = pb.DataFetchRequest(
            stream=common_pb2.StreamRef(id=self._stream.stream_id),
            offset=self.position,
            bytes_max=ANSWER_BYTES,
        )
        if self._last_epoch != NO_EPOCH:
            fetch.last_epoch = self._last_epoch
        if not self._stream.stream.was_compacted and self._random.random() < 0.2:
            fetch.filter_subject = ">"  # Which leaves nothing out, and is answered by another way.
        link.sent_to = self.position
        self._restart_at = None
        is_at_head = self.position >= self._high_watermark
        self._is_following = is_at_head and not (self._must_fetch or self._refuses)
        if self._is_following:
            self._taken, self._gives_credit = 0, self._random.random() < 0.8
            follow = pb.FollowRequest(credit=CREDIT_BYTES)
            getattr(follow, "from").CopyFrom(fetch)
            link.say(Kind.FOLLOW, self._correlation, follow)
            self._world.count("follow begun")
            return
        fetch.wait_ms_max, fetch.refused = self._random.randint(0, 300), self._refuses
        self._refuses = False
        link.say(Kind.FETCH, self._correlation, fetch)

    def _say(self, *, ends: bool = False) -> None:
        assert self._link is not None
        credit = pb.Credit(bytes=self._taken if self._gives_credit else 0, ends=ends)
        self._link.say(Kind.CREDIT, self._correlation, credit)
        self._taken, self._said_at = 0, self._world.now

    # What it is sent.

    def is_sent(self, link: Link, frame: Frame) -> None:
        """A node sends it, at this moment."""
        if link is not self._link or self._is_outdated(link):
            return
        if frame.kind not in (Kind.FETCH_REPLY, Kind.FOLLOWED):
            return
        head = pb.DataFetchResponse.FromString(frame.head)
        for _, entry in _sound(frame.tail):
            self._stream.checker.shows(link.process.node_id, entry)
        if frame.correlation != self._correlation:
            return
        if head.HasField("error"):
            self._judge(link, from_proto(head.error))
        elif head.HasField("next_offset"):
            link.sent_to = head.next_offset
        elif frame.tail:
            headers = [header for header, _ in _sound(frame.tail)]
            is_whole = sum(header.length for header in headers) == len(frame.tail)
            link.sent_to = headers[-1].next_offset if is_whole else None

    def _judge(self, link: Link, error: JetstreamError) -> None:
        """Whether a node may say so; where to begin anew then."""
        process, stream, position = link.process, self._stream.stream, link.sent_to
        replica = process.replica_of(self._stream.stream_id)
        if position is None or replica is None:
            return
        start = start_offset(replica.stream, replica.log)
        told = f"a reader at the head, at {position}, is told by node {process.node_id}: "
        match error:
            case OffsetOutOfRangeError():
                knows_no_epoch = self._last_epoch == NO_EPOCH and position == self.position
                if position >= start and knows_no_epoch and stream.leader != process.node_id:
                    return  # It leads no more, and does not know.
                if not link.lossy_elections and position >= start:
                    raise Violation(told + error.message) from error
                self._stream.checker.skips(process.node_id, replica)
                self._restart_at = start
            case DivergedError():
                if not link.lossy_elections:
                    raise Violation(told + error.message) from error
                self._restart_at = start
            case RecordsDamagedError() if stream.is_alone(process.node_id) or (
                # Lost between the lake and the log of who was elected uncleanly. In life somebody
                # purges the stream up to there.
                link.lossy_elections
                and replica.leadership is not None
                and error.start_offset == replica.stream.lake.end
            ):
                self._restart_at = error.end_offset  # Nobody else has them.

    def arrived(self, link: Link, item: Arrival) -> None:
        if link is not self._link:
            return
        if self._is_outdated(link):
            self._begin_anew()
        elif isinstance(item, Exception):
            self._link, self._is_following, self._must_fetch = None, False, False
        elif item.kind == Kind.HELLO_REPLY:
            self._ask()
        elif item.correlation == self._correlation:
            self._heard_at = self._world.now
            self._take(pb.DataFetchResponse.FromString(item.head), item.tail)

    def _take(self, head: pb.DataFetchResponse, tail: bytes | memoryview) -> None:
        if head.HasField("error"):
            self._world.count(f"follow refused: {head.error.code}")
            if self._restart_at is not None:
                self._begin_at(self._restart_at)
            self._leave()
            return
        taken = self._take_batches(tail)
        self._high_watermark, self._must_fetch = head.high_watermark, head.has_ended
        if taken < len(tail):
            self._world.count("follow: damaged on the way")
            self._refuses = True
        elif head.HasField("next_offset"):
            if head.next_offset != self.position:
                raise Violation(f"a reader at {self.position} is to go on at {head.next_offset}")
            self._last_epoch = head.last_epoch
        if head.out_of_sync or self._random.random() < MOVES:
            self._leave()
        elif not self._is_following or head.has_ended:
            self._ask()
        elif self._refuses:
            self._say(ends=True)
            self._ask()
        else:
            self._world.count("followed" if taken else "follow: nothing new")
            self._taken += taken
            is_due = self._world.now - self._said_at >= SAYS_EACH_US
            if is_due or (self._gives_credit and 2 * self._taken >= CREDIT_BYTES):
                self._say()

    def _take_batches(self, tail: bytes | memoryview) -> int:
        """How many bytes of them are sound."""
        taken = 0
        for header, entry in _sound(tail):
            self._stream.checker.follows_on(self.position, entry)
            self.position, self._last_epoch = header.next_offset, header.leader_epoch
            taken += header.length
        return taken

    # The end.

    def lacks(self, committed_end: int) -> str:
        """What it has not taken yet; "": it has everything."""
        if not self.is_here or self.position == committed_end:
            return ""
        return f"a reader at the head is at {self.position}; committed up to {committed_end}"


def _sound(tail: bytes | memoryview) -> Iterator[tuple[BatchHeader, Entry]]:
    """The batches up to the first one that is damaged."""
    data, at = bytes(tail), 0
    while at < len(data):
        try:
            header = Batch.decode(data, at).header
        except CorruptBatchError:
            return
        yield header, entry_of(header, data[at + HEADER_BYTES : at + header.length])
        at += header.length
