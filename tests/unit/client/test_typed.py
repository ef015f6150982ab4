"""Tables with the fields of a schema: how many records are decoded at a time."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyarrow import compute as pc

from jetstream_client.reading.typed import ConditionalDecoder, Decoder
from jetstream_protocol.schema import parse
from tests.unit.client.batches import batch_bytes, messages_of

WIDE = ", ".join(f"f{number} int" for number in range(490))


@pytest.mark.parametrize(
    ("schema", "value", "lengths"),
    [
        (f"a list<struct<{WIDE}>>", b'{"a":[%s]}' % b",".join([b"{}"] * 20), [800, 800, 400]),
        ("a list<struct<b int, c string>>", b'{"a":[{},{}]}', [2_000]),
    ],
)
def test_few_bytes_that_make_many_values_are_decoded_some_at_a_time(
    schema: str, value: bytes, lengths: list[int]
) -> None:
    """All that is fetched at once could be gigabytes."""
    messages = messages_of(batch_bytes([value] * 1_500) + batch_bytes([value] * 500, 1_500))
    decoder = Decoder(parse(schema), ["offset", "a"])
    found = list(decoder.batches(messages, 10_000))
    assert [len(each) for each in found] == lengths
    assert pa.Table.from_batches(found)["offset"].to_pylist() == list(range(2_000))
    late = ConditionalDecoder(parse(schema), ["offset"], pc.field("a").is_valid())
    assert sum(len(each) for each in late.batches(messages, 10_000)) == 2_000


def test_many_fields_of_short_records_are_decoded_some_at_a_time() -> None:
    messages = messages_of(batch_bytes([b"{}"] * 20_000))
    found = list(Decoder(parse(WIDE), None).batches(messages, 20_000))
    assert [len(each) for each in found] == [16_326, 3_674]
