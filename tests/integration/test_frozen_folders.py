"""The data folder of every release opens, and everything is in it."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from jetstream_client import Client
from tests.support.command import jetstream
from tests.support.server import ServerProcess
from tests.vectors.folders import FOLDERS, contents

ARCHIVES = sorted(FOLDERS.glob("*.tar.gz"))


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name.removesuffix(".tar.gz"))
def test_the_folder_of_a_release_opens_and_goes_on(archive: Path, tmp_path: Path) -> None:
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path, filter="data")
    data = tmp_path / "data"
    logs = [str(path) for path in (data / "streams").iterdir() if path.is_dir()]
    assert logs
    for log in logs:
        assert jetstream("log", "verify", log).returncode == 0, log
    wanted = json.loads(archive.with_name(archive.name.replace(".tar.gz", ".json")).read_text())
    server = ServerProcess(data)
    try:
        server.start()
        with Client(server.grpc, timeout=60) as client:
            found = contents(client)
            for name, stream in wanted["streams"].items():
                _compare(found["streams"][name], stream)
            assert found["streams"].keys() == wanted["streams"].keys()
            assert found["cursors"] == wanted["cursors"]
            assert client.describe_cursor("billing", "orders").metadata == "kept"
            _goes_on(client, len(wanted["streams"]["orders"]["records"]))
        assert server.stop() == 0
    finally:
        server.kill()


def _compare(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Compaction may have removed what a later record of the key replaces."""
    if wanted["compact"]:
        last = {record[3]: record for record in wanted["records"]}
        assert {record[3]: record for record in found["records"]} == last
        assert all(record in wanted["records"] for record in found["records"])
        found, wanted = {**found, "records": []}, {**wanted, "records": []}
    assert found == wanted


def _goes_on(client: Client, end_offset: int) -> None:
    result = client.publish("orders.9", b"of today")
    assert (result.stream, result.offset) == ("orders", end_offset)
    with client.consume("orders", cursor="billing") as consumer:
        assert next(consumer).offset == 7
    assert client.fetch("orders", end_offset)[0].value == b"of today"
