"""What a server and a backup write is for nobody else on the machine."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from jetstream_client import Client
from jetstream_client.migration.backup import back_up
from tests.support.server import ServerProcess


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    """As shells have it."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def open_to_others(folder: Path) -> list[str]:
    found = [folder, *folder.rglob("*")]
    return [str(path) for path in found if stat.S_IMODE(path.lstat().st_mode) & 0o077]


def test_a_server_s_files_and_a_backup_are_their_owner_s_alone(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "data")
    try:
        server.start()
        with Client(server.grpc, timeout=60) as client:
            client.create_stream("orders", "orders.>", compact=True)
            for number in range(3):
                client.publish("orders.eu", b"%d" % number, key="a")
            client.commit_cursor("billing", "orders", 1)
            back_up(client, "orders", tmp_path / "backup", lambda offsets: None)
    finally:
        server.stop()
    assert len(list((tmp_path / "data").rglob("*"))) > 10
    assert open_to_others(tmp_path / "data") == []
    assert len(list((tmp_path / "backup").iterdir())) >= 2
    assert open_to_others(tmp_path / "backup") == []


@pytest.mark.parametrize(("before", "after"), [(0o755, 0o700), (0o777, 0o700), (0o750, 0o750)])
def test_a_folder_of_before_is_closed_to_all_but_a_chosen_group(
    tmp_path: Path, before: int, after: int
) -> None:
    server = ServerProcess(tmp_path / "data")
    server.data.mkdir()
    server.data.chmod(before)
    try:
        server.start()
    finally:
        server.stop()
    assert stat.S_IMODE(server.data.stat().st_mode) == after
