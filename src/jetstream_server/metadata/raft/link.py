"""One authenticated connection between two members of the metadata group."""

from __future__ import annotations

import re
from dataclasses import dataclass

from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.types import NodeId
from jetstream_server.metadata.raft import handshake
from jetstream_server.metadata.raft.handshake import Capability, Sealer
from jetstream_server.net.byte_stream import ByteStream

PORT_MAX = 65535
_PORT = re.compile("[0-9]{1,5}")
SILENCE_MAX = 4
"""Keep-alives that may be missing in a row before a link is dropped. They are counted when due, not
timed: a process that was paused heard nothing, and must not drop links because of that."""
WRITE_BUFFER_BYTES_MAX = 64 * 1024 * 1024
"""Bytes by which a peer may be behind. Beyond that it is dropped, and catches up later."""


@dataclass(frozen=True, slots=True)
class LinkTimings:
    """In seconds. keep_alive: how often a link sends and expects a keep-alive. redial_max:
    including its jitter it is less than `RaftTimings.election_min`, so that a returning node is
    linked to the leader before it calls an election."""

    keep_alive: float = 0.4
    redial_min: float = 0.05
    redial_max: float = 0.25


class Link:
    """One established connection. capabilities: the peer's. silence: the number of missing
    keep-alives."""

    def __init__(
        self,
        peer: NodeId,
        instance: bytes,
        capabilities: Capability,
        stream: ByteStream,
        codecs: tuple[Sealer, Sealer],
    ) -> None:
        self.peer = peer
        self.instance = instance
        self.capabilities = capabilities
        self.silence = 0
        self._heard = 0
        self._has_sent = False
        self._stream = stream
        self._sealer, self._opener = codecs

    def send(self, payload: bytes) -> bool:
        if self._stream.unsent_bytes > WRITE_BUFFER_BYTES_MAX:
            self.close()
        if self._stream.is_closed:
            return False
        self._stream.write(self._sealer.seal(payload))
        self._has_sent = True
        return True

    def keep_alive(self) -> None:
        """Send a keep-alive, unless something was sent since the last call: any bytes count."""
        if not self._has_sent:
            self.send(b"")
        self._has_sent = False

    async def receive(self) -> bytes:
        """The next frame that is not a keep-alive."""
        while True:
            head = await self._stream.read_exactly(handshake.FRAME_HEAD_BYTES)
            payload = await self._stream.read_exactly(handshake.frame_length(head))
            self._opener.check(head[-handshake.TAG_BYTES :], payload)
            if payload:
                return payload

    def count_silence(self) -> int:
        """Note that a keep-alive was due. Returns how many are missing in a row. Bytes of a long
        frame count: on a slow line it may take longer than that, and keep-alives wait for it."""
        heard = self._stream.bytes_received
        self.silence = self.silence + 1 if heard == self._heard else 0
        self._heard = heard
        return self.silence

    def close(self) -> None:
        self._stream.close()


def split_address(address: str) -> tuple[str, int]:
    """Host and port of host:port; an IPv6 host may be in brackets."""
    host, _, port = address.rpartition(":")
    if not host or not _PORT.fullmatch(port) or int(port) > PORT_MAX:
        raise InvalidRequestError(f"{address!r} is not an address of the form host:port")
    return host.strip("[]"), int(port)
