"""What a stream with `on_mismatch: refuse` stores has no `_error`, by whatever way it comes, and
nothing else is refused."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jetstream_protocol import typed_json
from jetstream_protocol.batch import encode
from jetstream_protocol.columns import Flags
from jetstream_protocol.envelope import encode_batch
from jetstream_protocol.schema import Schema
from jetstream_protocol.typed_json import decoded
from tests.property.typed_records import documents, schemas
from tests.unit.ingest.arriving import SUBJECT, deliver
from tests.unit.ingest.streams import Stream, stream_on
from tests.unit.ingest.test_on_mismatch import HEADERS, refuse


@pytest.mark.parametrize("form", ["compiled", "plain"] if typed_json.compiled else ["plain"])
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(schema=schemas, given_values=st.lists(documents(), min_size=1, max_size=12))
def test_what_is_stored_fits(
    tmp_path_factory: pytest.TempPathFactory,
    form: str,
    schema: Schema,
    given_values: list[bytes | None],
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        if form == "plain":
            patched.setattr(typed_json, "compiled", None)
        asyncio.run(_stored_fits(tmp_path_factory.mktemp("log"), schema, given_values))


async def _stored_fits(folder: Path, schema: Schema, given_values: list[bytes | None]) -> None:
    stream = stream_on(folder)
    refuse(stream, str(schema))
    fits = [decoded(value, schema.fields)[1] is None for value in given_values]
    stored = [value for value, fit in zip(given_values, fits, strict=True) if fit]
    plain = [value or b"" for value in given_values]
    plain_stored = [value for value in plain if decoded(value, schema.fields)[1] is None]

    stream.deliver(*[(value, b"") for value in plain])
    assert _new(stream, 0) == plain_stored
    stream.deliver(*[(value, b"") for value in plain], headers=[HEADERS] * len(plain))
    assert _new(stream, len(plain_stored)) == plain_stored

    before = len(stream.values())
    packed = encode(given_values, SUBJECT, compression=Flags.ZSTD)
    deliver(stream, encode_batch(packed))
    if stored:
        deliver(stream, encode_batch(encode(stored, SUBJECT)))
    assert _new(stream, before) == [*(given_values if all(fits) else []), *stored]


def _new(stream: Stream, before: int) -> list[bytes | None]:
    return stream.values()[before:]
