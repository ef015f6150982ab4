"""The task of the cookbook that needs Spark."""

from __future__ import annotations

import re
from pathlib import Path

from pyspark.sql import SparkSession

from jetstream_client import Client
from tests.support.server import ServerProcess

PAGE = Path(__file__).parents[2] / "docs" / "cookbook.md"


def test_the_spark_task_of_the_cookbook_runs(
    spark: SparkSession, server: ServerProcess, client: Client
) -> None:
    client.create_stream("cookbook", subject="orders.>")
    for number in range(100):
        client.publish(f"orders.{('eu', 'us', 'asia')[number % 3]}", b"{}")
    (block,) = re.findall(r"```python spark\n(.*?)```", PAGE.read_text(), re.DOTALL)
    program = block.replace("localhost:9292", server.grpc).replace('"orders")', '"cookbook")')
    exec(compile(program, "cookbook.md", "exec"), {})
    client.delete_stream("cookbook")
