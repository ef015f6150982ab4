"""Authenticates two members of the metadata group to each other, and protects the frames that
follow.

Bytes, little-endian; A accepted the connection, D dialled it:

    A → D  challenge   magic 8s, nonce 32s
    D → A  hello       magic 8s, purpose u8, capabilities u8, 2x, sender u32, target u32,
                       instance 16s, cluster 16s, nonce 32s, mac 32s
    A → D  answer      magic 8s, status u8, capabilities u8, 2x, sender u32, instance 16s,
                       mac 32s
    both   frames      length u32, tag 16s, payload; an empty payload keeps the link alive

MACs are HMAC-SHA256 with the cluster's shared credential, over both nonces and every field, so that
neither side can be impersonated and no message replayed. A refusal of the credential has no MAC.
Frame tags use a key per connection and direction, and a counter, so that no frame can be forged,
dropped, repeated or reordered. This authenticates but does not encrypt; TLS does, and provides
certificates as identities.

`instance` identifies one run of a process: it distinguishes two processes with the same node id.
`cluster` is a digest of the cluster id and the recoveries of its metadata group
(unsafe_recovery.py), zero while unknown: different clusters never mix, and a recovered group never
mixes with the voters it left behind.

`capabilities` says which messages the sender understands beyond those of every release. Older
releases send zero and ignore what they receive.

Nothing here does I/O; docs/protocol.md, "Metadata group", is the normative text.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, IntFlag

from jetstream_protocol.errors import InvalidRequestError, UnauthenticatedError
from jetstream_protocol.types import NodeId

MAGIC = b"JSRAFT\x00\x02"
NONCE_BYTES = 32
TAG_BYTES = 16
FRAME_BYTES_MAX = 8 * 1024 * 1024
"""Twice core.ENTRIES_BYTES_MAX: no message is longer."""
UNKNOWN_CLUSTER = bytes(16)

_CHALLENGE = struct.Struct("<8s32s")
_HELLO = struct.Struct("<8sBB2xII16s16s32s")
_ANSWER = struct.Struct("<8sBB2xI16s")
_MAC_BYTES = 32
CHALLENGE_BYTES = _CHALLENGE.size
HELLO_BYTES = _HELLO.size + _MAC_BYTES
ANSWER_BYTES = _ANSWER.size + _MAC_BYTES
_LENGTH = struct.Struct("<I")
_COUNT = struct.Struct("<Q")
FRAME_HEAD_BYTES = _LENGTH.size + TAG_BYTES


class Purpose(IntEnum):
    LINK = 1
    PROBE = 2  # Ask whether this node id is free, then hang up.
    ASK = 3  # Of a node that knows no other: who votes? `target` means nothing then.


class Capability(IntFlag):
    NONE = 0
    PRE_VOTE = 1  # The messages 11 to 13 (messages.py).


OWN_CAPABILITIES = Capability.PRE_VOTE


class Status(IntEnum):
    WELCOME = 0
    BAD_CREDENTIAL = 1
    WRONG_NODE = 2
    ID_IN_USE = 3
    OTHER_CLUSTER = 4
    SUPERSEDED = 5


REFUSALS = {
    Status.BAD_CREDENTIAL: "refuses this node's cluster credential",
    Status.WRONG_NODE: "is another node than its address in the configuration says",
    Status.ID_IN_USE: "is linked to another running server with this node's id",
    Status.OTHER_CLUSTER: "belongs to another cluster than this node's data folder",
    Status.SUPERSEDED: "is of the metadata group that was recovered without this node: what this "
    "node holds no longer counts; move its data folder away, and start it with an empty one (a "
    "node that was to stay: run `jetstream-server unsafe-recover` on it first, as on the others)",
}


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of this process. secret: the cluster's credential; may be empty on a trusted
    network."""

    node_id: NodeId
    instance: bytes
    secret: bytes


@dataclass(frozen=True, slots=True)
class Hello:
    purpose: Purpose
    sender: NodeId
    target: NodeId
    instance: bytes
    cluster: bytes
    nonce: bytes
    capabilities: Capability = OWN_CAPABILITIES


@dataclass(frozen=True, slots=True)
class Answer:
    status: Status
    sender: NodeId
    instance: bytes
    capabilities: Capability = OWN_CAPABILITIES


def cluster_digest(cluster_id: str, recoveries: Sequence[str] = ()) -> bytes:
    if not cluster_id:
        return UNKNOWN_CLUSTER
    return hashlib.sha256("/".join((cluster_id, *recoveries)).encode()).digest()[:16]


def encode_challenge(nonce: bytes) -> bytes:
    return _CHALLENGE.pack(MAGIC, nonce)


def decode_challenge(data: bytes) -> bytes:
    """Decode the acceptor's nonce. Raises InvalidRequestError."""
    magic, nonce = _CHALLENGE.unpack(data)
    _check_magic(magic)
    return bytes(nonce)


