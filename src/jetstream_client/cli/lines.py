"""Standard input as lines, each a record: what was piped into `jetstream publish`."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from collections.abc import AsyncIterator
from typing import BinaryIO

from jetstream_protocol.errors import InvalidRequestError

CHUNK_BYTES = 1 << 16


def standard_input() -> BinaryIO:
    if sys.stdin is None:
        raise InvalidRequestError("there is no standard input to read")
    return sys.stdin.buffer


def is_given() -> bool:
    """Whether standard input is a pipe or a file, that is, whether it was redirected on purpose."""
    if sys.stdin is None:
        return False
    source = sys.stdin.buffer
    return is_piped(source) or stat.S_ISREG(os.fstat(source.fileno()).st_mode)


def is_piped(source: BinaryIO) -> bool:
    """Whether another program writes it: a pipe is a list of lines, a file is one record."""
    mode = os.fstat(source.fileno()).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


async def lines_of(source: BinaryIO) -> AsyncIterator[list[bytes]]:
    """Lines without their line ends, as they come; the last one need not have one."""
    rest = b""
    async for chunk in _chunks_of(source):
        *lines, rest = (rest + chunk).split(b"\n")
        if lines:
            yield lines
    if rest:
        yield [rest]


async def _chunks_of(source: BinaryIO) -> AsyncIterator[bytes]:
    if stat.S_ISREG(os.fstat(source.fileno()).st_mode):
        while chunk := source.read(CHUNK_BYTES):
            yield chunk
        return
    # No thread waits for input, because Ctrl-C could not end it.
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), source
    )
    try:
        while chunk := await reader.read(CHUNK_BYTES):
            yield chunk
    finally:
        transport.close()
