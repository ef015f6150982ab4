"""Keeps freed memory for the next large buffer, instead of asking the kernel for it each time."""

from __future__ import annotations

from functools import cache
from typing import Final

BLOCK_BYTES: Final = 16 * 1024 * 1024


@cache
def keep_freed_memory() -> None:
    """Let the allocator keep what large buffers leave behind, up to twice BLOCK_BYTES.

    Batches and fetched records are buffers of a few hundred kilobytes and more. By default glibc
    gives each back to the kernel, and every page of the next one is then a page fault, which takes
    several times as long as to copy the page. glibc goes by the largest block that was freed, so it
    is enough to free one once. It is never written to, so it takes no memory; a second one
    would be, so later calls do nothing. Other allocators have rules of their own.
    """
    bytes(BLOCK_BYTES)
