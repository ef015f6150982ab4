"""Attacks on the data plane: with its binary frames, and with bytes that are not frames."""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from random import Random

from jetstream_protocol import frames
from jetstream_protocol.frames import Kind
from jetstream_protocol.generated import common_pb2, dataplane_pb2
from jetstream_server.net.node_link import NodeIdentity, proofs_of
from tests.fuzz import envelopes
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
from tests.fuzz.mutation import ODD_INTEGERS, mutated, noise, odd_text, wild_message


class DataPlaneAttack(Attack):
    def __init__(self, target: Target) -> None:
        super().__init__(target)
        hello = dataplane_pb2.Hello(version=1, client="fuzz", token=target.token)
        self._hello = frames.encode(Kind.HELLO, 1, hello.SerializeToString())

    def steps(self) -> Sequence[Step]:
        return (
            self.noise, self.mutated_frames, self.mutated_frames, self.wild_heads, self.odd_fetches,
            self.lying_prefix, self.half_frame, self.hello_again, self.floods_unread,
            self.slow_reader, self.long_polls, self.many_connections, self.wild_positions,
            self.unread_refusals, self.batches, self.batches, self.batch_floods, self.half_batch,
            self.wild_follows,
        )  # fmt: skip

    def greeted(self, *, receive_buffer: int = 0) -> socket.socket:
        sock = connect(self.target.data, receive_buffer=receive_buffer)
        sock.sendall(self._hello)
        sock.recv(4096)
        return sock

    def fetch(self, random: Random, name: str) -> bytes:
        request = dataplane_pb2.DataFetchRequest(
            stream=common_pb2.StreamRef(name=name),
            offset=random.choice((0, 0, 0, 1, 5, 2**40)),
            bytes_max=random.choice((0, 1, 1 << 20, 64 << 20, 2**32 - 1)),
            bytes_min=random.choice((0, 1, 1 << 20, 2**32 - 1)),
            wait_ms_max=random.choice((0, 0, 1, 100, 300_000)),
        )
        correlation = random.randrange(2**32)
        return frames.encode(Kind.FETCH, correlation, request.SerializeToString())

    def wild_follows(self, random: Random) -> None:
        """Follows and credits as no reader sends them; perhaps nothing that comes is read."""
        sock = self.greeted(receive_buffer=random.choice((0, 4096)))
        for _ in range(random.randrange(1, 60)):
            correlation = random.randrange(40)
            if random.random() < 0.5:
                begin = dataplane_pb2.DataFetchRequest.FromString(
                    self.fetch(random, self.name(random))[frames.PREFIX_BYTES :]
                )
                asked = dataplane_pb2.FollowRequest(
                    credit=random.choice((1, 1000, 1 << 20, *ODD_INTEGERS)) % 2**32,
                    **{"from": begin},
                )
                sock.sendall(frames.encode(Kind.FOLLOW, correlation, asked.SerializeToString()))
            else:
                said = dataplane_pb2.Credit(
                    bytes=random.choice((0, 1, 1000, *ODD_INTEGERS)) % 2**32,
                    ends=random.random() < 0.3,
                )
                frame = frames.encode(Kind.CREDIT, correlation, said.SerializeToString())
                sock.sendall(mutated(random, frame) if random.random() < 0.05 else frame)
        if random.random() < 0.5:
            drain(sock, seconds=0.1)
        leave(random, sock)

    def name(self, random: Random) -> str:
        return random.choice((self.target.control, self.target.bulk, *self.target.victims))

    def produce(self, random: Random) -> bytes:
        """A producer's batch, mostly one that no honest producer sends."""
        stream = common_pb2.StreamRef(name=random.choice(self.target.victims))
        if random.random() < 0.1:
            stream = common_pb2.StreamRef(
                id=random.choice((0, 1, 2**64 - 1)), name=odd_text(random, 1_000)
            )
        subject = f"{stream.name}.x" if random.random() < 0.8 else odd_text(random, 1_000)
        request = dataplane_pb2.ProduceRequest(
            stream=stream,
            subject=subject,
            ack_leader=random.random() < 0.3,
            expected_offset=random.choice((None, None, None, 0, 5, -1, 2**63 - 1, -(2**63))),
        )
        tail = (
            envelopes.batch(random, f"{stream.name}.x".encode()) if random.random() < 0.8 else b""
        )
        if random.random() < 0.2:
            tail = random.choice((noise(random, 5_000), mutated(random, tail), tail[:-1]))
        head = request.SerializeToString()[:65_000]
        return frames.encode(Kind.PRODUCE, random.randrange(2**32), head, len(tail)) + tail

    def batches(self, random: Random) -> None:
        sock = self.greeted() if random.random() < 0.9 else connect(self.target.data)
        for _ in range(random.randrange(1, 20)):
            frame = self.produce(random)
            sock.sendall(mutated(random, frame) if random.random() < 0.1 else frame)
        drain(sock, seconds=0.1)
        leave(random, sock)

    def batch_floods(self, random: Random) -> None:
        """Batches by the thousand, and not one answer read."""
        sock = self.greeted(receive_buffer=4096)
        sock.settimeout(0.5)
        try:
            for _ in range(200):
                sock.sendall(self.produce(random) * 5)
        except TimeoutError:
            pass  # It does not read on while answers wait: as it should be.
        if random.random() < 0.3:
            self.linger(random, sock)
        else:
            leave(random, sock)

    def half_batch(self, random: Random) -> None:
        """The beginning of a long batch, which takes others' room until it is given up."""
        sock = self.greeted()
        request = dataplane_pb2.ProduceRequest(
            stream=common_pb2.StreamRef(name=random.choice(self.target.victims)), subject="x"
        )
        length = random.choice((100, 1 << 20, 16 << 20, (16 << 20) + 1, 2**31))
        sock.sendall(frames.encode(Kind.PRODUCE, 1, request.SerializeToString(), length))
        sock.sendall(noise(random, min(length, 100_000)))
        self.linger(random, sock)

    def noise(self, random: Random) -> None:
        sock = self.greeted() if random.random() < 0.5 else connect(self.target.data)
        send_in_pieces(random, sock, noise(random, 200_000))
        drain(sock)
        leave(random, sock)

    def mutated_frames(self, random: Random) -> None:
        sock = self.greeted()
        for _ in range(random.randrange(1, 20)):
            valid = self.fetch(random, self.name(random))
            sock.sendall(mutated(random, valid) if random.random() < 0.5 else valid)
        drain(sock, seconds=0.1)
        leave(random, sock)

    def wild_heads(self, random: Random) -> None:
        sock = self.greeted() if random.random() < 0.8 else connect(self.target.data)
        head = wild_message(random, 65_000)[:65_523]
        sock.sendall(frames.encode(random.choice(list(Kind)), 9, head))
        drain(sock, seconds=0.1)
        leave(random, sock)

    def odd_fetches(self, random: Random) -> None:
        sock = self.greeted()
        for _ in range(20):
            stream = common_pb2.StreamRef(
                id=random.choice((0, 0, 1, 2**64 - 1)),
                name=random.choice((odd_text(random, 60_000), self.name(random))),
                subject=random.choice(("", odd_text(random, 1_000))),
            )
            request = dataplane_pb2.DataFetchRequest(
                stream=stream,
                offset=random.choice([i for i in ODD_INTEGERS if -(2**63) <= i < 2**63]),
                last_epoch=random.choice([i for i in ODD_INTEGERS if -(2**63) <= i < 2**63]),
                bytes_max=random.choice(ODD_INTEGERS) % 2**32,
                bytes_min=random.choice(ODD_INTEGERS) % 2**32,
                wait_ms_max=random.choice(ODD_INTEGERS) % 2**32,
            )
            head = request.SerializeToString()
            if len(head) < 65_500:
                sock.sendall(frames.encode(Kind.FETCH, 5, head))
        drain(sock, seconds=0.1)
        leave(random, sock)

    def lying_prefix(self, random: Random) -> None:
        """Lengths that are not those of what follows."""
        sock = self.greeted() if random.random() < 0.5 else connect(self.target.data)
        frame = bytearray(self.fetch(random, self.name(random)))
        frame[0:4] = (random.choice(ODD_INTEGERS) % 2**32).to_bytes(4, "little")
        frame[6:8] = (random.choice(ODD_INTEGERS) % 2**16).to_bytes(2, "little")
        sock.sendall(bytes(frame) + noise(random, 100_000))
        drain(sock, seconds=0.1)
        leave(random, sock)

    def half_frame(self, random: Random) -> None:
        """The beginning of a frame, and then silence: before the greeting or after it."""
        if random.random() < 0.5:
            sock = connect(self.target.data)
            sock.sendall(self._hello[: random.randrange(len(self._hello))])
        else:
            sock = self.greeted()
            whole = frames.encode(Kind.FETCH, 1, b"\x0a" * 60_000)
            sock.sendall(whole[: random.randrange(len(whole))])
        self.linger(random, sock)

    def hello_again(self, random: Random) -> None:
        sock = self.greeted()
        sock.sendall(
            random.choice((self._hello, self._hello * 100, frames.encode(Kind.HELLO_REPLY, 1, b"")))
        )
        drain(sock, seconds=0.1)
        leave(random, sock)

    def floods_unread(self, random: Random) -> None:
        """Requests by the thousand, and not one answer read."""
        sock = self.greeted(receive_buffer=4096)
        sock.settimeout(0.5)
        try:
            for _ in range(200):
                sock.sendall(self.fetch(random, self.name(random)) * 10)
        except TimeoutError:
            pass  # It does not read on while answers wait: as it should be.
        if random.random() < 0.3:
            self.linger(random, sock)
        else:
            leave(random, sock)

    def slow_reader(self, random: Random) -> None:
        """A large answer, read in drops, then dropped."""
        sock = self.greeted(receive_buffer=4096)
        request = dataplane_pb2.DataFetchRequest(
            stream=common_pb2.StreamRef(name=self.target.bulk), bytes_max=64 << 20
        )
        sock.sendall(frames.encode(Kind.FETCH, 1, request.SerializeToString()))
        for _ in range(random.randrange(20)):
            sock.recv(random.choice((1, 100, 4096)))
        if random.random() < 0.5:
            self.linger(random, sock)
        else:
            leave(random, sock)

    def long_polls(self, random: Random) -> None:
        """As many long polls as a connection may have, then gone."""
        sock = self.greeted()
        for index in range(64):
            request = dataplane_pb2.DataFetchRequest(
                stream=common_pb2.StreamRef(name=random.choice(self.target.victims)),
                bytes_min=2**32 - 1,
                wait_ms_max=300_000,
            )
            sock.sendall(frames.encode(Kind.FETCH, index, request.SerializeToString()))
        if random.random() < 0.2:
            self.linger(random, sock)
        else:
            leave(random, sock)

    def follower(self, random: Random) -> socket.socket:
        """A connection as a node's that knows the credential: a `--dev` server has none."""
        sock = connect(self.target.data)
        sock.sendall(self._hello)
        prefix = frames.decode_prefix(receive_exactly(sock, frames.PREFIX_BYTES), 1 << 16)
        reply = dataplane_pb2.HelloReply.FromString(receive_exactly(sock, prefix.head_length))
        hello = dataplane_pb2.NodeHello(
            node_id=random.choice((0, 1, 7, 2**31 - 1, -1)),
            incarnation=random.choice((0, 1, 2**63, 2**64 - 1)),
            nonce=random.randbytes(random.choice((0, 32, 1000))),
            fixed_layout=random.random() < 0.8,
        )
        node = NodeIdentity(hello.node_id, hello.incarnation, reply.cluster_id, b"")
        hello.proof = proofs_of(node, reply.nonce + hello.nonce)["follower"]
        sock.sendall(frames.encode(Kind.NODE_HELLO, 1, hello.SerializeToString()))
        return sock

    def positions(self, random: Random) -> bytes:
        signed = [i for i in ODD_INTEGERS if -(2**63) <= i < 2**63]
        if random.random() < 0.5:
            length = random.choice((0, 47, 48, 96, 48 * 500, 48 * 501))
            head = struct.pack("<Qqqqqq", random.randrange(12), *random.choices(signed, k=5))
            head = (head * 501)[:length]
            return frames.encode(Kind.FIXED_POSITIONS, 0, head)
        positions = [
            dataplane_pb2.Positions.Position(
                stream_id=random.choice((*range(12), 2**64 - 1)),
                leader_epoch=random.choice((0, 1, random.choice(signed))),
                fetch_offset=random.choice(signed),
                last_epoch=random.choice((-1, 0, 1, random.choice(signed))),
                flushed_offset=random.choice(signed),
            )
            for _ in range(random.randrange(1, 500))
        ]
        dropped = [random.choice(ODD_INTEGERS) % 2**64 for _ in range(random.randrange(50))]
        head = dataplane_pb2.Positions(positions=positions, dropped=dropped).SerializeToString()
        return frames.encode(Kind.POSITIONS, 0, head)

    def wild_positions(self, random: Random) -> None:
        """A follower with an impossible position."""
        sock = self.follower(random)
        for _ in range(10):
            frame = self.positions(random)
            sock.sendall(mutated(random, frame) if random.random() < 0.2 else frame)
        drain(sock, seconds=0.1)
        leave(random, sock)

    def unread_refusals(self, random: Random) -> None:
        """A follower that says much and hears nothing."""
        sock = self.follower(random)
        frame = self.positions(random)
        sock.settimeout(0.5)
        try:
            for _ in range(2_000):
                sock.sendall(frame)
        except TimeoutError:
            pass  # It does not read on while answers wait: as it should be.
        self.linger(random, sock)

    def many_connections(self, random: Random) -> None:
        sockets = [connect(self.target.data) for _ in range(random.choice((10, 100, 300)))]
        for sock in sockets:
            leave(random, sock)
