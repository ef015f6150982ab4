"""Keys land where Kafka's clients put them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from jetstream_client.publishing.partitioner import (
    murmur2,
    partition_of,
    pure_murmur2,
    rows_by_partition,
)

KAFKA = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}
"""Known values of Kafka's own tests (UtilsTest.testMurmur2), as signed numbers."""

KEYS = st.binary(max_size=70)
PARTITIONS = st.integers(1, 300)


def java_murmur2(data: bytes) -> int:
    """Kafka's Java, line by line, in its 32-bit arithmetic."""

    def int32(number: int) -> int:
        return (number + (1 << 31)) % (1 << 32) - (1 << 31)

    def shifted(number: int, places: int) -> int:
        return (number % (1 << 32)) >> places

    m, r = 0x5BD1E995, 24
    h = int32(0x9747B28C ^ len(data))
    for i in range(len(data) // 4):
        k = sum(data[4 * i + place] << 8 * place for place in range(4))
        k = int32(k * m)
        k ^= shifted(k, r)
        k = int32(k * m)
        h = int32(h * m)
        h ^= k
    rest = len(data) % 4
    start = len(data) & ~3
    if rest >= 3:
        h ^= data[start + 2] << 16
    if rest >= 2:
        h ^= data[start + 1] << 8
    if rest >= 1:
        h ^= data[start]
        h = int32(h * m)
    h ^= shifted(h, 13)
    h = int32(h * m)
    return int32(h ^ shifted(h, 15))


def test_known_values_of_kafka() -> None:
    assert {key: java_murmur2(key) for key in KAFKA} == KAFKA
    for each in (murmur2, pure_murmur2):
        assert {key: each(key) for key in KAFKA} == {
            key: value % (1 << 32) for key, value in KAFKA.items()
        }


@given(KEYS)
def test_any_key_has_the_hash_that_kafka_gives_it(key: bytes) -> None:
    assert murmur2(key) == pure_murmur2(key) == java_murmur2(key) % (1 << 32)


@given(KEYS, PARTITIONS)
def test_any_key_has_the_partition_that_kafka_gives_it(key: bytes, partitions: int) -> None:
    positive = java_murmur2(key) & 0x7FFFFFFF  # Utils.toPositive
    assert partition_of(key, partitions) == positive % partitions


@given(st.lists(st.none() | st.binary(max_size=4), max_size=60), PARTITIONS)
def test_rows_are_shared_out_as_each_key_alone(keys: list[bytes | None], partitions: int) -> None:
    rows = rows_by_partition(keys, partitions)
    assert sorted(row for found in rows.values() for row in found) == list(range(len(keys)))
    for number, found in rows.items():
        assert found == sorted(found)
        assert {-1 if keys[row] is None else partition_of(keys[row] or b"", partitions)
                for row in found} == {number}  # fmt: skip
