"""Whatever a schema and the records are: SQL, a scan, fetched messages and rows have the same."""

from __future__ import annotations

from itertools import count

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jetstream_client import Client
from jetstream_protocol.schema import Schema
from tests.property.typed_records import documents, schemas

NUMBERS = count()


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(schemas, st.lists(documents(), min_size=1, max_size=20))
def test_all_readers_have_the_same(
    client: Client, schema: Schema, values: list[bytes | None]
) -> None:
    name = f"any-{next(NUMBERS)}"
    client.create_stream(name, name, replicas=1)
    client.set_schema(name, str(schema))
    with client.publisher(name) as publisher:
        publisher.publish_many(values, keys=[b"key"] * len(values)).result(60)
    columns = [*schema.names, "_error"]
    found = client.scan(name, columns=columns, typed=True).to_table().to_pylist()
    assert len(found) == len(values)

    quoted = ", ".join(f'"{each}"' for each in columns)
    assert client.sql(f'select {quoted} from "{name}" order by "offset"').to_pylist() == found
    for column in columns:
        some = client.sql(f'select "offset" from "{name}" where "{column}" is not null order by 1')
        there = [at for at, row in enumerate(found) if row[column] is not None]
        assert some["offset"].to_pylist() == there

    known, messages = client.describe_schema(name), client.fetch(name, max_messages=len(values))
    assert messages.to_arrow(columns, typed=known).to_pylist() == found
    assert [message.row(known) for message in messages] == found
    client.delete_stream(name)