def encode_hello(hello: Hello, secret: bytes, challenge: bytes) -> bytes:
    body = _HELLO.pack(
        MAGIC,
        hello.purpose,
        hello.capabilities,
        hello.sender,
        hello.target,
        hello.instance,
        hello.cluster,
        hello.nonce,
    )
    return body + _mac(secret, b"hello", challenge, body)


def decode_hello(data: bytes, secret: bytes, challenge: bytes) -> Hello:
    """Decode the dialler's hello. Raises InvalidRequestError, or UnauthenticatedError for a bad
    MAC."""
    body, mac = data[: _HELLO.size], data[_HELLO.size :]
    magic, purpose, capabilities, sender, target, instance, cluster, nonce = _HELLO.unpack(body)
    _check_magic(magic)
    if not hmac.compare_digest(mac, _mac(secret, b"hello", challenge, body)):
        raise UnauthenticatedError("a peer does not know the cluster's credential")
    if purpose not in tuple(Purpose):
        raise InvalidRequestError("a peer wants something unknown: a newer version?")
    return Hello(
        Purpose(purpose),
        NodeId(sender),
        NodeId(target),
        instance,
        cluster,
        nonce,
        Capability(capabilities),
    )


def encode_answer(answer: Answer, secret: bytes, hello_nonce: bytes, challenge: bytes) -> bytes:
    body = _ANSWER.pack(MAGIC, answer.status, answer.capabilities, answer.sender, answer.instance)
    if answer.status == Status.BAD_CREDENTIAL:
        return body + bytes(_MAC_BYTES)
    return body + _mac(secret, b"answer", hello_nonce + challenge, body)


def decode_answer(data: bytes, secret: bytes, hello_nonce: bytes, challenge: bytes) -> Answer:
    """Decode the acceptor's answer. Raises InvalidRequestError or UnauthenticatedError."""
    body, mac = data[: _ANSWER.size], data[_ANSWER.size :]
    magic, status, capabilities, sender, instance = _ANSWER.unpack(body)
    _check_magic(magic)
    if status == Status.BAD_CREDENTIAL:
        raise UnauthenticatedError(REFUSALS[Status.BAD_CREDENTIAL])
    if not hmac.compare_digest(mac, _mac(secret, b"answer", hello_nonce + challenge, body)):
        raise UnauthenticatedError("does not know the cluster's credential")
    if status not in tuple(Status):
        raise InvalidRequestError("gives an unknown answer: a newer version?")
    return Answer(Status(status), NodeId(sender), instance, Capability(capabilities))


class Sealer:
    """Makes the frames of one direction of a connection."""

    __slots__ = ("_count", "_key")

    def __init__(self, secret: bytes, direction: bytes, challenge: bytes, nonce: bytes) -> None:
        self._key = _mac(secret, b"frames " + direction, challenge, nonce)
        self._count = 0

    def seal(self, payload: bytes) -> bytes:
        tag = self._tag(payload)
        return _LENGTH.pack(len(payload)) + tag + payload

    def check(self, tag: bytes, payload: bytes) -> None:
        """Raise UnauthenticatedError unless this is the peer's next frame."""
        if not hmac.compare_digest(tag, self._tag(payload)):
            raise UnauthenticatedError("a frame was not made by the peer, or not for this place")

    def _tag(self, payload: bytes) -> bytes:
        count = _COUNT.pack(self._count)
        self._count += 1
        return hmac.digest(self._key, count + payload, "sha256")[:TAG_BYTES]


def sealers(
    secret: bytes, challenge: bytes, nonce: bytes, *, dialled: bool
) -> tuple[Sealer, Sealer]:
    """The sealers for sending and for receiving."""
    dialler = Sealer(secret, b"from dialler", challenge, nonce)
    acceptor = Sealer(secret, b"from acceptor", challenge, nonce)
    return (dialler, acceptor) if dialled else (acceptor, dialler)


def frame_length(head: bytes) -> int:
    """The payload's length in a frame's head. Raises InvalidRequestError when it is too long."""
    (length,) = _LENGTH.unpack_from(head)
    if length > FRAME_BYTES_MAX:
        raise InvalidRequestError(f"a frame of {length} bytes; at most {FRAME_BYTES_MAX} are read")
    return int(length)


def _mac(secret: bytes, purpose: bytes, nonces: bytes, body: bytes) -> bytes:
    parts = (purpose, nonces, body)
    message = b"".join(_LENGTH.pack(len(part)) + part for part in parts)
    return hmac.digest(secret or b"no credential", message, "sha256")


def _check_magic(magic: bytes) -> None:
    if magic != MAGIC:
        raise InvalidRequestError("this is not the metadata group's protocol, or another version")
