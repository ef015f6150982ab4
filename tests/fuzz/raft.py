"""Attacks on the port of the metadata group: by strangers, and by an attacker with the credential.

Frames that are sealed here decode to no message: the group does not defend itself against a member
with the credential that sends well-formed lies.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from random import Random

from jetstream_protocol.types import NodeId
from jetstream_server.metadata.raft import handshake
from jetstream_server.metadata.raft.handshake import Hello, Purpose
from tests.fuzz.attack import (
    Attack,
    Step,
    Target,
    connect,
    drain,
    leave,
    receive_exactly,
    send_in_pieces,
)
from tests.fuzz.mutation import ODD_INTEGERS, mutated, noise


class RaftAttack(Attack):
    """`secret`: with the group's own, frames are believed to come from a member."""

    def __init__(self, target: Target, secret: bytes) -> None:
        super().__init__(target)
        self._secret = secret

    def steps(self) -> Sequence[Step]:
        return (
            self.noise, self.mutated_hello, self.half_hello, self.sealed_noise, self.lying_frame,
            self.unsealed_frames, self.many_connections,
        )  # fmt: skip

    def challenged(self) -> tuple[socket.socket, bytes]:
        sock = connect(self.target.raft)
        try:
            challenge = receive_exactly(sock, handshake.CHALLENGE_BYTES)
        except (OSError, EOFError):
            sock.close()  # Turned away.
            raise
        return sock, handshake.decode_challenge(challenge)

    def hello(self, random: Random, challenge: bytes) -> tuple[bytes, bytes]:
        """A hello that is believed, and its nonce."""
        nonce = random.randbytes(handshake.NONCE_BYTES)
        hello = Hello(
            purpose=random.choice((Purpose.LINK, Purpose.LINK, Purpose.PROBE)),
            sender=NodeId(random.choice((1, 7, 65_535, 2**32 - 1))),
            target=NodeId(random.choice((0, 1, 2, 7))),
            instance=random.randbytes(16),
            cluster=handshake.UNKNOWN_CLUSTER,
            nonce=nonce,
        )
        return handshake.encode_hello(hello, self._secret, challenge), nonce

    def noise(self, random: Random) -> None:
        sock = connect(self.target.raft)
        send_in_pieces(random, sock, noise(random, 200_000))
        drain(sock, seconds=0.1)
        leave(random, sock)

    def mutated_hello(self, random: Random) -> None:
        sock, challenge = self.challenged()
        sock.sendall(mutated(random, self.hello(random, challenge)[0]))
        drain(sock, seconds=0.1)
        leave(random, sock)

    def half_hello(self, random: Random) -> None:
        sock, challenge = self.challenged()
        hello, _ = self.hello(random, challenge)
        sock.sendall(hello[: random.randrange(len(hello))])
        self.linger(random, sock)

    def sealed_noise(self, random: Random) -> None:
        """Frames that are sealed as they should be, and mean nothing."""
        sock, challenge = self.challenged()
        hello, nonce = self.hello(random, challenge)
        sock.sendall(hello)
        sealer, _ = handshake.sealers(self._secret, challenge, nonce, dialled=True)
        for _ in range(random.randrange(1, 20)):
            kind = bytes([random.choice((0, 1, 2, 10, 255))])
            sock.sendall(sealer.seal(kind + noise(random, 19)[:19]))
        drain(sock, seconds=0.1)
        leave(random, sock)

    def lying_frame(self, random: Random) -> None:
        sock, challenge = self.challenged()
        sock.sendall(self.hello(random, challenge)[0])
        claim = random.choice(ODD_INTEGERS) % 2**32
        sock.sendall(claim.to_bytes(4, "little") + noise(random, 100_000))
        if random.random() < 0.3:
            self.linger(random, sock)
        else:
            leave(random, sock)

    def unsealed_frames(self, random: Random) -> None:
        sock, challenge = self.challenged()
        sock.sendall(self.hello(random, challenge)[0])
        for _ in range(random.randrange(1, 50)):
            payload = noise(random, 5_000)
            tag = random.randbytes(handshake.TAG_BYTES)
            sock.sendall(len(payload).to_bytes(4, "little") + tag + payload)
        drain(sock, seconds=0.1)
        leave(random, sock)

    def many_connections(self, random: Random) -> None:
        sockets = [connect(self.target.raft) for _ in range(random.choice((10, 100, 300)))]
        for sock in sockets:
            leave(random, sock)
