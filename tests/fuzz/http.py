"""Attacks on the HTTP port."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from tests.fuzz import http2
from tests.fuzz.attack import Attack, Step, connect, drain, leave, send_in_pieces
from tests.fuzz.mutation import mutated, noise

PATHS = (
    b"/healthz", b"/readyz", b"/metrics", b"/", b"*", b"//", b"/../../etc/passwd", b"/%00", b"/%ff",
    b"/api/v1/cluster", b"/api/v1/nodes/x/drain",
    b"/v1/streams/x/records?from=1&key=%ff&filter=" + b"*." * 300,
    b"/v1/cluster", b"/v1/streams?match=%ff&limit=9", b"/v1/streams/%00%40", b"/v1/cursors?x=%ff",
    b"/v1/streams/x/records?from=" + b"9" * 300, b"/v1/streams/x/cursors/%ff", b"/console.js",
    b"/settings.js",
    b"/metrics?streams=" + b"*a" * 200, b"/metrics?" + b"x=1&" * 100,
    b"http://other/metrics", b"/" + b"a" * 7_000, b"/\xff\xfe",
)  # fmt: skip
METHODS = (
    b"GET",
    b"HEAD",
    b"POST",
    b"PUT",
    b"OPTIONS",
    b"TRACE",
    b"CONNECT",
    b"PRI",
    b"G E T",
    b"",
)
HEADERS = (
    b"Content-Length: 5", b"Content-Length: -1", b"Content-Length: 99999999999999999999",
    b"Content-Length: 1\r\nContent-Length: 2", b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: chunked\r\nContent-Length: 3", b"Expect: 100-continue", b"Host: \x00",
    b"Connection: upgrade\r\nUpgrade: websocket", b"Connection: upgrade\r\nUpgrade: h2c",
    b"Connection: keep-alive", b"Connection: close", b"Range: bytes=0-,0-,0-", b": nothing",
    b" folded", b"X: " + b"v" * 8_000, b"Accept-Encoding: gzip", b"Content-Encoding: gzip",
    b"Idempotency-Key: \xff\xfe", b"Accept: text/event-stream", b"Last-Event-ID: 3",
    b"X" * 9_000 + b": y", b"Cookie: " + b"a=b;" * 1_000, b"no colon at all", b"X: \x7f\xff",
)  # fmt: skip


class HttpAttack(Attack):
    def steps(self) -> Sequence[Step]:
        return (
            self.noise, self.odd_requests, self.odd_requests, self.mutated_requests,
            self.half_requests, self.endless_headers, self.endless_body, self.pipelined,
            self.unread, self.other_protocol, self.many_connections, self.followers,
            self.publishes, self.half_bodies,
        )  # fmt: skip

    def request(self, random: Random) -> bytes:
        headers = [random.choice(HEADERS) for _ in range(random.randrange(6))]
        if self.target.token:
            headers.append(b"Authorization: Bearer " + self.target.token.encode())
        version = random.choice((b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.0", b"HTTP/9.9", b"HTCPCP/1.0"))
        line = b" ".join((random.choice(METHODS), random.choice(PATHS), version))
        return b"\r\n".join((line, b"Host: 127.0.0.1", *headers, b"", b""))

    def noise(self, random: Random) -> None:
        sock = connect(self.target.http)
        send_in_pieces(random, sock, noise(random, 200_000))
        drain(sock, seconds=0.1)
        leave(random, sock)

    def odd_requests(self, random: Random) -> None:
        sock = connect(self.target.http)
        body = random.choice(
            (b"", b"5\r\nhello\r\n0\r\n\r\n", b"ffffffffffffffff\r\n", b"-1\r\n", b"zz\r\n")
        )
        sock.sendall(self.request(random) + body)
        drain(sock, seconds=0.1)
        leave(random, sock)

    def mutated_requests(self, random: Random) -> None:
        sock = connect(self.target.http)
        sock.sendall(mutated(random, b"GET /metrics HTTP/1.1\r\nHost: fuzz\r\nX: y\r\n\r\n"))
        drain(sock, seconds=0.1)
        leave(random, sock)

    def half_requests(self, random: Random) -> None:
        sock = connect(self.target.http)
        request = self.request(random)
        sock.sendall(request[: random.randrange(len(request))])
        self.linger(random, sock)

    def endless_headers(self, random: Random) -> None:
        sock = connect(self.target.http)
        sock.sendall(b"GET /metrics HTTP/1.1\r\nHost: fuzz\r\n")
        line = random.choice((b"X: y\r\n" * 1_000, b"X" * 6_000))
        for _ in range(random.choice((10, 300))):
            sock.sendall(line)
        drain(sock, seconds=0.1)
        leave(random, sock)

    def endless_body(self, random: Random) -> None:
        sock = connect(self.target.http)
        sock.sendall(b"POST /metrics HTTP/1.1\r\nHost: fuzz\r\nTransfer-Encoding: chunked\r\n\r\n")
        chunks = random.choice((b"10000\r\n" + bytes(65_536) + b"\r\n", b"1\r\nx\r\n" * 10_000))
        for _ in range(random.choice((1, 200))):
            sock.sendall(chunks)
        drain(sock, seconds=0.1)
        leave(random, sock)

    def followers(self, random: Random) -> None:
        """Readers of events: some read for a moment, most read nothing, and stay."""
        head = b"Host: 127.0.0.1\r\nAccept: text/event-stream\r\n" + self._sign_in
        for _ in range(random.choice((1, 30, 100))):
            name = random.choice((self.target.control, self.target.bulk, *self.target.victims))
            path = f"/v1/streams/{name}/records?from={random.choice(('earliest', 'latest'))}"
            sock = connect(self.target.http, receive_buffer=random.choice((0, 4096)))
            sock.sendall(b"GET %b HTTP/1.1\r\n%b\r\n" % (path.encode(), head))
            if random.random() < 0.3:
                drain(sock, seconds=0.05)
            if random.random() < 0.7:
                self.linger(random, sock)
            else:
                leave(random, sock)

    def publishes(self, random: Random) -> None:
        """Records, mostly such as no honest program sends."""
        sock = connect(self.target.http)
        for _ in range(random.randrange(1, 20)):
            line = b'{"value": "a", "headers": {"a": "b"}}\n'
            line = mutated(random, line) if random.random() < 0.5 else line
            body = random.choice((line, line * 200, noise(random, 5_000), b"[" * 90_000, b""))
            sock.sendall(self._publish(random, len(body)) + body)
        drain(sock, seconds=0.1)
        leave(random, sock)

    def half_bodies(self, random: Random) -> None:
        """The beginnings of long bodies, which take room until they are given up."""
        for _ in range(random.choice((1, 20, 60))):
            sock = connect(self.target.http)
            sock.sendall(self._publish(random, random.choice((100, 1 << 20, 2**40))) + bytes(50))
            self.linger(random, sock)

    def _publish(self, random: Random, length: int) -> bytes:
        name = random.choice(self.target.victims)
        kind = random.choice((b"application/json", b"application/x-ndjson", b"text/plain", b"\xff"))
        more = random.choice((b"", b"Idempotency-Key: \xff\x80\r\n", b"Expect: 100-continue\r\n"))
        return b"".join(
            (
                f"POST /v1/streams/{name}/records?subject={name}.x HTTP/1.1\r\n".encode(),
                b"Host: 127.0.0.1\r\nContent-Type: %b\r\n" % kind,
                b"Content-Length: %d\r\n" % length,
                more,
                self._sign_in,
                b"\r\n",
            )
        )

    @property
    def _sign_in(self) -> bytes:
        token = self.target.token
        return b"Authorization: Bearer %b\r\n" % token.encode() if token else b""

    def pipelined(self, random: Random) -> None:
        sock = connect(self.target.http)
        sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: fuzz\r\n\r\n" * random.choice((10, 1_000)))
        drain(sock, seconds=0.1)
        leave(random, sock)

    def unread(self, random: Random) -> None:
        """Answers asked for, and never read."""
        sock = connect(self.target.http, receive_buffer=4096)
        sock.settimeout(0.5)
        try:
            for _ in range(100):
                sock.sendall(b"GET /metrics HTTP/1.1\r\nHost: fuzz\r\n\r\n" * 20)
        except TimeoutError:
            pass  # It does not read on while answers wait: as it should be.
        self.linger(random, sock)

    def other_protocol(self, random: Random) -> None:
        sock = connect(self.target.http)
        sock.sendall(
            random.choice(
                (http2.PREFACE + http2.settings(), b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc")
            )
        )
        drain(sock, seconds=0.1)
        leave(random, sock)

    def many_connections(self, random: Random) -> None:
        sockets = [connect(self.target.http) for _ in range(random.choice((10, 100, 300)))]
        for sock in sockets:
            if random.random() < 0.2:
                self.linger(random, sock)
            else:
                leave(random, sock)
