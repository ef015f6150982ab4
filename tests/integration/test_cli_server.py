"""The `jetstream-server` command: how it starts, why it does not, and how it stops."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from jetstream_client import Client
from jetstream_client.cli.main import run
from jetstream_protocol import frames
from jetstream_protocol.errors import StreamNotFoundError
from jetstream_protocol.frames import Kind
from jetstream_protocol.generated import common_pb2, dataplane_pb2
from tests.fuzz import http2
from tests.support.api import Api, DataPlane, raw_nats
from tests.support.fork_server import fork_server
from tests.support.kubelet import service_links
from tests.support.nats_server import NatsServer
from tests.support.server import ServerProcess, free_port_base

TREE = Path(__file__).resolve().parents[2]
READY_LINE = re.compile(
    r"jetstream-server ready: node=(?P<node>\d+) grpc=(?P<grpc>\S+) data=(?P<data>\S+) "
    r"http=(?P<http>http://\S+) tls=off nats=(?P<nats>\S+) folder=(?P<folder>.+)\n"
)


def refused_start(server: ServerProcess, *arguments: str, seconds: float = 60) -> tuple[int, str]:
    """Exit code and the error line of a start that fails; nothing else may look like an error."""
    found = fork_server.run(
        [*server.command(), *arguments], environment=server.environment, timeout=seconds
    )
    assert found.stdout == "", "it must not say that it is ready"
    assert "Traceback" not in found.stderr, found.stderr
    errors = [line for line in found.stderr.splitlines() if not line.startswith("{")]
    assert len(errors) == 1, found.stderr
    assert errors[0].startswith("error: ")
    return found.returncode, errors[0]


# Starting.


def test_the_ready_line_says_where_everything_is(own_server: ServerProcess) -> None:
    own_server.start()
    match = READY_LINE.fullmatch(own_server.ready_line)
    assert match is not None, own_server.ready_line
    assert match["folder"] == str(own_server.data)
    api = Api(match["grpc"])
    api.create("a", "a")
    api.close()
    host, port = match["data"].split(":")
    DataPlane((host, int(port))).close()
    with urllib.request.urlopen(f"{match['http']}/readyz") as answer:
        assert answer.read() == b"ready\n"
    with raw_nats(match["nats"]):
        pass


@pytest.mark.parametrize("port", [0, 1, 3, 4], ids=["grpc", "data", "http", "nats"])
def test_a_port_in_use_is_named(own_server: ServerProcess, port: int) -> None:
    with socket.create_server(("127.0.0.1", own_server.port_base + port)):
        code, error = refused_start(own_server)
    assert code == 1
    assert str(own_server.port_base + port) in error
    assert "Errno" not in error
    assert "other ports" in error
    assert "--port-base" in error
    own_server.start()  # And what had started by then has let go of everything.


def test_streams_without_the_folder_s_identity_are_refused(own_server: ServerProcess) -> None:
    own_server.start()
    api = Api(own_server.grpc)
    api.create("a", "a")
    with raw_nats(own_server.nats) as nats:
        nats.subscribe("_INBOX.a")
        nats.publish("a", b"x", "_INBOX.a")
        nats.message()
    api.close()
    own_server.stop()
    (own_server.data / "meta.json").unlink()
    code, error = refused_start(own_server)
    assert code == 1
    assert "meta.json" in error


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"")
    code, error = refused_start(ServerProcess(file / "data"))
    assert code == 1
    assert str(file) in error


def checked(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "jetstream_server", *arguments, "--check-config"]
    return fork_server.run(command)


def test_a_configuration_is_checked_without_a_start(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text("data: nowhere\nlog: {segment_bytes: 1MiB}\n")
    found = checked("--config", str(file))
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout == "the configuration can be used: this is node 0 of 1\n"
    assert checked("--dev").returncode == 0
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nats: {embeded: true}", "nats.embeded: unknown key, did you mean embedded?"),
        ("nats: {credentials_file: /nowhere/a.creds}", "/nowhere/a.creds"),
        ("nats: {tls: {ca_file: /nowhere/ca.pem}}", "nats.tls: "),
    ],
)
def test_a_configuration_that_is_checked_and_cannot_be_used_is_exit_code_2(
    tmp_path: Path, text: str, says: str
) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(text)
    found = checked("--config", str(file))
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr.startswith("error: ")
    assert found.stderr.count("\n") == 1
    assert says in found.stderr


def test_what_a_kubelet_sets_for_the_services_of_the_manifest_stops_no_server(
    own_server: ServerProcess,
) -> None:
    """The manifest asks for no such variables; pods of other people's manifests have them."""
    own_server.kill()
    manifests = yaml.safe_load_all((TREE / "ops" / "kubernetes" / "jetstream.yaml").read_text())
    services = [each for each in manifests if each["kind"] == "Service"]
    links: dict[str, str] = {}
    for service in services:
        if service["spec"].get("clusterIP") != "None":
            ports = {each["name"]: each["port"] for each in service["spec"]["ports"]}
            links |= service_links(service["metadata"]["name"], "10.96.0.7", ports)
    assert links["JETSTREAM_PORT_9292_TCP"] == "tcp://10.96.0.7:9292"
    own_server.environment |= links
    own_server.start()
    with Client(own_server.grpc, timeout=60) as client:
        client.create_stream("orders", "orders.>")
    own_server.kill()
    own_server.environment["JETSTREAM_PORT"] = "9292"
    with pytest.raises(AssertionError, match="JETSTREAM_PORT: unknown variable"):
        own_server.start()


