"""Attacks by publishers: whatever a real nats-server lets through to our subscriptions."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from random import Random

from jetstream_protocol.batch import encode
from jetstream_protocol.envelope import encode_batch
from jetstream_protocol.errors import JetstreamError
from jetstream_protocol.generated import api_pb2 as pb
from tests.fuzz import envelopes
from tests.fuzz.attack import Attack, Step, Target, connect, drain, leave
from tests.fuzz.mutation import mutated, noise
from tests.support.api import Api

NAMES = (
    b"Jetstream-Key", b"Jetstream-Ack", b"Jetstream-Tombstone", b"Jetstream-Nothing",
    b"Nats-Msg-Id", b"Nats-Expected-Stream", b"Nats-Expected-Last-Sequence", b"Nats-TTL",
    b"Nats-Rollup", b"nats-ttl", b"Nats-", b"Jetstream-", b"X", b"", b"Nats-\xff", b"%s",
)  # fmt: skip
VALUES = (
    b"", b"all", b"leader", b"none", b"true", b"false", b"0", b"-1", b"1" * 400, b"\xff" * 60,
    b"%s%d", b"\x00", b"a\rb", b'","seq":1}', b"victim-0", b"\x1b[31m", "é☃".encode(),
)  # fmt: skip
REPLIES = (
    b"_INBOX.fuzz.1", b"_INBOX.fuzz", b"_INBOX.\xff\xfe", b"_INBOX.%s%d", b"_INBOX..x",
    b"_INBOX.a.", b"_INBOX.*", b"_INBOX.>", b"_INBOX.a*b", b"_INBOX", b"forbidden.x",
    b"_INBOXforbidden.x", b"$SYS.x", b"$JS.API.STREAM.NAMES", b"_INBOX." + b"x" * 3_000,
    b"_INBOX.\x01\x02", b"_INBOX.\x0b\x0c", b"_INBOX.\xc2\xa0", b'_INBOX."}',
    b"_INBOX." + b"a." * 1_000 + b"z",
)  # fmt: skip
MALICIOUS_JSON = (
    b'{"stream":"control","seq":99999999999999999999}', b"{" * 10_000, b"[" * 100_000,
    b'{"error":{"code":503,"description":"' + b"x" * 5_000 + b'"}}', b'{"seq":1e999}',
    b"\xff\xfe{}", b'{"stream":"beat","seq":1}', b"null", b'"' + b"\\u0000" * 1_000 + b'"',
)  # fmt: skip


class NatsAttack(Attack):
    def __init__(self, target: Target) -> None:
        super().__init__(target)
        host, port = target.calls
        self._api = Api(f"{host}:{port}")

    def close(self) -> None:
        self._api.close()
        super().close()

    def steps(self) -> Sequence[Step]:
        return (
            self.hostile_headers, self.hostile_headers, self.long_refusals, self.odd_subjects,
            self.giant_payloads, self.many_subjects, self.odd_replies, self.odd_replies,
            self.false_answers, self.flood, self.half_message, self.deaf_asker, self.churn,
            self.churn, self.catch_all,
        )  # fmt: skip

    def client(self) -> socket.socket:
        sock = connect(self.target.nats)
        sock.sendall(b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\nPING\r\n')
        sock.recv(65_536)
        return sock

    def subject(self, random: Random) -> bytes:
        return random.choice(self.target.victims).encode() + b".x"

    def finish(self, random: Random, sock: socket.socket) -> None:
        """See everything through the NATS server, then leave."""
        sock.sendall(b"PING\r\n")
        drain(sock, seconds=0.2)
        leave(random, sock)

    def block(self, random: Random) -> bytes:
        lines = [b"NATS/1.0"]
        for _ in range(random.choice((0, 1, 2, 3, 50, 2_000))):
            separator = random.choice((b": ", b":", b" : ", b"", b":\t"))
            lines.append(random.choice(NAMES) + separator + random.choice(VALUES))
        return b"\r\n".join((*lines, b"", b""))

    def hostile_headers(self, random: Random) -> None:
        sock = self.client()
        for _ in range(random.randrange(1, 50)):
            kind = random.randrange(4)
            block = self.block(random)
            if kind == 0:
                block = mutated(random, block)
            elif kind == 1:
                block = noise(random, 10_000)
            value = random.choice((b"", b"x", noise(random, 1_000)))
            reply = random.choice((b"", b" _INBOX.fuzz.1"))
            header_length = len(block) if kind != 2 else random.randrange(len(block) + 1)
            total = len(block) + len(value)
            line = b"HPUB %b%b %d %d\r\n" % (self.subject(random), reply, header_length, total)
            sock.sendall(line + block + value + b"\r\n")
        self.finish(random, sock)

    def long_refusals(self, random: Random) -> None:
        """Headers whose refusal would be longer than any message may be, if it quoted them."""
        sock = self.client()
        name = random.choice(NAMES)
        value = random.choice((b"\xff", b"\\", b'"', b"\x01", b"x")) * random.choice(
            (5_000, 900_000)
        )
        if random.random() < 0.3:
            name, value = name + value, b"x"
        elif random.random() < 0.3:
            name = b"Nats-Expected-Stream"
        block = b"NATS/1.0\r\n%b: %b\r\n\r\n" % (name, value)
        line = b"HPUB %b _INBOX.fuzz.1 %d %d\r\n" % (self.subject(random), len(block), len(block))
        sock.sendall((line + block + b"\r\n") * random.choice((1, 5)))
        self.finish(random, sock)

    def odd_subjects(self, random: Random) -> None:
        sock = self.client()
        for _ in range(50):
            tail = random.choice(
                (b"\xff\xfe", b"\xc3", b"\xed\xa0\x80", "é".encode(), b"\x01", b"\x0b", b"%s",
                 b"*", b">", b"", b".", b"a..b", b"\x7f", b"x" * 3_000, b"x." * 1_000,
                 noise(random, 20))
            )  # fmt: skip
            tail = tail.translate(None, b" \r\n\t")
            sock.sendall(b"PUB %b.%b _INBOX.fuzz.1 1\r\nx\r\n" % (self.subject(random), tail))
        self.finish(random, sock)

    def giant_payloads(self, random: Random) -> None:
        sock = self.client()
        size = random.choice((1 << 20, (1 << 20) - 1, (1 << 20) + 1, 500_000))
        for _ in range(random.choice((1, 20))):
            line = b"PUB %b _INBOX.fuzz.1 %d\r\n" % (self.subject(random), size)
            sock.sendall(line + bytes(size) + b"\r\n")
        self.finish(random, sock)

    def many_subjects(self, random: Random) -> None:
        sock = self.client()
        prefix = self.subject(random)
        start = random.randrange(2**40)
        sock.sendall(b"".join(b"PUB %b.%d 1\r\nx\r\n" % (prefix, start + i) for i in range(30_000)))
        self.finish(random, sock)

    def odd_replies(self, random: Random) -> None:
        sock = self.client()
        for _ in range(random.randrange(1, 100)):
            reply = random.choice(REPLIES)
            if random.random() < 0.2:
                reply = b"_INBOX." + noise(random, 50).translate(None, b" \r\n\t")
            sock.sendall(b"PUB %b %b 1\r\nx\r\n" % (self.subject(random), reply))
        self.finish(random, sock)

    def false_answers(self, random: Random) -> None:
        """What looks like our own acks, sent everywhere."""
        sock = self.client()
        for _ in range(200):
            subject = random.choice((b"_INBOX.fuzz.1", b"_INBOX.beat", self.subject(random)))
            if subject == b"_INBOX.beat":
                subject = b"_INBOX.beat.of.another"
            payload = random.choice(MALICIOUS_JSON)
            reply = random.choice((b"", b" _INBOX.fuzz.2"))
            sock.sendall(b"PUB %b%b %d\r\n%b\r\n" % (subject, reply, len(payload), payload))
        self.finish(random, sock)

    def flood(self, random: Random) -> None:
        sock = self.client()
        sock.settimeout(5)
        one = b"PUB %b _INBOX.fuzz.1 8\r\nflooding\r\n" % self.subject(random)
        sock.sendall(one * random.choice((1_000, 50_000)))
        self.finish(random, sock)

    def half_message(self, random: Random) -> None:
        sock = self.client()
        sock.sendall(b"PUB %b 1000\r\nhalf" % self.subject(random))
        leave(random, sock)

    def deaf_asker(self, random: Random) -> None:
        """Acks asked for by the thousand, and none read."""
        sock = connect(self.target.nats, receive_buffer=4096)
        sock.sendall(b'CONNECT {"verbose":false}\r\nSUB _INBOX.deaf.> 1\r\n')
        sock.sendall(b"PUB %b _INBOX.deaf.1 1\r\nx\r\n" % self.subject(random) * 20_000)
        self.linger(random, sock)

    def churn(self, random: Random) -> None:
        """Delete and create the streams that everybody else attacks."""
        sock = self.client()
        for _ in range(random.randrange(1, 10)):
            name = random.choice(self.target.victims)
            try:
                self._api.delete(name)
                sock.sendall(b"PUB %b.x _INBOX.fuzz.1 1\r\nx\r\n" % name.encode() * 50)
                flush = random.choice((pb.FLUSH_GROUP, pb.FLUSH_INTERVAL, pb.FLUSH_NONE))
                self._api.create(name, f"{name}.>", flush=flush)
            except JetstreamError:
                continue  # Another one was quicker.
            sock.sendall(b"PUB %b.x _INBOX.fuzz.1 1\r\nx\r\n" % name.encode() * 50)
        self.finish(random, sock)

    def catch_all(self, random: Random) -> None:
        """A stream of everything, acks and the server's own traffic included, for a moment."""
        name = f"catch-all-{random.randrange(3)}"
        try:
            self._api.create(name, ">", acks=pb.ACKS_OFF)
            sock = self.client()
            sock.sendall(b"PUB %b _INBOX.fuzz.1 1\r\nx\r\n" % self.subject(random) * 500)
            self.finish(random, sock)
            self._api.delete(name)
        except JetstreamError:
            return  # Another one was quicker.


