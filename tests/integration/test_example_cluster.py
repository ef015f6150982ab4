"""The local cluster and its demonstration of a failover do what they say."""

from __future__ import annotations

import io
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from examples.cluster.__main__ import TERMINATIONS, main
from examples.cluster.local import NATS_PORT, PORTS_BETWEEN_NODES, LocalCluster
from examples.cluster.processes import FOLDER_VARIABLE, Processes
from examples.cluster.publisher import Books, judge
from tests.support.fork_server import ForkedProcess, fork_server
from tests.support.forked_nodes import ForkedNodes
from tests.support.lake_streams import until
from tests.support.server import free_port_base

TREE = Path(__file__).parents[2]


REAL = (sys.executable, "-m", "examples.cluster")
"""Forked; what it starts is not."""
COMMAND = (sys.executable, "-m", "tests.support.forked_cluster")


def begun(*arguments: str, command: tuple[str, ...] = COMMAND, **environment: str) -> ForkedProcess:
    return fork_server.start(
        [*command, *arguments],
        environment={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def cluster_command(
    *arguments: str, command: tuple[str, ...] = COMMAND
) -> subprocess.CompletedProcess[str]:
    return fork_server.run([*command, *arguments], environment=os.environ, timeout=250)


def ended(process: ForkedProcess) -> subprocess.CompletedProcess[str]:
    """It says so little that the pipes hold it."""
    assert process.stdout is not None
    assert process.stderr is not None
    with process:
        code = process.wait(250)
        out, err = process.stdout.read(), process.stderr.read()
    return subprocess.CompletedProcess(COMMAND, code, out, err)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three nodes, which a test may find killed: `up` mends that. Before them ports are free."""
    cluster = LocalCluster(tmp_path_factory.mktemp("shared") / "cluster")
    try:
        base = str(free_port_base(PORTS_BETWEEN_NODES * 4) + PORTS_BETWEEN_NODES)
        done = cluster_command("up", "--dir", str(cluster.directory), "--port-base", base)
        assert done.returncode == 0, done.stderr
        yield cluster
    finally:
        for name in cluster.pids():
            cluster.end(name, signal.SIGKILL)


def port_base(cluster: LocalCluster) -> int:
    return int(cluster.grpc_addresses[0].rpartition(":")[2])


def test_a_cluster_is_started_looked_at_broken_mended_and_stopped(tmp_path: Path) -> None:
    folder = ("--dir", str(tmp_path / "cluster"))
    base = free_port_base(PORTS_BETWEEN_NODES * 3)
    cluster = LocalCluster(tmp_path / "cluster")
    real = partial(cluster_command, command=REAL)
    try:
        up = real("up", *folder, "--port-base", str(base))
        assert up.returncode == 0, up.stderr
        assert f"JETSTREAM_SERVERS=127.0.0.1:{base},127.0.0.1:{base + 10}," in up.stdout
        assert real("status", *folder).stdout.count("running") == 4
        nats = cluster.pids()["nats"]
        assert real("kill", "1", *folder).returncode == 0
        status = real("status", *folder).stdout.splitlines()
        assert status[1] == f"node 1  127.0.0.1:{base + 10}  stopped"
        assert "node 1 is not running" in real("kill", "1", *folder).stderr
        assert real("start", "1", *folder).returncode == 0
        assert cluster.pids()["nats"] == nats
        for command in ("start", "kill"):
            assert "there is no node 7" in real(command, "7", *folder).stderr
        assert real("down", *folder, "--delete").returncode == 0
        assert cluster.pids() == {}
        assert not cluster.directory.exists()
    finally:
        cluster.stop()


@pytest.mark.parametrize("kind", [Processes, ForkedNodes])
def test_what_a_node_has_started_is_not_taken_for_it(tmp_path: Path, kind: type[Processes]) -> None:
    """A node's workers have its environment, and sessions of their own."""
    processes = kind(tmp_path)
    with processes.changing():
        processes.start("node-0", [sys.executable, "-m", "tests.support.starts_another"])
    try:
        until(lambda: "begun" in processes.log("node-0").read_text())
        assert processes.pids() == {"node-0": processes.pid("node-0")}
    finally:
        processes.end("node-0", signal.SIGKILL)


STARTS_A_WORKER = """
import subprocess, sys, time
with open(sys.argv[1]) as told:
    worker = [sys.executable, "-P", "-m", "jetstream_server.lake.worker"]
    subprocess.Popen(worker, stdin=told, start_new_session=True)
print("begun", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("kind", [Processes, ForkedNodes])
def test_what_outlives_a_node_for_a_moment_is_not_taken_for_it(
    tmp_path: Path, kind: type[Processes]
) -> None:
    """A worker that has just begun does not end at once. The dead node was never started again."""
    processes = kind(tmp_path / "cluster")
    os.mkfifo(tmp_path / "told")
    holding = os.open(tmp_path / "told", os.O_RDWR)
    try:
        with processes.changing():
            told = str(tmp_path / "told")
            processes.start("node-0", [sys.executable, "-c", STARTS_A_WORKER, told])
        until(lambda: "begun" in processes.log("node-0").read_text())
        assert processes.end("node-0", signal.SIGKILL)
        assert processes.pids() == {}
    finally:
        os.close(holding)  # The worker ends.
        processes.end("node-0", signal.SIGKILL)


FORGETS_ITSELF = """
import ctypes, signal, time
def forget(*_):
    with open("/proc/self/stat") as file:
        begin, end = map(int, file.read().rpartition(")")[2].split()[47:49])
    ctypes.memset(begin, 0, end - begin)
    time.sleep(0.2)
    raise SystemExit
signal.signal(signal.SIGTERM, forget)
print("begun", flush=True)
signal.pause()
"""
"""As it ends it shows no environment any more, and still runs."""


def test_a_process_has_ended_when_nothing_of_it_is_left(tmp_path: Path) -> None:
    processes, other = Processes(tmp_path), Processes(tmp_path)
    with processes.changing():
        processes.start("node-0", [sys.executable, "-S", "-c", FORGETS_ITSELF])
    until(lambda: "begun" in processes.log("node-0").read_text())
    assert other.end("node-0", signal.SIGTERM)  # Whose child it is not.
    child = processes._children["node-0"]
    assert Path(f"/proc/{child.pid}/cmdline").read_bytes() == b""
    assert child.wait() == 0


@pytest.mark.parametrize(
    "command", [("status",), ("kill", "0"), ("start", "0"), ("down",)], ids=lambda words: words[0]
)
def test_a_folder_without_a_cluster_says_how_to_make_one(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    said = one_line(*command, "--dir", str(tmp_path / "nothing"))
    assert "scripts/cluster up" in said


def test_a_folder_that_cannot_hold_a_cluster_is_said_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for folder in (file, file / "cluster"):
        assert f"{folder} cannot be a folder" in one_line("up", "--dir", str(folder))


@pytest.mark.parametrize(
    "content", [b"nodes: [", b"\xff\xfe\0", b"", b"nodes: {}", b"nodes: [{id: 0}]", b"- 1"]
)
@pytest.mark.parametrize("command", ["up", "status", "down"])
def test_a_damaged_configuration_is_said_in_one_line(
    tmp_path: Path, command: str, content: bytes
) -> None:
    (tmp_path / "cluster.yaml").write_bytes(content)
    said = one_line(command, "--dir", str(tmp_path))
    assert "cluster.yaml is damaged; mend or delete it" in said


def test_ports_of_others_are_refused_before_anything_is_written_or_started(
    shared: LocalCluster, tmp_path: Path
) -> None:
    other = LocalCluster(tmp_path / "other")
    base = port_base(shared)
    for taken, wanted in ((base + NATS_PORT, base), (base, base - PORTS_BETWEEN_NODES)):
        said = one_line("up", "--dir", str(other.directory), "--port-base", str(wanted))
        assert f"port {taken}, for " in said
        assert "--port-base" in said
        assert not other.config_file.exists()
        assert other.pids() == {}


def test_a_stranger_on_a_port_of_a_stopped_cluster_is_named_and_nothing_is_started(
    tmp_path: Path,
) -> None:
    cluster = LocalCluster(tmp_path)
    cluster.create(1, free_port_base(PORTS_BETWEEN_NODES))
    http = port_base(cluster) + 3
    with socket.create_server(("127.0.0.1", http)):
        assert f"port {http}, for node-0, is taken" in one_line("up", "--dir", str(tmp_path))
    assert cluster.pids() == {}


def test_a_folder_keeps_its_nodes_and_ports(shared: LocalCluster) -> None:
    folder, base = ("--dir", str(shared.directory)), port_base(shared)
    for asked in (("--nodes", "5"), ("--port-base", str(base + 1000))):
        said = one_line("up", *folder, *asked)
        assert f"{shared.directory} is a cluster of 3 nodes on port {base}: " in said
        assert "down --delete" in said
    same = cluster_command("up", *folder, "--nodes", "3", "--port-base", str(base))
    assert same.returncode == 0, same.stderr


def test_every_spelling_of_a_folder_is_the_same_cluster(
    shared: LocalCluster, tmp_path: Path
) -> None:
    link = tmp_path / "link"
    link.symlink_to(shared.directory)
    pids = shared.pids()
    for spelling in (link, tmp_path / ".." / tmp_path.name / "link"):
        folder = ("--dir", str(spelling))
        assert cluster_command("status", *folder).stdout.count("running, pid") == 4
        assert cluster_command("up", *folder).returncode == 0
        assert LocalCluster(spelling).pids() == pids == shared.pids()


def test_a_node_without_a_majority_says_what_it_waits_for(shared: LocalCluster) -> None:
    folder = ("--dir", str(shared.directory))
    for node in shared.node_ids:
        shared.kill_node(node)
    said = one_line("start", "2", *folder, run=cluster_command)
    assert "node-2 runs and waits for a majority of the nodes 0, 1, 2: scripts/cluster up" in said
    status = cluster_command("status", *folder).stdout.splitlines()
    pid = shared.pids()["node-2"]
    assert status[2].endswith(f"running, pid {pid}, not ready: waits for a majority of the "
                              "nodes 0, 1, 2")  # fmt: skip
    assert cluster_command("up", *folder).returncode == 0
    assert shared.pids()["node-2"] == pid
    until(lambda: "not ready" not in cluster_command("status", *folder).stdout)


def test_commands_that_run_at_once_start_each_process_once(shared: LocalCluster) -> None:
    folder = ("--dir", str(shared.directory))
    for name in sorted(shared.pids()):
        shared.end(name, signal.SIGKILL)
    together = [
        begun(*command, *folder)
        for command in (("start", "0"), ("start", "1"), ("start", "1"), ("start", "0"))
    ]
    for process in together:
        done = ended(process)
        assert done.returncode == 0, done.stderr
    first = shared.pids()
    assert sorted(first) == ["nats", "node-0", "node-1"]
    for process in [begun("up", *folder) for _ in range(3)]:
        done = ended(process)
        assert done.returncode == 0, done.stderr
    assert sorted(shared.pids()) == ["nats", "node-0", "node-1", "node-2"]
    assert first.items() <= shared.pids().items()


def test_what_a_node_said_last_and_what_still_runs_is_told(tmp_path: Path) -> None:
    folder = ("--dir", str(tmp_path / "cluster"))
    cluster = LocalCluster(tmp_path / "cluster")
    base = str(free_port_base(PORTS_BETWEEN_NODES))
    try:
        up = cluster_command("up", *folder, "--nodes", "1", "--port-base", base)
        assert up.stdout.startswith("cluster of 1 node is up in ")
        cluster.kill_node(0)
        whole = cluster.config_file.read_text()
        cluster.config_file.write_text(f"{whole}nonsense: 1\n")
        said = one_line("up", *folder, run=cluster_command)
        assert "node-0 has ended: error: " in said
        assert "nonsense" in said
        assert f"(still running: nats; end that with scripts/cluster down {folder[0]}" in said
        cluster.config_file.unlink()
        said = one_line("up", *folder, run=cluster_command)
        assert "is gone, but not its processes: end them first" in said
        assert cluster_command("down", *folder).returncode == 0
        assert cluster.pids() == {}
    finally:
        cluster.stop()


def within(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command within this process, which is many times quicker: where it starts nothing."""
    out, err = io.StringIO(), io.StringIO()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, *TERMINATIONS)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["cluster", *arguments])
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", err)
        try:
            with pytest.raises(SystemExit) as ended:
                main()
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
    code = ended.value.code
    assert isinstance(code, int)
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