def test_without_nats_the_server_serves_reads_and_says_so_everywhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = free_port_base()
    server = ServerProcess(
        tmp_path / "data", "--nats", f"nats://127.0.0.1:{base + 4}", port_base=base
    )
    server.start()
    try:
        assert "nats_unreachable" in server.log_text
        api = Api(server.grpc)
        with pytest.raises(StreamNotFoundError):
            api.fetch("none")
        api.close()
        assert server.ready_line.startswith(
            "jetstream-server not ready (not connected to NATS): node=0 grpc="
        )
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{server.http}/readyz")
        with refused.value as answer:
            assert answer.read() == b"not connected to NATS\n"
        with Client(server.grpc, timeout=60) as client:
            (node,) = client.describe_cluster().nodes
        assert node.not_ready == ("not connected to NATS",)
        assert run(["cluster", "status", "--server", server.grpc]) == 0
        assert "not ready (not connected to NATS)" in capsys.readouterr().out
        # Once NATS is there, so it is said.
        assert server.process is not None
        assert server.process.stdout is not None
        with NatsServer(port=base + 4):
            assert server.process.stdout.readline().startswith("jetstream-server ready: node=0")
        assert server.stop() == 0
    finally:
        server.kill()


# Stopping.


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_under_load_keeps_every_acknowledged_record(
    own_server: ServerProcess, number: signal.Signals
) -> None:
    own_server.start()
    api = Api(own_server.grpc)
    for name in ("group", "interval"):
        api.create(name, name, flush=3 if name == "group" else 2)
    api.close()
    acknowledged: dict[str, dict[int, bytes]] = {"group": {}, "interval": {}}
    loads = [
        threading.Thread(
            target=_publish_until_refused, args=(own_server.nats, name, found), daemon=True
        )
        for name, found in acknowledged.items()
    ]
    for load in loads:
        load.start()
    deadline = time.monotonic() + 60
    while min(map(len, acknowledged.values())) <= 100:
        assert time.monotonic() < deadline, "there is no load"
        time.sleep(0.01)
    assert own_server.process is not None
    process = own_server.process
    process.send_signal(number)
    time.sleep(0.05)
    if process.poll() is None:
        process.send_signal(number)  # The impatient do.
    assert own_server.stop() == 0
    for load in loads:
        load.join(60)
    own_server.start()
    api = Api(own_server.grpc)
    for name, found in acknowledged.items():
        values = api.values(name)
        assert {offset: values[offset] for offset in found} == found
    api.close()
    assert "Traceback" not in own_server.log_text


