"""Chooses the stream of a keyed group for a record, as Kafka's default partitioner does.

    partition = (murmur2(key) & 0x7fffffff) % partitions

So a key is in the partition where Kafka's own clients put it, and a topic that moves here keeps its
partitions. _murmur2.pyx does it in C if the extension was built.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF
_REMEMBERED = 1 << 16
"""Keys repeat, and a look-up costs a tenth of a hash of 16 bytes in Python."""


def pure_murmur2(key: bytes) -> int:
    """MurmurHash2 of 32 bits, with Kafka's seed; not negative."""
    length = len(key)
    state = _SEED ^ length
    whole = length // 4
    for word in struct.unpack_from(f"<{whole}I", key):
        mixed = word * _M & _MASK
        state = state * _M & _MASK ^ (mixed ^ mixed >> 24) * _M & _MASK
    if length % 4:
        state = (state ^ int.from_bytes(key[4 * whole :], "little")) * _M & _MASK
    state = (state ^ state >> 13) * _M & _MASK
    return state ^ state >> 15


murmur2: Callable[[bytes], int] = lru_cache(_REMEMBERED)(pure_murmur2)
"""The same, as fast as it can be had here."""
try:
    from jetstream_protocol import _murmur2
except ImportError:
    pass  # There was no compiler, or JETSTREAM_PURE is set.
else:
    murmur2 = _murmur2.murmur2


def partition_of(key: bytes, partitions: int) -> int:
    """The number, from 0, of the partition that the key belongs to."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def rows_by_partition(keys: Sequence[bytes | None], partitions: int) -> dict[int, list[int]]:
    """The positions of the keys that belong to each partition, in order. Positions of keys that are
    None are under -1: they belong to no partition."""
    rows: dict[int, list[int]] = {}
    for row, key in enumerate(keys):
        number = -1 if key is None else (murmur2(key) & 0x7FFFFFFF) % partitions
        found = rows.get(number)
        if found is None:
            rows[number] = [row]
        else:
            found.append(row)
    return rows
