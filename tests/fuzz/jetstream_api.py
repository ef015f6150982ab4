"""Attacks by clients of the JetStream API, through a real nats-server and the leaf link."""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random

from jetstream_server.jetstream_api.requests import VERBS
from tests.fuzz.attack import Step
from tests.fuzz.mutation import mutated, noise
from tests.fuzz.nats import MALICIOUS_JSON, REPLIES, NatsAttack

API_DOMAIN = "fuzz"
FIELDS = (
    "seq", "last_by_subj", "next_by_subj", "start_time", "batch", "max_bytes", "multi_last",
    "up_to_seq", "up_to_time", "no_hdr", "subject", "offset", "subjects_filter", "x",
)  # fmt: skip
VALUES: tuple[object, ...] = (
    0, 1, 2, 10_000, 10**18, 2**64, -1, 1.5, True, None, "", ">", "*", "a..b", "bulk", "victim-0.>",
    "\u0000", "\ud800", "x" * 5_000, "2026-01-01T00:00:00Z", "9999-12-31T23:59:59-23:59", [],
    [">"], ["a"] * 1_025, ["bulk", "victim-1.x"], {}, [[]],
)  # fmt: skip


class ApiAttack(NatsAttack):
    def steps(self) -> Sequence[Step]:
        return (
            self.requests, self.requests, self.odd_bodies, self.odd_names, self.odd_answers,
            self.searches, self.deaf_reader,
        )  # fmt: skip

    def stream(self, random: Random) -> str:
        return random.choice((*self.target.victims, self.target.bulk, "nothing", "a%2Eb", "%", "*"))

    def request(
        self, random: Random, verb: str, body: bytes, reply: bytes = b"_INBOX.fuzz.1"
    ) -> bytes:
        """The lines of a request about some stream."""
        name = verb if verb in ("INFO", "STREAM.NAMES", "STREAM.LIST") else (
            f"{verb}.{self.stream(random)}"
        )  # fmt: skip
        subject = f"$JS.{API_DOMAIN}.API.{name}".encode()
        return b"PUB %b %b %d\r\n%b\r\n" % (subject, reply, len(body), body)

    def body(self, random: Random) -> bytes:
        fields = random.sample(FIELDS, random.randrange(4))
        return json.dumps({field: random.choice(VALUES) for field in fields}).encode()

    def requests(self, random: Random) -> None:
        sock = self.client()
        for _ in range(random.randrange(1, 60)):
            sock.sendall(self.request(random, random.choice(VERBS), self.body(random)))
        self.finish(random, sock)

    def odd_bodies(self, random: Random) -> None:
        sock = self.client()
        for _ in range(random.randrange(1, 20)):
            body = random.choice(
                (noise(random, 1_000), mutated(random, self.body(random)), bytes(900_000),
                 random.choice(MALICIOUS_JSON))
            )  # fmt: skip
            verb = random.choice(("DIRECT.GET", "STREAM.MSG.GET", "STREAM.LIST", "STREAM.NAMES"))
            sock.sendall(self.request(random, verb, body))
        self.finish(random, sock)

    def odd_names(self, random: Random) -> None:
        sock = self.client()
        for _ in range(30):
            tail = noise(random, 40).translate(None, b" \r\n\t\x00")
            subject = b"$JS.%b.API.%b%b" % (
                API_DOMAIN.encode(), random.choice((b"", b"STREAM.INFO.", b"DIRECT.GET.")), tail,
            )  # fmt: skip
            sock.sendall(b"PUB %b _INBOX.fuzz.1 0\r\n\r\n" % subject)
        self.finish(random, sock)

    def odd_answers(self, random: Random) -> None:
        sock = self.client()
        for _ in range(random.randrange(1, 100)):
            reply = random.choice(REPLIES)
            sock.sendall(self.request(random, "STREAM.NAMES", b"", reply))
        self.finish(random, sock)

    def searches(self, random: Random) -> None:
        """As much work as one client can ask for."""
        sock = self.client()
        bodies = (
            b'{"last_by_subj":"none"}', b'{"next_by_subj":"none"}', b'{"multi_last":[">"]}',
            b'{"seq":1,"batch":10000}', b'{"start_time":"2020-01-01T00:00:00Z","batch":10000}',
        )  # fmt: skip
        bulk = f"$JS.{API_DOMAIN}.API.DIRECT.GET.{self.target.bulk}".encode()
        for _ in range(random.choice((1, 20, 1_000))):
            body = random.choice(bodies)
            sock.sendall(b"PUB %b _INBOX.fuzz.1 %d\r\n%b\r\n" % (bulk, len(body), body))
        self.finish(random, sock)

    def deaf_reader(self, random: Random) -> None:
        """Batches asked for, and none read."""
        sock = self.client()
        sock.sendall(b"SUB _INBOX.deaf.> 1\r\n")
        body = b'{"seq":1,"batch":10000}'
        bulk = f"$JS.{API_DOMAIN}.API.DIRECT.GET.{self.target.bulk}".encode()
        line = b"PUB %b _INBOX.deaf.1 %d\r\n%b\r\n" % (bulk, len(body), body)
        sock.sendall(line * 50)
        self.linger(random, sock)
