"""Attacks on the handshake of TLS, on every port that speaks it."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence
from random import Random

from tests.fuzz.attack import Attack, Step, Target, connect, drain, leave, plain, send_in_pieces
from tests.fuzz.mutation import mutated, noise
from tests.support.tls_records import HANDSHAKE, RecordClient


class TlsAttack(Attack):
    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self._ports = (target.grpc, target.data, target.http, target.raft)

    def steps(self) -> Sequence[Step]:
        return (
            self.noise, self.half_hello, self.slow_hello, self.mutated_hello, self.wrong_records,
            self.handshake_and_silence, self.garbage_after_the_handshake, self.hello_again,
            self.many_connections, self.changes_of_keys, self.short_records,
        )  # fmt: skip

    def plain(self, random: Random) -> socket.socket:
        return plain(random.choice(self._ports))

    def hello(self, random: Random) -> bytes:
        """A ClientHello, as a library makes it."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_alpn_protocols(random.choice((["h2"], ["http/1.1"], ["x" * 255] * 20)))
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        name = random.choice(("localhost", "a" * 60 + ".example"))
        session = context.wrap_bio(incoming, outgoing, server_hostname=name)
        try:
            session.do_handshake()
        except ssl.SSLWantReadError:
            return outgoing.read()
        raise AssertionError("nobody has answered")

    def noise(self, random: Random) -> None:
        sock = self.plain(random)
        send_in_pieces(random, sock, noise(random, 200_000))
        drain(sock, seconds=0.1)
        leave(random, sock)

    def half_hello(self, random: Random) -> None:
        """The rest never comes; the connection stays."""
        sock, hello = self.plain(random), self.hello(random)
        sock.sendall(hello[: random.randrange(1, len(hello))])
        self.linger(random, sock)

    def slow_hello(self, random: Random) -> None:
        sock = self.plain(random)
        for byte in self.hello(random)[: random.choice((20, 600))]:
            sock.sendall(bytes([byte]))
        self.linger(random, sock)

    def mutated_hello(self, random: Random) -> None:
        sock = self.plain(random)
        sock.sendall(mutated(random, self.hello(random)))
        drain(sock, seconds=0.1)
        leave(random, sock)

    def wrong_records(self, random: Random) -> None:
        """Records of every kind and any length, before there is a session."""
        sock = self.plain(random)
        for _ in range(random.randrange(1, 20)):
            kind, length = random.choice((20, 21, 22, 23, 24, 255)), random.randrange(2**16)
            sock.sendall(bytes([kind, 3, random.randrange(5)]) + length.to_bytes(2, "big"))
            sock.sendall(noise(random, 20_000))
        drain(sock, seconds=0.1)
        leave(random, sock)

    def handshake_and_silence(self, random: Random) -> None:
        self.linger(random, connect(random.choice(self._ports)))

    def garbage_after_the_handshake(self, random: Random) -> None:
        """What cannot be decrypted, on a session that stands."""
        sock = connect(random.choice(self._ports))
        beneath = socket.socket(fileno=sock.detach())
        beneath.sendall(noise(random, 100_000))
        leave(random, beneath)

    def hello_again(self, random: Random) -> None:
        sock = self.plain(random)
        for _ in range(random.randrange(2, 10)):
            sock.sendall(self.hello(random))
        drain(sock, seconds=0.1)
        leave(random, sock)

    def many_connections(self, random: Random) -> None:
        """All of them begin, and none goes on."""
        hello = self.hello(random)
        for _ in range(random.choice((10, 50, 100))):
            sock = self.plain(random)
            sock.sendall(hello[: random.choice((1, 5, len(hello)))])
            self.linger(random, sock)

    def changes_of_keys(self, random: Random) -> None:
        """Records that are sealed as they should be, and hold no data."""
        client = RecordClient(random.choice(self._ports))
        asks = random.random() < 0.5
        client.sock.sendall(b"".join(client.key_update(asks=asks) for _ in range(2_000)))
        leave(random, client.sock)

    def short_records(self, random: Random) -> None:
        client = RecordClient(random.choice(self._ports))
        data, kind = random.choice(((b"", 23), (b"\x00", 23), (b"\x18", HANDSHAKE)))
        client.sock.sendall(b"".join(client.record(data, kind) for _ in range(2_000)))
        leave(random, client.sock)
