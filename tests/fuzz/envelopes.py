"""Envelopes and batches as no honest publisher sends them, most with every checksum in order."""

from __future__ import annotations

import struct
from random import Random

from jetstream_protocol.batch import HEADER_BYTES, EncodedBatch, crc32c, encode
from jetstream_protocol.body_compression import compress
from jetstream_protocol.columns import Flags
from jetstream_protocol.envelope import COOKIE, encode_batch
from tests.fuzz.mutation import mutated, noise

INBOXES = (
    b"_INBOX.fuzz.1", b"", b"_INBOX.fuzz.1\r\nPUB forbidden.x 1\r\nx", b"_INBOX.a\n_INBOX.b",
    b"_INBOX.a b", b"forbidden.x", b"_INBOX.*", b"_INBOX.>", b"_INBOX." + b"x" * 3_000,
    b"_INBOX.\x00", b"_INBOX.%s%d", b"_INBOX.\xff\xfe", b"_INBOX..x", b"$SYS.x",
)  # fmt: skip
CORRELATIONS = (b"", b"c-1", b"\xff\xfe", b'","seq":1}', b"%s%d", b"\r\n", b"x" * 5_000, b"\0")
BLOCKS = (
    b"", b"NATS/1.0\r\nNats-Msg-Id: fuzz\r\n\r\n", b"NATS/1.0\r\nNats-TTL: 1\r\n\r\n",
    b"NATS/1.0\r\nJetstream-Tombstone: true\r\n\r\n", b"Nats-Msg-Id: x", b"\r\nNats-Msg-Id: x\r\n",
    b"NATS/1.0\r\nNats-Trace: x\r\n\r\n", b"NATS/1.0\r\n\r\n" * 500,
)  # fmt: skip
PRODUCERS = (-1, -2, 0, 1, 2, 2**62, 2**63 - 1, -(2**63))
SEQUENCES = (-1, -2, 0, 1, 2, 3, 6, 7, 2**31 - 1, -(2**31))
# Where in a batch's header each field stands, and how wide it is.
HEADER_FIELDS = (
    (4, "<H"), (6, "<H"), (8, "<I"), (12, "<I"), (16, "<q"), (24, "<q"), (32, "<q"), (40, "<I"),
    (44, "<I"), (48, "<I"), (52, "<i"), (56, "<q"), (64, "<q"), (72, "<q"), (80, "<I"),
)  # fmt: skip


def envelope(random: Random, kind: int, rest: bytes) -> bytes:
    """With a good checksum, over fields that may be anything."""
    inbox = random.choice(INBOXES) if random.random() < 0.3 else b"_INBOX.fuzz.1"
    correlation = random.choice(CORRELATIONS) if random.random() < 0.3 else b""
    key, block = b"", b""
    flags = random.choice((0, 0, 0, 0, 0, 0, 4, 4, 1, 2, 7, 8, 0xFFFF))
    if kind == 1 and random.random() < 0.5:
        key, block = random.choice((b"", b"k", b"k" * 5_000)), random.choice(BLOCKS)
        flags = random.choice((1, 1, 5, 3))
    lengths = [len(key), len(block), len(inbox), len(correlation)]
    if random.random() < 0.1:
        at = random.randrange(4)
        lengths[at] = random.choice((0, 1, 2**16 - 1)) if at > 1 else random.choice((1, 2**32 - 1))
    if max(lengths[2:]) >= 2**16:
        return COOKIE
    expected = random.choice((-1, -1, -1, 0, 5, 2**63 - 1, -(2**63)))
    version = random.choice((1,) * 20 + (0, 2, 255))
    checked = struct.pack("<BBHqIIHH", version, kind, flags, expected, *lengths)
    checked += inbox + correlation + key + block + rest
    return COOKIE + struct.pack("<I", crc32c(checked)) + checked


def resealed(header: bytearray, body: bytes) -> bytes:
    """A batch whose body's checksum is right; the header's is the leader's to write."""
    struct.pack_into("<I", header, 12, crc32c(body))
    return bytes(header) + body + bytes(-len(body) % 8)


def bomb(random: Random, subject: bytes) -> bytes:
    """Kilobytes that expand to as much as a batch may hold, or to more, whatever they claim."""
    packed_by = random.choice((Flags.ZSTD, Flags.LZ4))
    length = random.choice((1 << 20, 16 << 20, (16 << 20) + 8, 64 << 20))
    body = compress(bytes(length), packed_by)
    header = bytearray(encode([b""], subject).header)
    claimed = random.choice((length, length, 64, 2**32 - 1))
    records = random.choice((1, 1 << 20, (1 << 20) + 1, length // 4 - 1))
    struct.pack_into("<H", header, 6, int(packed_by))
    struct.pack_into("<I", header, 8, HEADER_BYTES + len(body) + -(HEADER_BYTES + len(body)) % 8)
    struct.pack_into("<III", header, 40, records, max(0, records - 1), claimed)
    struct.pack_into("<I", header, 80, len(body))
    return resealed(header, body)


def batch(random: Random, subject: bytes) -> bytes:
    """A batch in which something may be wrong."""
    if random.random() < 0.1:
        return bomb(random, subject)
    count = random.choice((1, 2, 10, 1_000))
    claimed = subject if random.random() < 0.8 else random.choice((b"forbidden.x", b"", b"\xff"))
    built: EncodedBatch = encode(
        [random.choice((b"", b"v", None, noise(random, 50))) for _ in range(count)],
        claimed if random.random() < 0.9 else [claimed, b"other"] * (count // 2) or claimed,
        keys=random.choice((None, [b"k"] * count, [None] * count)),
        header_blocks=random.choice((None, None, [random.choice(BLOCKS)] * count)),
        timestamps=random.choice((None, [random.choice((0, -(2**63), 2**63 - 1))] * count)),
        producer_id=random.choice(PRODUCERS),
        producer_sequence=random.choice(SEQUENCES),
        compression=random.choice((0, 0, int(Flags.ZSTD), int(Flags.LZ4))),
    )
    header, body = bytearray(built.header), bytearray(built.body)
    for _ in range(random.choice((0, 0, 1, 3))):
        at, form = random.choice(HEADER_FIELDS)
        value = random.choice((0, 1, 2, 7, 8, 64, 256, 512, 1 << 15, 2**31 - 1))
        struct.pack_into(form, header, at, value % 2**16 if form == "<H" else value)
    for _ in range(random.choice((0, 0, 1, 5))):
        at = random.randrange(0, max(1, len(body) - 4), 4)
        body[at : at + 4] = struct.pack("<i", random.choice((-1, 0, 1, 5, 2**31 - 1, -(2**31))))
    length = int.from_bytes(built.header[80:84], "little")
    return resealed(header, bytes(body[:length]))


def payload(random: Random, subject: bytes) -> bytes:
    """What a publisher may put into a message to make us look twice."""
    choice = random.randrange(8)
    if choice == 0:
        return COOKIE + noise(random, 200)
    if choice == 1:
        return mutated(random, encode_batch(encode([b"v"], subject), ack_inbox=b"_INBOX.fuzz.1"))
    if choice == 2:
        return envelope(random, random.choice((0, 1, 2, 3)), noise(random, 500))
    if choice == 3:
        return envelope(random, 1, random.choice((b"", b"v", noise(random, 100))))
    return envelope(random, 2, batch(random, subject))
