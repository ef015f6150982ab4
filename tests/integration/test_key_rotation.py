"""A running node takes up new keys of encryption at rest, and keeps the old ones where the new ones
cannot be used."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from shlex import quote
from threading import Event, Thread

import pytest

from jetstream_client import Client
from jetstream_protocol.batch import HEADER_BYTES, decode_header
from jetstream_protocol.encrypted_body import read_prefix
from tests.integration.test_encryption import KEY, KEY_ID, NEW, NEW_ID, write_keys
from tests.support.server import ServerProcess, free_port_base, running_server

PATIENCE_SECONDS = 60.0


def wait_for(what: str, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def replace_keys(path: Path, *keys: str) -> None:
    """At once, as a careful operator does."""
    new = path.with_suffix(".new")
    write_keys(new, *keys)
    new.replace(path)


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    write_keys(tmp_path / "keys", KEY)
    return tmp_path / "keys"


@pytest.fixture
def server(key_file: Path) -> Iterator[ServerProcess]:
    environment = {"JETSTREAM_ENCRYPTION__KEY_FILE": str(key_file)}
    with running_server(key_file.parent / "data", environment=environment) as server:
        yield server


def hang_up(server: ServerProcess) -> None:
    assert server.process is not None
    os.kill(server.process.pid, signal.SIGHUP)


def count(server: ServerProcess, event: str) -> int:
    return server.log_text.count(f'"event": "{event}"')


def key_ids(client: Client, name: str) -> list[str]:
    """The key of each batch on disk, each key once, in the order of the log."""
    found: dict[str, None] = {}
    offset, end = 0, client.offset_at(name, "latest")
    while offset < end:
        fetched = client.fetch_batches(name, offset, encrypted=True)
        position = 0
        while position < len(fetched.data):
            found[read_prefix(fetched.data, position + HEADER_BYTES).key_id] = None
            position += decode_header(fetched.data, position).length
        offset = fetched.next_offset
    return list(found)


def keys_in_metrics(server: ServerProcess) -> dict[str, str]:
    with urllib.request.urlopen(f"{server.http}/metrics") as answer:
        page = answer.read().decode()
    series = r'jetstream_encryption_key_info\{key_id="(\w+)",use="(\w+)"\} 1'
    return dict(re.findall(series, page))


class Load:
    """Publishes until it is told to stop."""

    def __init__(self, address: str) -> None:
        self.published = 0
        self._address = address
        self._ended = Event()
        self._failures: list[Exception] = []
        self._thread = Thread(target=self._publish)

    def __enter__(self) -> Load:
        self._thread.start()
        self.more()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        assert self._failures == []

    def more(self) -> None:
        """Wait for a few more acknowledgements."""
        wanted = self.published + 20
        wait_for("more records", lambda: self.published >= wanted or bool(self._failures))

    def _publish(self) -> None:
        try:
            with Client(self._address, timeout=PATIENCE_SECONDS) as client:
                while not self._ended.is_set():
                    client.publish("load.x", b"%d" % self.published)
                    self.published += 1
        except Exception as error:  # noqa: BLE001  the main thread looks
            self._failures.append(error)


def test_keys_are_rotated_under_load_by_watching_and_by_sighup(
    server: ServerProcess, key_file: Path
) -> None:
    with Client(server.grpc, timeout=PATIENCE_SECONDS) as client:
        client.create_stream("load", "load.>")
        assert client.describe_stream("load").key_id == KEY_ID
        with Load(server.grpc) as load:
            replace_keys(key_file, KEY, NEW)
            wait_for("the second key is known", lambda: count(server, "keys_reloaded") == 1)
            assert keys_in_metrics(server) == {KEY_ID: "encrypt", NEW_ID: "decrypt"}
            load.more()
            assert key_ids(client, "load") == [KEY_ID]
            replace_keys(key_file, NEW, KEY)
            hang_up(server)
            wait_for("the new key is in use", lambda: count(server, "keys_reloaded") == 2)
            assert client.describe_stream("load").key_id == NEW_ID
            assert keys_in_metrics(server) == {NEW_ID: "encrypt", KEY_ID: "decrypt"}
            load.more()
        assert key_ids(client, "load") == [KEY_ID, NEW_ID]
        values = [each.value for each in client.consume("load", stop="latest", patience=60)]
        assert values == [b"%d" % number for number in range(load.published)]

        # Batches with the old key are left: it may not go.
        replace_keys(key_file, NEW)
        hang_up(server)
        wait_for("the refusal", lambda: count(server, "keys_not_reloaded") >= 1)
        assert f"was used with key {KEY_ID}, which is not among the keys" in server.log_text
        assert len(list(client.consume("load", stop="latest", patience=60))) == load.published

    # The next start has all of it, and the note about the keys is durable.
    replace_keys(key_file, NEW, KEY)
    server.kill()
    server.start()
    with Client(server.grpc, timeout=PATIENCE_SECONDS) as client:
        assert len(list(client.consume("load", stop="latest", patience=60))) == load.published
    for key in (KEY, NEW):
        assert key not in server.log_text


@pytest.mark.parametrize("broken", ["", "no key at all\n", None])
def test_keys_that_cannot_be_used_leave_the_old_ones_in_use(
    server: ServerProcess, key_file: Path, broken: str | None
) -> None:
    with Client(server.grpc, timeout=PATIENCE_SECONDS) as client:
        client.create_stream("kept", "kept.>")
        client.publish("kept.x", "before")
        if broken is None:
            key_file.unlink()
        else:
            key_file.write_text(broken)
        hang_up(server)  # Otherwise it waits until the file stays the same.
        wait_for("the refusal", lambda: count(server, "keys_not_reloaded") >= 1)
        assert str(key_file) in server.log_text
        client.publish("kept.x", "after")
        found = [each.value for each in client.consume("kept", stop="latest", patience=60)]
        assert found == [b"before", b"after"]
        assert key_ids(client, "kept") == [KEY_ID]
        replace_keys(key_file, NEW, KEY)
        hang_up(server)
        wait_for("the new key is in use", lambda: count(server, "keys_reloaded") == 1)
        client.publish("kept.x", "later")
        assert key_ids(client, "kept") == [KEY_ID, NEW_ID]


def test_a_key_command_is_run_again_on_sighup(tmp_path: Path) -> None:
    write_keys(tmp_path / "keys", KEY)
    server = ServerProcess(
        tmp_path / "data",
        environment={"JETSTREAM_ENCRYPTION__KEY_COMMAND": f'["cat", "{tmp_path / "keys"}"]'},
    )
    server.start()
    try:
        with Client(server.grpc, timeout=PATIENCE_SECONDS) as client:
            client.create_stream("asked", "asked.>")
            client.publish("asked.x", "before")
            replace_keys(tmp_path / "keys", NEW, KEY)
            hang_up(server)
            wait_for("the new key is in use", lambda: count(server, "keys_reloaded") == 1)
            client.publish("asked.x", "after")
            assert key_ids(client, "asked") == [KEY_ID, NEW_ID]
    finally:
        server.kill()


PATIENT_SERVER = """
from jetstream_server.node import encryption_options
from jetstream_server.node.cli import main
encryption_options.COMMAND_SECONDS = 3600
main()
"""


@pytest.mark.parametrize("hangs", ["at the start", "later"])
def test_a_key_command_that_hangs_does_not_delay_a_stop(tmp_path: Path, hangs: str) -> None:
    """The command prints the key at its first runs, if it may, and its process id later on."""
    may_print, process_id = tmp_path / "may print", tmp_path / "pid"
    script = tmp_path / "command"
    script.write_text(
        f"[ -e {quote(str(may_print))} ] && exec echo {KEY}\n"
        f"echo $$ > {quote(str(process_id))}\n"
        "exec sleep 3600\n"
    )
    if hangs == "later":
        may_print.touch()
    environment = {k: v for k, v in os.environ.items() if not k.startswith("JETSTREAM_")}

    def pid() -> str:
        return process_id.read_text().strip()

    server = subprocess.Popen(
        [
            *(sys.executable, "-c", PATIENT_SERVER, "--dev", "--data", str(tmp_path / "data")),
            *("--port-base", str(free_port_base())),
        ],
        env={**environment, "JETSTREAM_ENCRYPTION__KEY_COMMAND": json.dumps(["sh", str(script)])},
        stdout=subprocess.PIPE,
        text=True,
    )
    with server:
        try:
            if hangs == "later":
                assert server.stdout is not None
                assert " ready: " in server.stdout.readline()
                may_print.unlink()
                server.send_signal(signal.SIGHUP)
            wait_for("the command hangs", lambda: process_id.exists() and bool(pid()))
            server.terminate()
            assert server.wait(PATIENCE_SECONDS) == 0
            wait_for("its end", lambda: not Path("/proc", pid()).exists())
        finally:
            server.kill()
