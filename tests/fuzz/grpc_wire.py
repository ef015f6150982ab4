"""Attacks on the gRPC port below gRPC: HTTP/2 frames made by hand."""

from __future__ import annotations

import socket
import zlib
from collections.abc import Sequence
from functools import cache
from random import Random

from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.generated import common_pb2
from tests.fuzz import http2
from tests.fuzz.attack import Attack, Step, connect, drain, leave, send_in_pieces
from tests.fuzz.http2 import END_HEADERS, END_STREAM, FrameType, frame
from tests.fuzz.mutation import ODD_INTEGERS, mutated, noise

FETCH = b"/jetstream.v1.Reads/Fetch"
CONSUME = b"/jetstream.v1.Reads/Consume"
LIST = b"/jetstream.v1.Streams/ListStreams"


@cache
def _bomb(wbits: int) -> bytes:
    return zlib.compress(bytes(60 << 20), wbits=wbits)


class GrpcWire(Attack):
    def steps(self) -> Sequence[Step]:
        return (
            self.noise, self.mutated_conversation, self.random_frames, self.half_preface,
            self.rapid_resets, self.pings, self.endless_headers, self.header_bomb,
            self.lying_frames, self.window_games, self.half_calls, self.answers_unread,
            self.answers_unread, self.many_connections, self.garbage_headers,
            self.packed,
        )  # fmt: skip

    def greeted(self, **settings: int) -> socket.socket:
        sock = connect(self.target.grpc)
        sock.sendall(http2.PREFACE + http2.settings(**settings))
        return sock

    def fetch(self, name: str) -> bytes:
        request = pb.FetchRequest(
            stream=common_pb2.StreamRef(name=name), bytes_max=2**32 - 1, wait_ms_max=1000
        )
        return request.SerializeToString()

    def noise(self, random: Random) -> None:
        sock = self.greeted() if random.random() < 0.5 else connect(self.target.grpc)
        send_in_pieces(random, sock, noise(random, 200_000))
        drain(sock, seconds=0.1)
        leave(random, sock)

    def mutated_conversation(self, random: Random) -> None:
        whole = http2.PREFACE + http2.settings() + frame(FrameType.SETTINGS, http2.ACK, 0, b"")
        for index in range(random.randrange(1, 10)):
            whole += http2.call(2 * index + 1, random.choice((FETCH, LIST)), self.fetch("x"))
        sock = connect(self.target.grpc)
        sock.sendall(mutated(random, whole))
        drain(sock, seconds=0.2)
        leave(random, sock)

    def random_frames(self, random: Random) -> None:
        sock = self.greeted()
        for _ in range(random.randrange(1, 200)):
            sock.sendall(
                frame(
                    random.choice((*FrameType, 10, 0x20, 255)),
                    random.randrange(256),
                    random.choice((0, 1, 2, 3, 2**31 - 1, 2**32 - 1)),
                    noise(random, 2_000),
                )
            )
        drain(sock, seconds=0.1)
        leave(random, sock)

    def half_preface(self, random: Random) -> None:
        sock = connect(self.target.grpc)
        sock.sendall(http2.PREFACE[: random.randrange(len(http2.PREFACE))])
        self.linger(random, sock)

    def rapid_resets(self, random: Random) -> None:
        """Calls that are taken back at once."""
        sock = self.greeted()
        for index in range(300):
            stream = 2 * index + 1
            sock.sendall(
                http2.call(stream, random.choice((FETCH, CONSUME)), self.fetch("x"), end=False)
                + frame(FrameType.RST_STREAM, 0, stream, b"\0\0\0\x08")
            )
        drain(sock, seconds=0.1)
        leave(random, sock)

    def pings(self, random: Random) -> None:
        sock = self.greeted()
        sock.sendall(frame(FrameType.PING, 0, 0, bytes(8)) * 10_000)
        sock.sendall(http2.settings(id_4=random.randrange(2**31)) * 1_000)
        drain(sock, seconds=0.1)
        leave(random, sock)

    def endless_headers(self, random: Random) -> None:
        """CONTINUATION upon CONTINUATION, and no end."""
        sock = self.greeted()
        sock.sendall(frame(FrameType.HEADERS, 0, 1, http2.call_headers(LIST)))
        filler = http2.field(b"x-filler", b"v" * 1000) * 10
        for _ in range(random.choice((10, 300))):
            sock.sendall(frame(FrameType.CONTINUATION, 0, 1, filler))
        drain(sock, seconds=0.1)
        leave(random, sock)

    def header_bomb(self, random: Random) -> None:
        """One large entry in the table, then as many references to it as fit."""
        sock = self.greeted()
        entry = b"\x40" + http2.field(b"x-bomb", b"v" * 3_000)[1:]
        block = http2.call_headers(LIST) + entry + b"\xbe" * 16_000
        sock.sendall(frame(FrameType.HEADERS, END_HEADERS | END_STREAM, 1, block[:16_384]))
        drain(sock, seconds=0.1)
        leave(random, sock)

    def lying_frames(self, random: Random) -> None:
        sock = self.greeted()
        claim = random.choice(ODD_INTEGERS) % 2**24
        sock.sendall(
            frame(random.choice(list(FrameType)), 0, 1, noise(random, 50_000), claim=claim)
        )
        if random.random() < 0.3:
            self.linger(random, sock)
        else:
            drain(sock, seconds=0.1)
            leave(random, sock)

    def window_games(self, random: Random) -> None:
        sock = self.greeted(id_4=random.choice((0, 1, 2**31 - 1, 2**32 - 1)), id_5=2**24 - 1)
        for _ in range(100):
            increment = (random.choice(ODD_INTEGERS) % 2**32).to_bytes(4, "big")
            sock.sendall(frame(FrameType.WINDOW_UPDATE, 0, random.choice((0, 1)), increment))
        sock.sendall(http2.call(1, FETCH, self.fetch(self.target.bulk)))
        drain(sock, seconds=0.1)
        leave(random, sock)

    def half_calls(self, random: Random) -> None:
        """Calls that claim a message and never send the rest of it."""
        sock = self.greeted()
        for index in range(random.choice((1, 50, 200))):
            stream = 2 * index + 1
            headers = frame(FrameType.HEADERS, END_HEADERS, stream, http2.call_headers(FETCH))
            body = b"\0" + (4 << 20).to_bytes(4, "big") + noise(random, 8_000)
            sock.sendall(headers + frame(FrameType.DATA, 0, stream, body))
        self.linger(random, sock)

    def answers_unread(self, random: Random) -> None:
        """Large answers asked for over and over by a reader whose window is shut."""
        sock = self.greeted(id_4=random.choice((0, 0, 1000)))
        path = random.choice((FETCH, FETCH, CONSUME))
        for index in range(random.choice((1, 20, 90))):
            sock.sendall(http2.call(2 * index + 1, path, self.fetch(self.target.bulk)))
        if random.random() < 0.7:
            self.linger(random, sock)
        else:
            leave(random, sock)

    def many_connections(self, random: Random) -> None:
        sockets = [connect(self.target.grpc) for _ in range(random.choice((10, 100, 300)))]
        for sock in sockets:
            leave(random, sock)

    def packed(self, random: Random) -> None:
        """Kilobytes that are megabytes once they are unpacked."""
        sock = self.greeted()
        how = random.choice((b"gzip", b"deflate"))
        message = _bomb(31 if how == b"gzip" else 15)
        headers = http2.call_headers(random.choice((FETCH, LIST)), (b"grpc-encoding", how))
        body = b"\x01" + len(message).to_bytes(4, "big") + message
        for index in range(random.choice((1, 8))):
            stream = 2 * index + 1
            sock.sendall(frame(FrameType.HEADERS, END_HEADERS, stream, headers))
            for at in range(0, len(body), 16_384):
                sock.sendall(frame(FrameType.DATA, 0, stream, body[at : at + 16_384]))
            sock.sendall(frame(FrameType.DATA, END_STREAM, stream, b""))
        drain(sock, seconds=0.1)
        leave(random, sock)

    def garbage_headers(self, random: Random) -> None:
        sock = self.greeted()
        extra = [(noise(random, 40), noise(random, 400)) for _ in range(10)]
        extra += [(b"grpc-timeout", random.choice((b"1n", b"0S", b"99999999H", b"x", b"-1S")))]
        extra += [(b"grpc-encoding", random.choice((b"gzip", b"deflate", b"zip bomb")))]
        block = http2.call_headers(random.choice((FETCH, LIST, noise(random, 200))), *extra)
        sock.sendall(frame(FrameType.HEADERS, END_HEADERS, 1, block[:16_384]))
        sock.sendall(frame(FrameType.DATA, END_STREAM, 1, b"\x01" + noise(random, 500)))
        drain(sock, seconds=0.1)
        leave(random, sock)
