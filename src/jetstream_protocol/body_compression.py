"""Compression of batch bodies. Decompression does not trust the size that a body claims."""

from __future__ import annotations

import sys

import lz4.frame

from jetstream_protocol.errors import CorruptBatchError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

ZSTD = 1
LZ4 = 2


def compress(data: bytes, compression: int) -> bytes:
    if compression == ZSTD:
        return zstd.compress(data, level=1)
    if compression == LZ4:
        return bytes(lz4.frame.compress(data))
    raise ValueError(f"unknown compression {compression}")


def decompress(data: bytes | memoryview, compression: int, length: int) -> bytes:
    """Decompress to exactly `length` bytes. Stops there, so that a longer body needs no more
    memory.

    Raises CorruptBatchError for a body of another length, or one that cannot be decompressed.
    """
    try:
        if compression == ZSTD:
            # zstd.decompress() would trust the size that the frame claims; this stops at a limit.
            plain = zstd.ZstdDecompressor().decompress(data, max_length=length + 1)
        else:
            plain = lz4.frame.LZ4FrameDecompressor().decompress(data, max_length=length + 1)
    except (zstd.ZstdError, RuntimeError, EOFError) as error:
        raise CorruptBatchError(f"batch body does not decompress: {error}") from error
    if len(plain) != length:
        raise CorruptBatchError("batch body decompresses to another length than its header says")
    return bytes(plain)
