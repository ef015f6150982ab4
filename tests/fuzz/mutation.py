"""Bytes that a careless reader trips over: mutations of valid ones, wild protobuf, odd numbers."""

from __future__ import annotations

import struct
from random import Random

ODD_INTEGERS = (
    0, 1, -1, 2, 63, 64, 127, 128, 255, 256, 65_535, 65_536, 2**31 - 1, 2**31, -(2**31),
    2**32 - 1, 2**32, 2**53, 2**62, 2**63 - 1, -(2**63),
)  # fmt: skip
ODD_TEXTS = (
    "", " ", ".", "..", "/", "../../etc/passwd", "*", ">", "a.>", "a..b", "a b", "\x00", "\n",
    "\r\nPUB x 0\r\n", "%s%s%s%n", "{}", "'\"", "é", "\u202e", "\U0001f980", "a@b", "@", "a@",
    "NaN", "null", "$SYS.>", "_INBOX.>", "$JS.API.>", "-", "_", "con", "\x7f", "\ufeff",
)  # fmt: skip


def mutated(random: Random, data: bytes) -> bytes:
    """`data` after one to four random edits."""
    edited = bytearray(data)
    for _ in range(random.randint(1, 4)):
        _edit(random, edited)
    return bytes(edited)


def _edit(random: Random, data: bytearray) -> None:
    at = random.randrange(len(data) + 1)
    kind = random.randrange(7)
    if kind == 0 and at < len(data):
        data[at] ^= 1 << random.randrange(8)
    elif kind == 1 and at < len(data):
        data[at] = random.choice((0, 1, 0x7F, 0x80, 0xFF, 10, 13, 32))
    elif kind == 2:
        data[at:at] = random.randbytes(random.choice((1, 2, 4, 8, 64)))
    elif kind == 3:
        del data[at : at + random.choice((1, 2, 4, 8, 64))]
    elif kind == 4:
        del data[at:]
    elif kind == 5:
        size = random.choice((1, 2, 4, 8))
        data[at : at + size] = (random.choice(ODD_INTEGERS) % 2 ** (8 * size)).to_bytes(
            size, "little"
        )
    else:
        piece = bytes(data[at : at + random.choice((1, 4, 16, 64))])
        data[at:at] = piece * random.choice((1, 2, 16))


def noise(random: Random, bytes_max: int) -> bytes:
    """Random bytes, more often few than many."""
    return random.randbytes(int(bytes_max ** random.random()))


def odd_text(random: Random, length_max: int) -> str:
    """A text that names nothing good."""
    kind = random.randrange(4)
    if kind == 0:
        return random.choice(ODD_TEXTS)
    if kind == 1:
        return random.choice("a.*>@\x00é☃\U0001f980") * int(length_max ** random.random())
    if kind == 2:
        return "".join(chr(random.randrange(1, 0xD800)) for _ in range(random.randrange(40)))
    return random.choice(ODD_TEXTS) + random.choice(ODD_TEXTS)


def varint(value: int) -> bytes:
    encoded = bytearray()
    value %= 2**64
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def wild_message(random: Random, bytes_max: int) -> bytes:
    """Protobuf wire format that means nothing good: any field, any type, any claim."""
    kind = random.randrange(8)
    if kind == 0:  # groups opened and never closed, or closed in a tower
        depth = int(bytes_max ** random.random() / 2)
        return b"\x0b" * depth + (b"\x0c" * depth if random.random() < 0.5 else b"")
    if kind == 1:  # messages within messages
        inner = b""
        while len(inner) < min(bytes_max, 5_000) and random.random() < 0.999:
            inner = b"\x0a" + varint(len(inner)) + inner
        return inner
    if kind == 2:  # one field over and over
        field = wild_field(random, 16)
        return field * int(bytes_max ** random.random() / len(field))
    if kind == 3:  # a length that lies
        claim = random.choice(ODD_INTEGERS)
        return b"\x0a" + varint(claim) + noise(random, min(bytes_max, 1024))
    return b"".join(wild_field(random, bytes_max // 8) for _ in range(random.randrange(1, 8)))


def wild_field(random: Random, bytes_max: int) -> bytes:
    number = random.choice((1, 1, 2, 2, 3, 4, 5, 6, 7, 15, 16, 2047, 2**29 - 1))
    wire_type = random.choice((0, 0, 1, 2, 2, 2, 5, 6, 7))
    tag = varint(number << 3 | wire_type)
    if wire_type == 0:
        return tag + varint(random.choice(ODD_INTEGERS))
    if wire_type == 1:
        return tag + struct.pack("<Q", random.choice(ODD_INTEGERS) % 2**64)
    if wire_type == 5:
        return tag + struct.pack("<I", random.choice(ODD_INTEGERS) % 2**32)
    payload = (
        noise(random, bytes_max) if random.random() < 0.5 else odd_text(random, bytes_max).encode()
    )
    return tag + varint(len(payload)) + payload
