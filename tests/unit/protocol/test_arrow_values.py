"""Arrow values are those that pyarrow makes, and making them loads no pandas."""

from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
import pytest

from jetstream_protocol.arrow_values import integer, integers, null_if_empty, same_text, strings

MOMENT = pa.timestamp("us", "UTC")
WITHOUT_PANDAS = """
import sys
from types import SimpleNamespace
from jetstream_client.reading.arrow import to_table
from jetstream_protocol.schema import parse
from jetstream_protocol.typed_rows import row_of
from jetstream_server.serving.http import arrow_records
from jetstream_server.serving.http.record_formats import Columns
from tests.support.lake_objects import decode, encode
from tests.support.log_batches import stamped
from tests.unit.client.batches import messages_of, numbered

data = stamped(5, b"a", b"bc") + stamped(7, records=3)
assert decode(encode(data).data) == data
messages = messages_of(numbered(3))
assert len(to_table(messages)) == 3
(chunk,) = messages.chunks
assert arrow_records.encode(Columns(chunk.batch), range(3))
assert row_of(b'{"id": 1}', parse("id bigint"))["id"] == 1
sys.exit("pandas" in sys.modules)
"""


@pytest.mark.parametrize("kind", [pa.int32(), pa.int64(), MOMENT])
def test_integers_are_those_of_pyarrow(kind: pa.DataType) -> None:
    values = [-(2**31), -1, 0, 2**31 - 1]
    assert integers(values, kind).equals(pa.array(values, kind))
    assert integer(7, kind).equals(pa.scalar(7, kind))
    with pytest.raises(OverflowError):
        integers([2**63], kind)


@pytest.mark.parametrize(
    "values",
    [[], [b""], [None], [None] * 9, [b"a", None, b"", b"\xc3\xa9"] * 5, [b"x"] * 17],
)
def test_strings_are_those_of_pyarrow(values: list[bytes | None]) -> None:
    for kind in (pa.binary(), pa.string()):
        made = strings(values, kind)
        made.validate(full=True)
        texts = values if kind == pa.binary() else [v if v is None else v.decode() for v in values]
        assert made.equals(pa.array(texts, kind))
    wanted = pa.array([value or None for value in values], pa.binary())
    assert null_if_empty(strings(values, pa.binary())).equals(wanted)


def test_a_text_is_repeated() -> None:
    assert same_text("é", 3).to_pylist() == ["é"] * 3


def test_readers_load_no_pandas() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT_PANDAS], check=True, timeout=60)
