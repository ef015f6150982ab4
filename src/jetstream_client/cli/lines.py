"""Standard input as lines, each a record: what was piped into `jetstream publish`."""

from __future__ import annotations

import asyncio
import codecs
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


def are_json_lines(data: bytes) -> bool:
    """Whether it looks like a list of JSON objects, one on each line."""
    first, _, rest = data.partition(b"\n")
    return first.startswith(b"{") and rest.startswith(b"{")


async def lines_of(source: BinaryIO, *, text_only: bool = False) -> AsyncIterator[list[bytes]]:
    """Lines without their line ends, as they come; the last one need not have one. text_only: raise
    InvalidRequestError for what is no list of lines: a NUL, or other than UTF-8 in what comes
    first."""
    rest, is_first = b"", True
    async for chunk in _chunks_of(source):
        if text_only:
            _check_text(chunk, is_first=is_first)
        is_first = False
        *lines, rest = (rest + chunk).split(b"\n")
        if lines:
            yield lines
    if rest:
        yield [rest]


def _check_text(chunk: bytes, *, is_first: bool) -> None:
    """Only of the first chunk everything: in lines that have come for hours, an odd one is one."""
    try:
        if is_first:
            codecs.getincrementaldecoder("utf-8")().decode(chunk)
    except UnicodeDecodeError:
        pass
    else:
        if b"\0" not in chunk:
            return
    raise InvalidRequestError(
        "standard input does not look like lines of text: say --whole if all of it is one record, "
        "or --lines to cut it at line ends all the same"
    )


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
