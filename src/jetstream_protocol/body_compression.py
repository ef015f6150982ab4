"""Compression of batch bodies; decompression does not trust the size that a body claims."""

from __future__ import annotations

import io

import lz4.frame
import zstandard

from jetstream_protocol.errors import CorruptBatchError

ZSTD = 1
LZ4 = 2


def compress(data: bytes, compression: int) -> bytes:
    if compression == ZSTD:
        return zstandard.ZstdCompressor(level=1).compress(data)
    if compression == LZ4:
        return bytes(lz4.frame.compress(data))
    raise ValueError(f"unknown compression {compression}")


def decompress(data: bytes | memoryview, compression: int, length: int) -> bytes:
    """Exactly `length` bytes, never more in memory: decompression stops there, and a longer body is
    refused.

    Raises CorruptBatchError.
    """
    try:
        if compression == ZSTD:
            # decompress() would believe the size the frame claims; a reader stops where told.
            reader = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data))
            plain = reader.read(length + 1)
        else:
            plain = lz4.frame.LZ4FrameDecompressor().decompress(data, max_length=length + 1)
    except (zstandard.ZstdError, RuntimeError, EOFError) as error:
        raise CorruptBatchError(f"batch body does not decompress: {error}") from error
    if len(plain) != length:
        raise CorruptBatchError("batch body decompresses to another length than its header says")
    return bytes(plain)