class EnvelopeAttack(NatsAttack):
    """By publishers who know envelopes, batches and message ids."""

    def steps(self) -> Sequence[Step]:
        return (self.envelopes, self.envelopes, self.envelopes, self.producers, self.message_ids)

    def envelopes(self, random: Random) -> None:
        sock = self.client()
        sock.settimeout(5)
        for _ in range(random.randrange(1, 60)):
            subject = self.subject(random)
            payload = envelopes.payload(random, subject)
            reply = random.choice((b"", b" _INBOX.fuzz.1", b" forbidden.x"))
            block = random.choice((b"", b"", random.choice(envelopes.BLOCKS)))
            total = len(block) + len(payload)
            if block:
                line = b"HPUB %b%b %d %d\r\n" % (subject, reply, len(block), total)
            else:
                line = b"PUB %b%b %d\r\n" % (subject, reply, total)
            if total < 1 << 20:
                sock.sendall(line + block + payload + b"\r\n")
        self.finish(random, sock)

    def producers(self, random: Random) -> None:
        """More producers than anybody remembers, each with its first batch."""
        sock = self.client()
        subject = self.subject(random)
        lines = []
        for _ in range(random.choice((10, 3_000))):
            batch = encode([b"v"], subject, producer_id=random.getrandbits(63), producer_sequence=0)
            payload = encode_batch(batch, ack_inbox=random.choice((b"", b"_INBOX.fuzz.1")))
            lines.append(b"PUB %b %d\r\n%b\r\n" % (subject, len(payload), payload))
        sock.sendall(b"".join(lines))
        self.finish(random, sock)

    def message_ids(self, random: Random) -> None:
        """Ids by the thousand, some of them again."""
        sock = self.client()
        subject = self.subject(random)
        lines = []
        for _ in range(random.choice((10, 5_000))):
            message_id = b"%x" % random.getrandbits(random.choice((3, 64)))
            block = b"NATS/1.0\r\nNats-Msg-Id: %b\r\n\r\n" % message_id
            line = b"HPUB %b _INBOX.fuzz.1 %d %d\r\n" % (subject, len(block), len(block))
            lines.append(line + block + b"\r\n")
        sock.sendall(b"".join(lines))
        self.finish(random, sock)
