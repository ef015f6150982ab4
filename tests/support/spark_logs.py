"""What the Spark connector logs in a test."""

from __future__ import annotations

import pytest


def connector_messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The connector's messages, without those of clients that other tests have left open."""
    return [
        record.getMessage()
        for record in caplog.records
        if record.name.startswith("pyspark_jetstream")
    ]
