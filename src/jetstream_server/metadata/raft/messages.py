"""A strict binary codec for the messages of pysyncobj.

pysyncobj's messages are dicts, which it would pickle. Here each kind is one byte with fixed fields,
little-endian; bytes that do not decode exactly are refused. Bytes from a peer are never unpickled.

    1 append_entries      term, commit_index, prev_index, prev_term u64; count u32;
                          count × (term u64, length u32, command)
    2 append_snapshot     term u64; first u8, last u8; piece
    3 request_vote        term, last_index, last_term u64
    4 vote                term u64
    5 next_index          term, next_index u64; reset u8, success u8
    6 forward             request u64; command
    7 forwarded           request, index, term u64
    8 not_forwarded       request u64, reason u64
    9 timeout_now         term u64
   10 standing            voter u8, pristine u8; count u16; count × (length u16, run)
   11 request_pre_vote    term, last_index, last_term u64
   12 pre_vote            term, asked u64; granted u8
   13 request_vote        as 3, from the one whom the leader has asked to take over

The last four are ours: a member's own status (voting.py), and the pre-vote (pre_vote.py). The
pre-vote's are sent only to peers that understand them (handshake.Capability).

A command is one byte, its kind, and its text: REGULAR commands, the NO_OP that begins a term, and
VOTERS, a set of voters as JSON (voters.py), which only a leader appends.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.logfiles.metadata_records import Entry
from jetstream_server.metadata.raft.voters import Voters
from jetstream_server.metadata.raft.voting import VoterReport

Message = dict[str, Any]
"""A message in pysyncobj's own form."""

REGULAR, NO_OP, VOTERS = 0, 1, 4
"""Kinds of command: two of pysyncobj's, whose others (membership and code version) are refused, and
ours, whose number comes after its last one."""

COMMAND_BYTES_MAX = 2 * 1024 * 1024
"""Twice a proposer's largest batch (proposals.BATCH_BYTES_MAX)."""

_APPEND = struct.Struct("<QQQQI")
_ENTRY = struct.Struct("<QI")
_SNAPSHOT = struct.Struct("<QBB")
_VOTE_REQUEST = struct.Struct("<QQQ")
_NEXT_INDEX = struct.Struct("<QQBB")
_PRE_VOTE = struct.Struct("<QQB")
_THREE = struct.Struct("<QQQ")
_TWO = struct.Struct("<QQ")
_ONE = struct.Struct("<Q")
_STANDING = struct.Struct("<BBH")
_LENGTH = struct.Struct("<H")
RUNS_MAX = 1024
RUN_BYTES_MAX = 1024
"""More than a member can send (standing.RUNS_MAX)."""


def encode(message: Message) -> bytes:
    """Encode a message that this node's pysyncobj sends."""
    kind = message["type"]
    if kind == "append_entries":
        return _encode_append(message)
    return _ENCODERS[kind](message)


def decode(data: bytes) -> Message:
    """Decode a peer's message. Raises InvalidRequestError unless every byte is used."""
    decoder = _DECODERS.get(data[0]) if data else None
    if decoder is None:
        raise InvalidRequestError("unknown kind of Raft message: a newer version's?")
    try:
        return decoder(memoryview(data)[1:])
    except struct.error as error:
        raise InvalidRequestError("malformed Raft message") from error


def is_command(data: bytes, *kinds: int) -> bool:
    """Whether these bytes are a command of one of the kinds, and not too long."""
    return 0 < len(data) <= COMMAND_BYTES_MAX and data[0] in kinds


def _encode_append(message: Message) -> bytes:
    if "serialized" in message:
        piece, first, last = message["serialized"] or (b"", False, False)
        return b"\x02" + _SNAPSHOT.pack(message["term"], first, last) + bytes(piece)
    entries: list[Entry] = message["entries"]
    head = _APPEND.pack(
        message["term"],
        message["commit_index"],
        message["prevLogIdx"],
        message["prevLogTerm"],
        len(entries),
    )
    parts = [b"\x01", head]
    for command, _, term in entries:
        parts.append(_ENTRY.pack(term, len(command)))
        parts.append(command)
    return b"".join(parts)


def _encode_forwarded(message: Message) -> bytes:
    if message.get("error") is not None:
        return b"\x08" + _TWO.pack(message["request_id"], message["error"])
    return b"\x07" + _THREE.pack(message["request_id"], message["log_idx"], message["log_term"])


def _encode_vote_request(message: Message) -> bytes:
    if message["type"] == "request_pre_vote":
        kind = b"\x0b"
    else:
        kind = b"\x0d" if message.get("takes_over") else b"\x03"
    return kind + _VOTE_REQUEST.pack(
        message["term"], message["last_log_index"], message["last_log_term"]
    )


_ENCODERS: dict[str, Callable[[Message], bytes]] = {
    "request_vote": _encode_vote_request,
    "request_pre_vote": _encode_vote_request,
    "pre_vote": lambda message: (
        b"\x0c" + _PRE_VOTE.pack(message["term"], message["asked"], message["granted"])
    ),
    "response_vote": lambda message: b"\x04" + _ONE.pack(message["term"]),
    "next_node_idx": lambda message: (
        b"\x05"
        + _NEXT_INDEX.pack(
            message["term"], message["next_node_idx"], message["reset"], message["success"]
        )
    ),
    "apply_command": lambda message: (
        b"\x06" + _ONE.pack(message.get("request_id", 0)) + message["command"]
    ),
    "apply_command_response": _encode_forwarded,
    "timeout_now": lambda message: b"\x09" + _ONE.pack(message["term"]),
    "standing": lambda message: _encode_standing(message["report"]),
}


