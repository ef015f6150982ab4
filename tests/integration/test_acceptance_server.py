"""The `jetstream-server` process as an operator meets it: start, refusals, ready line, stop."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

import pytest

from jetstream_protocol.errors import CODES, StorageFullError
from tests.support.api import Api, answer_of, raw_nats
from tests.support.fork_server import fork_server
from tests.support.server import ServerProcess, free_port_base

STOP_SECONDS = 60


def started(*arguments: str, environment: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Exit code and standard error of a start that is to fail. Forked."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("JETSTREAM_")}
    command = [sys.executable, "-m", "jetstream_server", *arguments]
    done = fork_server.run(
        command, environment={**clean, **(environment or {})}, timeout=STOP_SECONDS
    )
    assert done.stdout == ""
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("log: {bogus: 1}", "log.bogus: unknown key"),
        ("{", "not YAML"),
    ],
)
def test_a_bad_file_stops_the_start_with_one_line_naming_the_key(
    tmp_path: Path, text: str, key: str
) -> None:
    """Which mistakes there are is tests/unit/node/test_config.py's."""
    file = tmp_path / "cluster.yaml"
    file.write_text(text)
    code, said = started("--config", str(file))
    assert code == 2
    assert said.startswith("error: ")
    assert key in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "environment", "key"),
    [
        ((), {}, "--config"),
        (("--dev", "--port-base", "70000"), {}, "--port-base"),
        (("--dev", "--nonsense"), {}, "--nonsense"),
        (("--dev", "--log-level", "loud"), {}, "--log-level"),
        (("--dev", "--nats", "ftp://user:secret@host"), {}, "--nats: "),
        (("--dev", "--node-id", "3"), {}, "no node with id 3"),
        (("--config", "/nowhere.yaml"), {}, "/nowhere.yaml"),
        (("--dev",), {"JETSTREAM_BOGUS": "x"}, "JETSTREAM_BOGUS"),
        (("--dev",), {"JETSTREAM_LOG__SEGMENT_BYTES": "many"}, "JETSTREAM_LOG__SEGMENT_BYTES"),
    ],
)
def test_wrong_usage_is_one_line_naming_the_option_or_variable(
    arguments: tuple[str, ...], environment: dict[str, str], key: str
) -> None:
    code, said = started(*arguments, environment=environment)
    assert code == 2
    assert key in said
    assert "secret" not in said
    assert said.startswith("error: ")
    assert said.count("\n") == 1


def test_a_new_interpreter_says_the_same_of_wrong_usage() -> None:
    command = [sys.executable, "-m", "jetstream_server"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=STOP_SECONDS)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == started()[1]


def test_the_ready_line_names_every_port_and_sigterm_stops_cleanly(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "data")
    server.start()
    base = server.port_base
    assert server.ready_line == (
        f"jetstream-server ready: node=0 grpc=127.0.0.1:{base} data=127.0.0.1:{base + 1} "
        f"http=http://127.0.0.1:{base + 3} tls=off nats=nats://127.0.0.1:{base + 4} "
        f"folder={tmp_path / 'data'}\n"
    )
    assert server.stop() == 0
    lines = [json.loads(line) for line in server.log_text.splitlines()]
    assert all({"event", "level", "logger", "timestamp"} <= set(line) for line in lines)
    assert not [line for line in lines if line["level"] not in ("info", "debug")]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_process_group_leaves_nats_up_until_the_server_has_drained(
    tmp_path: Path, number: signal.Signals
) -> None:
    """Ctrl-C in a terminal goes to every process of the group, the embedded nats-server's too."""
    base = free_port_base()
    arguments = ("--dev", "--data", str(tmp_path / "data"), "--port-base", str(base))
    process = subprocess.Popen(
        [sys.executable, "-m", "jetstream_server", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("jetstream-server ready")
        os.killpg(process.pid, number)
        _, said = process.communicate(timeout=STOP_SECONDS)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    assert process.returncode == 0
    assert "nats_server_died" not in said
    assert "nats_disconnected" not in said


def test_below_the_disk_reserve_appends_are_nacked_and_readyz_says_so(tmp_path: Path) -> None:
    more_than_any_disk = {"JETSTREAM_LOG__DISK_RESERVE_BYTES": "4EiB"}
    server = ServerProcess(tmp_path / "data").start()
    api = Api(server.grpc)
    try:
        api.create("full", "full")
        assert get(server, "/readyz")[0] == 200
        with raw_nats(server.nats) as client:
            client.subscribe("_INBOX.full")
            client.publish("full", b"stored", "_INBOX.full")
            assert answer_of(client.message()[1]) == {"stream": "full", "seq": 1}
        server.stop()
        server.environment.update(more_than_any_disk)
        server.start()
        status, reasons = get(server, "/readyz")
        assert status == 503
        assert "disk" in reasons
        assert get(server, "/healthz")[0] == 200
        with raw_nats(server.nats) as client:
            client.subscribe("_INBOX.full")
            client.publish("full", b"refused", "_INBOX.full")
            error = json.loads(client.message()[1])["error"]
        assert error["err_code"] == CODES[StorageFullError].nats_err_code
        assert api.values("full") == [b"stored"]
    finally:
        api.close()
        server.kill()


def get(server: ServerProcess, path: str) -> tuple[int, str]:
    """Status and text."""
    try:
        with urllib.request.urlopen(server.http + path, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
