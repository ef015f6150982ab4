"""What a write says at its end."""

from __future__ import annotations

import pytest
from pyspark.sql.types import StringType, StructType

from pyspark_jetstream.options import write_options
from pyspark_jetstream.writer import Published, batch_writer
from tests.support.spark_logs import connector_messages

SCHEMA = StructType().add("value", StringType()).add("subject", StringType())


@pytest.mark.parametrize("duplicates", [0, 3])
def test_a_batch_write_logs_how_many_of_its_rows_were_stored_before(
    duplicates: int, caplog: pytest.LogCaptureFixture
) -> None:
    writer = batch_writer(write_options({"servers": "x:1"}), SCHEMA, overwrite=False)
    writer.commit([Published(10, duplicates), None, Published(5, 0)])
    said = connector_messages(caplog)
    assert ["3 of its 15 rows" in each and "txnAppId" in each for each in said] == (
        [True] if duplicates else []
    )
