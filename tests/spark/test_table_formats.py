"""Streams into Delta and Iceberg tables, by the programs of the cookbook: each record once."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.spark.support import Log, forget_commits, needs_jars

PAGE = Path(__file__).parents[2] / "docs" / "cookbook.md"


@needs_jars
@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_each_record_is_in_the_table_once_although_a_batch_is_repeated(
    spark: SparkSession, log: Log, tmp_path: Path, table_format: str
) -> None:
    (block,) = re.findall(rf"```python {table_format}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    program = block.replace("localhost:9292", log.grpc).replace('"orders")', f'"{log.name}")')
    program = program.replace("/data", str(tmp_path)).replace("lake.shop", f"lake.{log.name}")

    def offsets() -> list[int]:
        names: dict[str, Any] = {}
        exec(compile(program, "cookbook.md", "exec"), names)
        return sorted(row.offset for row in names["orders"].select("offset").collect())

    log.publish(range(100))
    assert offsets() == list(range(100))
    (checkpoint,) = tmp_path.glob("*.checkpoint")
    forget_commits(checkpoint)  # The driver died before it could say that the batch was done.
    assert offsets() == list(range(100))
    log.publish(range(10))
    assert offsets() == list(range(110))