def _encode_standing(report: VoterReport) -> bytes:
    parts = [b"\x0a", _STANDING.pack(report.is_voter, report.is_pristine, len(report.runs))]
    for run in report.runs:
        data = run.encode()
        parts += [_LENGTH.pack(len(data)), data]
    return b"".join(parts)


def _decode_append(data: memoryview) -> Message:
    term, commit_index, prev_index, prev_term, count = _APPEND.unpack_from(data)
    entries: list[Entry] = []
    position, last_term = _APPEND.size, prev_term
    for number in range(count):
        entry_term, length = _ENTRY.unpack_from(data, position)
        position += _ENTRY.size
        command = bytes(data[position : position + length])
        position += length
        if len(command) != length or not last_term <= entry_term <= term:
            raise InvalidRequestError("malformed Raft entries")
        if not is_command(command, REGULAR, NO_OP, VOTERS):
            raise InvalidRequestError("unknown kind of Raft command, or too long")
        _check_voters(command)
        entries.append(Entry(command, prev_index + 1 + number, entry_term))
        last_term = entry_term
    if position != len(data):
        raise InvalidRequestError("malformed Raft entries")
    return {
        "type": "append_entries",
        "term": term,
        "commit_index": commit_index,
        "entries": entries,
        "prevLogIdx": prev_index,
        "prevLogTerm": prev_term,
    }


def _check_voters(command: bytes) -> None:
    if command[0] == VOTERS:
        try:
            Voters.decode(command[1:])
        except ValueError as error:
            raise InvalidRequestError(f"a malformed change of the voters: {error}") from error


def _decode_snapshot(data: memoryview) -> Message:
    term, first, last = _SNAPSHOT.unpack_from(data)
    return {
        "type": "append_entries",
        "term": term,
        # pysyncobj would apply a commit index beside a snapshot piece to its own entries, which the
        # sender has not compared.
        "commit_index": 0,
        "serialized": (bytes(data[_SNAPSHOT.size :]), bool(first), bool(last)),
    }


def _decode_vote_request(data: memoryview) -> Message:
    term, last_index, last_term = _VOTE_REQUEST.unpack(data)
    return {
        "type": "request_vote",
        "term": term,
        "last_log_index": last_index,
        "last_log_term": last_term,
    }


def _decode_pre_vote(data: memoryview) -> Message:
    term, asked, granted = _PRE_VOTE.unpack(data)
    return {"type": "pre_vote", "term": term, "asked": asked, "granted": bool(granted)}


def _decode_next_index(data: memoryview) -> Message:
    term, next_index, reset, success = _NEXT_INDEX.unpack(data)
    return {
        "type": "next_node_idx",
        "term": term,
        "next_node_idx": next_index,
        "reset": bool(reset),
        "success": bool(success),
    }


def _decode_forward(data: memoryview) -> Message:
    (request,) = _ONE.unpack_from(data)
    command = bytes(data[_ONE.size :])
    if not is_command(command, REGULAR):
        raise InvalidRequestError("unknown kind of Raft command, or too long")
    return {"type": "apply_command", "command": command, "request_id": request}


def _decode_forwarded(data: memoryview) -> Message:
    request, index, term = _THREE.unpack(data)
    return {
        "type": "apply_command_response",
        "request_id": request,
        "log_idx": index,
        "log_term": term,
    }


def _decode_not_forwarded(data: memoryview) -> Message:
    request, reason = _TWO.unpack(data)
    return {"type": "apply_command_response", "request_id": request, "error": reason}


def _decode_standing(data: memoryview) -> Message:
    is_voter, is_pristine, count = _STANDING.unpack_from(data)
    runs: list[str] = []
    position = _STANDING.size
    if is_voter > 1 or is_pristine > 1 or count > RUNS_MAX:
        raise InvalidRequestError("malformed standing")
    for _ in range(count):
        (length,) = _LENGTH.unpack_from(data, position)
        position += _LENGTH.size
        run = bytes(data[position : position + length])
        position += length
        if len(run) != length or length > RUN_BYTES_MAX:
            raise InvalidRequestError("malformed standing")
        runs.append(run.decode(errors="replace"))
    if position != len(data):
        raise InvalidRequestError("malformed standing")
    return {
        "type": "standing",
        "report": VoterReport(bool(is_voter), bool(is_pristine), tuple(runs)),
    }


_DECODERS: dict[int, Callable[[memoryview], Message]] = {
    1: _decode_append,
    2: _decode_snapshot,
    3: _decode_vote_request,
    4: lambda data: {"type": "response_vote", "term": _ONE.unpack(data)[0]},
    5: _decode_next_index,
    6: _decode_forward,
    7: _decode_forwarded,
    8: _decode_not_forwarded,
    9: lambda data: {"type": "timeout_now", "term": _ONE.unpack(data)[0]},
    10: _decode_standing,
    11: lambda data: {**_decode_vote_request(data), "type": "request_pre_vote"},
    12: _decode_pre_vote,
    13: lambda data: {**_decode_vote_request(data), "takes_over": True},
}
