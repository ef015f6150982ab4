"""`jetstream sql` on a terminal."""

from __future__ import annotations

import os
import pty
import sys
from pathlib import Path

import pytest

from jetstream_client import Client
from tests.support.fork_server import fork_server
from tests.support.server import ServerProcess

TYPED = "selec 1;\nselect count(*) * 21 as answer\nfrom {};\nexit\n"


def test_a_prompt_goes_on_after_an_error_and_keeps_a_history(
    server: ServerProcess, client: Client, name: str, tmp_path: Path
) -> None:
    pytest.importorskip("duckdb")
    client.create_stream(name, name)
    for value in (b"1", b"2"):
        client.publish(name, value)
    controller, terminal = pty.openpty()
    process = fork_server.start(
        [sys.executable, "-m", "jetstream_client", "--server", server.grpc, "sql"],
        stdin=terminal, stdout=terminal, stderr=terminal, new_session=True,
        environment={**os.environ, "XDG_STATE_HOME": str(tmp_path), "TERM": "dumb"},
    )  # fmt: skip
    os.close(terminal)
    os.write(controller, TYPED.format(name).encode())
    said = b""
    while True:
        try:
            part = os.read(controller, 4096)
        except OSError:  # Its other end is closed.
            break
        if not part:
            break
        said += part
    os.close(controller)
    assert process.wait(timeout=60) == 0
    text = said.decode()
    assert "the query fails" in text
    assert "42" in text.partition("answer")[2]
    history = tmp_path / "jetstream" / "sql_history"
    assert f"from {name};" in history.read_text()
    assert history.stat().st_mode & 0o077 == 0
