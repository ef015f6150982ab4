"""The layout of an encrypted batch's body. docs/file_formats.md, "Encrypted batches", is the
normative text. The server encrypts and decrypts (log/encryption.py).

    0   u16      version (1)               16  i64      stream id
    2   u16      cipher (1: AES-256-GCM)   24  16 bytes salt
    4   u32      reserved (0)              40  u64      sequence
    8   8 bytes  key id                    48  ciphertext, tag of 16 bytes

**safety** Beside the body, the tag covers what `authenticated` returns: the whole header, except
fields computed from the ciphertext and AFTER_GAP, which compaction sets without touching the body.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from jetstream_protocol.batch import ENCRYPTION_BYTES, HEADER_BYTES, EncodedBatch, crc32c
from jetstream_protocol.columns import Flags, padded
from jetstream_protocol.errors import CorruptBatchError

VERSION: Final = 1
AES_256_GCM: Final = 1
TAG_BYTES: Final = 16
KEY_ID_BYTES: Final = 8
SALT_BYTES: Final = 16

_PREFIX: Final = struct.Struct("<HHI8sq16sQ")
PREFIX_BYTES: Final = _PREFIX.size
assert PREFIX_BYTES + TAG_BYTES == ENCRYPTION_BYTES

_FLAGS: Final = struct.Struct("<H")
_LENGTH_AND_CRC: Final = struct.Struct("<II")
_U32: Final = struct.Struct("<I")
_FLAGS_AT, _LENGTH_AT, _BODY_CRC_AT, _BODY_LENGTH_AT, _CRC_AT = 6, 8, 12, 80, 84


class Prefix(NamedTuple):
    """The bytes before the ciphertext. key_id: as 16 hexadecimal digits."""

    key_id: str
    stream_id: int
    salt: bytes
    sequence: int

    def to_bytes(self) -> bytes:
        key_id = bytes.fromhex(self.key_id)
        return _PREFIX.pack(
            VERSION, AES_256_GCM, 0, key_id, self.stream_id, self.salt, self.sequence
        )

    @property
    def nonce(self) -> bytes:
        """The nonce for AES-GCM, 12 bytes."""
        return self.sequence.to_bytes(12, "little")


def read_prefix(body: bytes | memoryview, position: int = 0) -> Prefix:
    """Read a prefix. Raises CorruptBatchError for an unknown version or cipher."""
    if len(body) - position < PREFIX_BYTES:
        raise CorruptBatchError("an encrypted batch body cut short")
    version, cipher, _, key_id, stream_id, salt, sequence = _PREFIX.unpack_from(body, position)
    if (version, cipher) != (VERSION, AES_256_GCM):
        raise CorruptBatchError(
            f"encryption of version {version} with cipher {cipher}: written by newer software?"
        )
    return Prefix(key_id.hex(), stream_id, salt, sequence)


def authenticated(header: bytes | bytearray, prefix: bytes) -> bytes:
    """The additional authenticated data of an encrypted batch with this header."""
    (flags,) = _FLAGS.unpack_from(header, _FLAGS_AT)
    return b"".join(
        (
            header[:_FLAGS_AT],
            _FLAGS.pack(flags & ~Flags.AFTER_GAP),
            header[_LENGTH_AT:_BODY_CRC_AT],
            header[_BODY_CRC_AT + 4 : _CRC_AT],
            prefix,
        )
    )


def encrypted_header(plain: bytes | bytearray) -> bytearray:
    """The header of the batch once it is encrypted, without the CRCs: `finish` writes those."""
    header = bytearray(plain)
    (flags,) = _FLAGS.unpack_from(header, _FLAGS_AT)
    (body_length,) = _U32.unpack_from(header, _BODY_LENGTH_AT)
    _set(header, flags | Flags.ENCRYPTED, body_length + ENCRYPTION_BYTES)
    return header


def decrypted_header(encrypted: bytes | bytearray) -> bytearray:
    """The header of the batch before it was encrypted, without the CRCs."""
    header = bytearray(encrypted)
    (flags,) = _FLAGS.unpack_from(header, _FLAGS_AT)
    (body_length,) = _U32.unpack_from(header, _BODY_LENGTH_AT)
    _set(header, flags & ~Flags.ENCRYPTED, body_length - ENCRYPTION_BYTES)
    return header


def _set(header: bytearray, flags: int, body_length: int) -> None:
    _FLAGS.pack_into(header, _FLAGS_AT, flags)
    _LENGTH_AND_CRC.pack_into(header, _LENGTH_AT, padded(HEADER_BYTES + body_length), 0)
    _U32.pack_into(header, _BODY_LENGTH_AT, body_length)


def finish(header: bytearray, body: bytes) -> bytes:
    """Write both CRCs into `header`, and return the body with its padding."""
    _U32.pack_into(header, _BODY_CRC_AT, crc32c(body))
    _U32.pack_into(header, _CRC_AT, crc32c(bytes(header[:_CRC_AT])))
    return body + bytes(padded(HEADER_BYTES + len(body)) - HEADER_BYTES - len(body))


def body_length(header: bytes | bytearray) -> int:
    """Length of the body as stored, without padding, in bytes."""
    return int(_U32.unpack_from(header, _BODY_LENGTH_AT)[0])


def is_encrypted(header: bytes | bytearray) -> bool:
    return bool(_FLAGS.unpack_from(header, _FLAGS_AT)[0] & Flags.ENCRYPTED)


def as_batch(header: bytearray, body: bytes, plain: EncodedBatch) -> EncodedBatch:
    """An encrypted batch that replaces the plain one."""
    return EncodedBatch(header, finish(header, body), plain.record_count, plain.last_offset_delta)
