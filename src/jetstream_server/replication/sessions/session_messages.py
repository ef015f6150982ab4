"""The messages of sessions on the metadata group's links, as bytes (metadata/member/extension.py).

Little-endian; the first byte is the kind. Bytes that do not decode exactly are refused.

    0x40 heartbeat  incarnation, sent_at_us, applied_revision u64     node → metadata leader
    0x41 grant      incarnation, runs_from_us, granted_at_us u64      and back
    0x42 ping       term, sent_at_us u64                              metadata leader → voter
    0x43 echo       term, sent_at_us u64: of the ping,                and back, see quorum.py
                    backed_ago_us u64
    0x44 reports    incarnation u64, count u32,                       node → metadata leader
                    count × (stream id, leader epoch u64, last epoch i64, log end offset u64,
                    damaged u8)

The link identifies the sender. Times are those of the node that sent the first message of the pair;
the other side returns them. Only `granted_at_us` is the metadata leader's time, so that all nodes
can date reports by one clock.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.types import BootUs, NodeId, StreamId
from jetstream_server.metadata.member.extension import EXTENSION_KIND_MIN
from jetstream_server.replication.core.unclean_election import ReplicaReport
from jetstream_server.replication.sessions.lease import Heartbeat

REPORTS_MAX = 4096
"""Reports in one frame, which then has 140 KB. More reports need more frames."""

_HEARTBEAT, _GRANT, _PING, _ECHO, _REPORTS = range(EXTENSION_KIND_MIN, EXTENSION_KIND_MIN + 5)
_THREE = struct.Struct("<BQQQ")
_TWO = struct.Struct("<BQQ")
_HEAD = struct.Struct("<BQI")
_REPORT = struct.Struct("<QQqQB")


@dataclass(frozen=True, slots=True)
class Grant:
    """The lease of that incarnation runs from `runs_from_us` of its clock: when it sent its
    heartbeat, minus the age of the controller's proof. granted_at_us: by the controller's clock."""

    incarnation: int
    runs_from_us: BootUs
    granted_at_us: BootUs


@dataclass(frozen=True, slots=True)
class Ping:
    """The leader of `term` asks whether it still leads."""

    term: int
    sent_at_us: BootUs


@dataclass(frozen=True, slots=True)
class Echo:
    """When this was sent, `term` was the voter's current term. backed_ago_us: the time since it
    last backed a leader of an earlier term."""

    term: int
    sent_at_us: BootUs
    backed_ago_us: int


@dataclass(frozen=True, slots=True)
class LogEnd:
    """How far a replica of a leaderless stream reaches. leader_epoch: of the stream at that time:
    in a later epoch the log may have continued."""

    stream_id: StreamId
    leader_epoch: int
    report: ReplicaReport


@dataclass(frozen=True, slots=True)
class Reports:
    incarnation: int
    log_ends: tuple[LogEnd, ...]


Message = Heartbeat | Grant | Ping | Echo | Reports


def encode(message: Message) -> bytes:
    match message:
        case Heartbeat(_, incarnation, sent_at_us, applied_revision):
            return _THREE.pack(_HEARTBEAT, incarnation, sent_at_us, applied_revision)
        case Grant(incarnation, runs_from_us, granted_at_us):
            return _THREE.pack(_GRANT, incarnation, runs_from_us, granted_at_us)
        case Ping(term, sent_at_us):
            return _TWO.pack(_PING, term, sent_at_us)
        case Echo(term, sent_at_us, backed_ago_us):
            return _THREE.pack(_ECHO, term, sent_at_us, backed_ago_us)
        case Reports(incarnation, log_ends):
            assert len(log_ends) <= REPORTS_MAX, "the sender divides them"
            head = _HEAD.pack(_REPORTS, incarnation, len(log_ends))
            return head + b"".join(map(_pack_log_end, log_ends))


def decode(sender: NodeId, frame: bytes) -> Message:
    """Decode a message. Raises InvalidRequestError unless every byte is used."""
    decoder = _DECODERS.get(frame[0]) if frame else None
    if decoder is None:
        raise InvalidRequestError("unknown kind of session message: a newer version's?")
    try:
        return decoder(sender, frame)
    except struct.error as error:
        raise InvalidRequestError("malformed session message") from error


def _pack_log_end(log_end: LogEnd) -> bytes:
    report = log_end.report
    return _REPORT.pack(
        log_end.stream_id,
        log_end.leader_epoch,
        report.last_epoch,
        report.log_end_offset,
        report.damaged,
    )


def _decode_reports(_: NodeId, frame: bytes) -> Reports:
    _, incarnation, count = _HEAD.unpack_from(frame)
    if count > REPORTS_MAX or len(frame) != _HEAD.size + count * _REPORT.size:
        raise InvalidRequestError("malformed session message")
    log_ends = []
    for stream_id, leader_epoch, last_epoch, end, damaged in _REPORT.iter_unpack(
        frame[_HEAD.size :]
    ):
        if damaged > 1:
            raise InvalidRequestError("malformed session message")
        report = ReplicaReport(incarnation, last_epoch, end, bool(damaged))
        log_ends.append(LogEnd(StreamId(stream_id), leader_epoch, report))
    return Reports(incarnation, tuple(log_ends))


_DECODERS: dict[int, Callable[[NodeId, bytes], Message]] = {
    _HEARTBEAT: lambda sender, frame: Heartbeat(sender, *_THREE.unpack(frame)[1:]),
    _GRANT: lambda _, frame: Grant(*_THREE.unpack(frame)[1:]),
    _PING: lambda _, frame: Ping(*_TWO.unpack(frame)[1:]),
    _ECHO: lambda _, frame: Echo(*_THREE.unpack(frame)[1:]),
    _REPORTS: _decode_reports,
}