def one_line(*arguments: str, run: Callable[..., subprocess.CompletedProcess[str]] = within) -> str:
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (1, ""), done
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


def test_processes_of_other_folders_are_left_alone(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path / "cluster")
    others = [
        subprocess.Popen(
            ["sleep", "60"],
            env={**os.environ, FOLDER_VARIABLE: str(tmp_path / name)},
            start_new_session=name != "cluster/node-0",
        )
        for name in ("cluster-2/node-0", "cluster/inner/node-0", "node-0", "cluster/node-0")
    ]
    try:
        assert cluster.pids() == {}
        assert not cluster.kill_node(0)
        assert [other.poll() for other in others] == [None] * len(others)
    finally:
        for other in others:
            other.kill()
            other.wait()


def test_a_relative_folder_is_the_callers(tmp_path: Path) -> None:
    tree, here = tmp_path / "tree", tmp_path / "here"
    for folder in (tree / "scripts", here):
        folder.mkdir(parents=True)
    shutil.copy(TREE / "scripts" / "cluster", tree / "scripts")
    (tree / "scripts" / "environment").symlink_to(shutil.which("true") or "")
    (tree / "examples").symlink_to(TREE / "examples")
    (tree / ".venv").symlink_to(sys.prefix)
    (here / "yaml.py").write_text("raise ValueError('the wrong module')")
    said = subprocess.run(
        ["../tree/scripts/cluster", "status", "--dir", "mine"],
        cwd=here,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert said.stderr.startswith(f"error: {here}/mine holds no cluster")


def test_a_demo_whose_terminal_is_closed_leaves_nothing(tmp_path: Path) -> None:
    demo = begun("demo", "--rate", "300", TMPDIR=str(tmp_path))
    assert demo.stdout is not None
    while "stream orders" not in (line := demo.stdout.readline()):
        assert line, ended(demo)
    (folder,) = tmp_path.iterdir()
    assert len(LocalCluster(folder).pids()) == 4
    demo.send_signal(signal.SIGHUP)
    demo.send_signal(signal.SIGHUP)  # The terminal's, and the shell's.
    assert ended(demo).returncode == 130
    assert LocalCluster(folder).pids() == {}
    assert list(tmp_path.iterdir()) == []


def test_the_verdict_tells_loss_from_doubt() -> None:
    books = Books(published=6, acked={0: 0, 1: 1, 2: 2}, refused={3}, unknown={4, 5})
    good = judge(books, [0, 1, 2, 5])
    assert good.is_good
    assert (good.lost, good.unknown, good.unknown_stored) == (0, 2, 1)
    assert judge(books, [0, 1, 5]).lost == 1
    assert judge(books, [0, 2, 1]).lost == 2
    assert not judge(books, [0, 1, 2, 2]).is_good
    assert not judge(books, [0, 1, 2, 3]).is_good
