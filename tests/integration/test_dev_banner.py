"""`jetstream-server --dev` for people: where it is and what to try, instead of log lines."""

from __future__ import annotations

import os
import pty
import signal
import sys
import time
from pathlib import Path

from tests.support.fork_server import fork_server
from tests.support.server import ServerProcess, free_port_base

PATIENCE_SECONDS = 60.0


def shown_until_ready(*arguments: str, stop: int = signal.SIGTERM) -> str:
    """What a terminal shows of the server until it is ready, and then until it has stopped."""
    primary, secondary = pty.openpty()
    command = [sys.executable, "-m", "jetstream_server", *arguments]
    with fork_server.start(command, stdout=secondary, stderr=secondary) as process:
        os.close(secondary)
        shown = b""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            assert time.monotonic() < deadline, shown
            try:
                shown += os.read(primary, 4096)
            except OSError:  # Linux says EIO when the last process has closed the terminal.
                break
            if b"ready" in shown and process.poll() is None:
                process.send_signal(stop)
        assert process.wait() == 0, shown
    os.close(primary)
    return shown.decode().replace("\r\n", "\n")


def test_on_a_terminal_a_banner_says_where_it_is_and_what_to_try(tmp_path: Path) -> None:
    base = free_port_base()
    given = ("--dev", "--data", str(tmp_path / "data"), "--port-base", str(base))
    shown = shown_until_ready(*given)
    assert shown.lstrip("\n").startswith("Jetstream is ready.\n")
    assert "stopping" not in shown
    for expected in (
        f"clients  127.0.0.1:{base}\n",
        f"NATS     nats://127.0.0.1:{base + 4}\n",
        f"data     {tmp_path / 'data'}\n",
        f"  export JETSTREAM_SERVERS=127.0.0.1:{base}\n",
        "  jetstream stream create orders --subject 'orders.>'\n",
    ):
        assert expected in shown
    assert "stopping" in shown_until_ready(*given, "--log-level", "info")


def test_without_a_terminal_it_is_one_line_for_scripts(server: ServerProcess) -> None:
    assert server.ready_line.startswith(f"jetstream-server ready: node=0 grpc={server.grpc}")


def test_the_end_of_its_terminal_ends_it(tmp_path: Path) -> None:
    base = free_port_base()
    given = ("--dev", "--data", str(tmp_path / "data"), "--port-base", str(base))
    assert "Jetstream is ready" in shown_until_ready(*given, stop=signal.SIGHUP)
