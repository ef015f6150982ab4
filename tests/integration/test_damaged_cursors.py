"""A damaged record of `__cursors` on its only replica: cursors and groups go on."""

from __future__ import annotations

import time
from pathlib import Path

from jetstream_client import Client, JetstreamError
from tests.support.server import ServerProcess


def test_cursors_after_a_damaged_record_are_known(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "data")
    server.start()
    try:
        with Client(server.grpc, timeout=60) as client:
            client.create_stream("s", "s")
            for _ in range(10):
                client.publish("s", b"x")
            for number in range(20):
                client.seek_cursor(f"c{number}", "s", 5)
        assert server.stop() == 0
        [folder] = [
            each
            for each in (tmp_path / "data").rglob("*.log")
            if b"cursor/c3/" in each.read_bytes()
        ][:1]
        data = bytearray(folder.read_bytes())
        at = data.index(b"cursor/c3/")
        data[at] ^= 1
        folder.write_bytes(data)
        server.start()
        with Client(server.grpc, timeout=20.0) as client:
            end, failure, known = time.monotonic() + 120, None, []
            while time.monotonic() < end and not known:
                try:
                    known = [each.name for each in client.list_cursors()]
                except JetstreamError as error:
                    failure = error
                    time.sleep(1.0)
            try:
                client.fetch("s")
                client.seek_cursor("new", "s", 1)
            except JetstreamError as error:
                failure = error
        assert known, f"after two minutes no cursor can be read nor committed: {failure!r}"
    finally:
        server.kill()