def _publish_until_refused(url: str, name: str, acknowledged: dict[int, bytes]) -> None:
    count = 0
    try:
        with raw_nats(url) as nats:
            nats.subscribe(f"_INBOX.{name}")
            while True:
                values = [b"%d" % (count + index) for index in range(20)]
                for value in values:
                    nats.publish(name, value, f"_INBOX.{name}")
                for value in values:
                    answer = json.loads(nats.message()[1])
                    if "seq" not in answer or "error" in answer:
                        return
                    acknowledged[answer["seq"] - 1] = value
                count += len(values)
    except (OSError, IndexError, ValueError):
        return  # The NATS server is the stopping server's child.


def test_signals_during_the_whole_stop_change_nothing(own_server: ServerProcess) -> None:
    own_server.start()
    assert own_server.process is not None
    process = own_server.process
    while process.poll() is None:
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
    assert own_server.stop() == 0
    assert "Traceback" not in own_server.log_text
    assert "Error" not in own_server.log_text


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2])
def test_other_signals_end_no_server_although_it_has_nothing_to_read_again(
    own_server: ServerProcess, number: int
) -> None:
    own_server.start()
    with Client(own_server.grpc) as client:
        client.create_stream("orders", "orders")
        for _ in range(20):
            os.kill(own_server.pid, number)
            client.publish("orders", b"x")
        assert client.offset_at("orders", "latest") == 20
    assert own_server.stop() == 0


def test_a_hang_up_ends_no_server_that_starts_or_stops(own_server: ServerProcess) -> None:
    """`systemctl reload` right after a start; the real command, since a fork has imported all."""
    with subprocess.Popen(
        own_server.command(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        line = Path(f"/proc/{process.pid}/status")
        hang_up = 1 << (signal.SIGHUP - 1)
        while not int(re.findall(r"SigBlk:\s*(\w+)", line.read_text())[0], 16) & hang_up:
            assert process.poll() is None
            time.sleep(0.001)  # Python itself starts.
        told = threading.Event()
        hanging_up = threading.Thread(target=_hang_up_until, args=(process, told))
        hanging_up.start()
        assert process.stdout.readline().startswith("jetstream-server ready")
        process.terminate()
        _, log = process.communicate(timeout=60)
        told.set()
        hanging_up.join()
    assert process.returncode == 0, log
    assert "Traceback" not in log


def _hang_up_until(process: subprocess.Popen[str], told: threading.Event) -> None:
    while not told.wait(0.005):
        process.send_signal(signal.SIGHUP)


def test_nobody_who_waits_keeps_the_server_from_stopping(own_server: ServerProcess) -> None:
    """Long polls and slow readers on both ports, and a health watcher that reads nothing."""
    own_server.start()
    api = Api(own_server.grpc)
    api.create("a", "a")
    with raw_nats(own_server.nats) as nats:
        nats.subscribe("_INBOX.a")
        for _ in range(20):
            nats.publish("a", bytes(500_000), "_INBOX.a")
            nats.message()
    ref = common_pb2.StreamRef(name="a")
    poll = dataplane_pb2.DataFetchRequest(stream=ref, offset=20, wait_ms_max=300_000)
    large = dataplane_pb2.DataFetchRequest(stream=ref, bytes_max=64 << 20)
    with ExitStack() as stack:
        for request in (poll, large):
            plane = DataPlane(own_server.data_address)
            stack.callback(plane.close)
            plane.sock.sendall(frames.encode(Kind.FETCH, 1, request.SerializeToString()) * 10)
        for path in (b"/grpc.health.v1.Health/Watch", b"/jetstream.v1.Reads/Consume"):
            sock = stack.enter_context(
                socket.create_connection(("127.0.0.1", own_server.port_base), timeout=60)
            )
            message = b"" if path.endswith(b"Watch") else b"\x0a\x03\x12\x01a"
            call = http2.call(1, path, message)
            sock.sendall(http2.PREFACE + http2.settings(id_4=0) + call)
        idle = socket.create_connection(("127.0.0.1", own_server.port_base + 3), timeout=60)
        stack.enter_context(idle)
        time.sleep(0.5)
        assert own_server.stop() == 0  # They wait for longer than this does.
    api.close()
