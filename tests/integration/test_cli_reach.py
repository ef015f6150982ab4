"""The command line's comforts against a server: positions, formats, lists, watching, completion."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from jetstream_client import Client
from jetstream_client.cli.context_file import Context, ContextFile
from jetstream_client.cli.main import run as run_command
from tests.support.fork_server import fork_server
from tests.support.server import ServerProcess

Run = Callable[..., str]
COMMAND = [sys.executable, "-m", "jetstream_client"]
COUNT = 20


@pytest.fixture(scope="module", autouse=True)
def filled(server: ServerProcess) -> None:
    with Client(server.grpc, timeout=60) as client:
        client.create_stream("orders", "orders.*.new", max_bytes=10**9)
        client.create_stream("empty", "empty", compact=True)
        with client.publisher("orders.eu.new") as publisher:
            publisher.publish_many([b"%d" % number for number in range(COUNT)])


@pytest.fixture
def jetstream(server: ServerProcess, capfd: pytest.CaptureFixture[str]) -> Run:
    """The command within this process; returns what it prints."""

    def run(*arguments: str, code: int = 0) -> str:
        found = run_command(["--server", server.grpc, *arguments])
        sys.stdout.flush()
        out, error = capfd.readouterr()
        assert found == code, error
        return out

    return run


@pytest.mark.parametrize(
    ("position", "count"),
    [("-10", 10), ("last:3", 3), ("1h", COUNT), ("0s", 0), ("2020-01-31", COUNT), ("18", 2)],
)
def test_positions_are_said_as_elsewhere(jetstream: Run, position: str, count: int) -> None:
    assert jetstream("fetch", "orders", "--from", position).count("\n") == count


def test_records_are_written_in_the_format_asked_for(jetstream: Run) -> None:
    written = jetstream("fetch", "orders", "--from", "-2", "--format", r"%o %u %s\n")
    assert written == "18 orders.eu.new 18\n19 orders.eu.new 19\n"


def test_records_are_written_newest_first(jetstream: Run) -> None:
    newest_first = ["fetch", "orders", "--reverse", "--format", "%o "]
    assert jetstream(*newest_first, "--max", "3").split() == ["19", "18", "17"]
    assert jetstream(*newest_first, "--from", "5", "--to", "8").split() == ["7", "6", "5"]
    assert jetstream(*newest_first).split() == [f"{offset}" for offset in reversed(range(COUNT))]
    jetstream("fetch", "orders", "--reverse", "--follow", code=2)


def test_records_are_filtered_by_subject_and_key(jetstream: Run, server: ServerProcess) -> None:
    with Client(server.grpc, timeout=60) as client:
        client.create_stream("regions", "regions.>")
        for number in range(12):
            client.publish(f"regions.{number % 2}", b"%d" % number, key=str(number % 3))
    every = ["fetch", "regions", "--format", "%v "]
    assert jetstream(*every, "--filter", "regions.1").split() == ["1", "3", "5", "7", "9", "11"]
    assert jetstream(*every, "--filter", "*.1", "--key", "0").split() == ["3", "9"]
    assert jetstream(*every, "--from", "0", "--max", "1", "--key", "2").split() == ["2"]


def test_a_list_shows_replicas_messages_bytes_and_age(jetstream: Run) -> None:
    lines = {line.split()[0]: line for line in jetstream("stream", "list").splitlines()}
    assert lines["NAME"].split() == [
        "NAME",
        "SUBJECT",
        "GROUP",
        "LEADER",
        "REPLICAS",
        "RECORDS",
        "BYTES",
        "LAST",
        "STATE",
    ]
    assert lines["empty"].split() == ["empty", "empty", "-", "0", "1/1", "0", "0B", "-", "-"]
    orders = r"orders +orders\.\*\.new +- +0 +1/1 +20 +\d+B +\d+[sm] +-"
    assert re.fullmatch(orders, lines["orders"])
    row = json.loads(jetstream("--json", "stream", "list", "--feeding", "orders.x.new"))
    assert row["high_watermark"] == COUNT
    assert row["last_append"].endswith("Z")


def test_a_list_says_which_streams_take_no_messages_and_why(
    jetstream: Run, server: ServerProcess
) -> None:
    with Client(server.grpc, timeout=60) as client:
        client.create_stream("marked", "marked")
        client.set_stream_readonly("marked")
        last = ["stream", "list", "--feeding", "marked"]
        assert jetstream(*last).splitlines()[-1].endswith(" read-only")
        client.pause_stream("marked")
        assert jetstream(*last).splitlines()[-1].endswith(" read-only, paused")
        client.delete_stream("marked")
        client.create_stream("marked", "marked", restoring=True)
        assert re.search(r"^marked .* restoring$", jetstream("stream", "list"), re.MULTILINE)
        client.delete_stream("marked")


def test_what_has_no_limit_is_said_to_be_unlimited(jetstream: Run) -> None:
    told = dict(
        line.split(maxsplit=1)
        for line in jetstream("stream", "describe", "orders", "--all").splitlines()
    )
    assert told["max_age"] == told["max_messages"] == "unlimited"
    assert told["max_bytes"] == "1000000000"


def test_a_stream_is_described_in_a_dozen_lines(jetstream: Run) -> None:
    lines = jetstream("stream", "describe", "orders").splitlines()
    told = dict(line.split(maxsplit=1) for line in lines)
    assert len(lines) <= 12
    assert told["stream"] == "orders"
    assert told["subject"] == "orders.*.new"
    assert told["records"] == f"{COUNT}, offsets 0 to {COUNT - 1}"
    assert told["leader"].startswith("node 0, epoch ")
    assert told["replicas"] == "node 0; in sync node 0"
    assert told["keeps"] == "at most 954MiB"
    assert re.search(r" ago, at \d{4}-\d\d-\d\dT[\d:.]+Z$", told["last"])
    assert "suspected_gaps" not in told
    assert "records   empty; the next offset is 0\n" in jetstream("stream", "describe", "empty")


@pytest.mark.parametrize(
    "command", [["stream", "list"], ["stream", "describe", "orders"], ["cluster", "status"]]
)
def test_watching_shows_it_again_until_ctrl_c(server: ServerProcess, command: list[str]) -> None:
    with fork_server.start(
        [*COMMAND, "--json", "--server", server.grpc, *command, "--watch"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as watching:
        assert watching.stdout is not None
        assert watching.stderr is not None
        lines = 3 if command[1] == "list" else 1
        looks = [[watching.stdout.readline() for _ in range(lines)] for _ in range(2)]
        watching.send_signal(signal.SIGINT)
        assert watching.wait(timeout=60) == 130
        assert watching.stderr.read() == ""
    for look in looks:
        assert all(isinstance(json.loads(line), dict) for line in look)


def test_on_a_terminal_watching_draws_over_what_was_there(server: ServerProcess) -> None:
    leader, follower = pty.openpty()
    watching = fork_server.start(
        [*COMMAND, "stream", "list", "--watch", "--server", server.grpc],
        stdout=follower,
        stderr=subprocess.DEVNULL,
    )
    os.close(follower)
    with open(leader, "rb", buffering=0) as terminal:
        shown = b""
        while shown.count(b"orders.*.new") < 2:
            shown += terminal.read(4096)
        watching.send_signal(signal.SIGINT)
        watching.wait(timeout=60)
    before, *looks = shown.split(b"\x1b[H\x1b[2J")
    assert before == b""
    assert [look.count(b"orders.*.new") for look in looks[:2]] == [1, 1]


@pytest.fixture(scope="module")
def workers(server: ServerProcess, filled: None) -> str:
    """A consumer group that has read the first ten of `orders`, and has no members."""
    with (
        Client(server.grpc, timeout=60) as client,
        client.consume_group("orders", "workers") as consumer,
    ):
        for message in consumer:
            if message.offset == 9:
                consumer.commit()
                break
    return "workers"


def test_groups_are_listed_with_their_lag_and_moved(jetstream: Run, workers: str) -> None:
    def lag() -> object:
        rows = map(json.loads, jetstream("group", "list", "--json").splitlines())
        return next(row["lag"] for row in rows if row["name"] == workers)

    assert lag() == COUNT - 10
    assert " LAG " in jetstream("group", "list")
    for to, left in (("earliest", COUNT), ("latest", 0), ("15", COUNT - 15), ("1h", COUNT)):
        said = jetstream("group", "seek", workers, "--to", to)
        assert said == f"group workers is at offset {COUNT - left} of orders@orders.*.new\n"
        assert lag() == left
    jetstream("group", "seek", workers, "--to", "10")
    jetstream("group", "seek", "wrokers", "--to", "earliest", code=3)
    assert "wrokers" not in jetstream("cursor", "list")


def test_a_group_with_members_is_not_moved(
    jetstream: Run, server: ServerProcess, workers: str
) -> None:
    with (
        Client(server.grpc, timeout=60) as client,
        client.consume_group("orders", "busy") as consumer,
    ):
        next(iter(consumer))
        consumer.commit()
        jetstream("group", "seek", "busy", "--to", "latest", code=1)
        assert client.describe_cursor("busy", "orders").offset <= COUNT


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("jetstream stream describe or", ["orders"]),
        ("jetstream --server SERVER fetch e", ["empty"]),
        ("jetstream publish or", ["orders."]),
        ("jetstream fetch --server 127.0.0.1:1 or", []),
        ("jetstream cursor describe work", ["workers"]),
        ("jetstream group describe work", ["workers"]),
        ("jetstream node drain", ["0"]),
        ("jetstream context use pr", ["prod"]),
    ],
)
def test_a_shell_is_offered_names_and_subjects(
    server: ServerProcess, workers: str, tmp_path: Path, words: str, offered: list[str]
) -> None:
    ContextFile(tmp_path / "jetstream" / "contexts.json").add("prod", Context("localhost:1"))
    words += " " if words.endswith("drain") else ""
    words = words.replace("SERVER", server.grpc)
    begin = (
        "import sys; sys.argv[:] = ['jetstream']; sys.modules['__main__'].__package__ = None; "
        "from jetstream_command import client; client()"  # As the script does.
    )
    done = fork_server.run(
        [sys.executable, "-m", "tests.support.run_code", begin],
        environment={
            **os.environ,
            "JETSTREAM_SERVERS": server.grpc,
            "XDG_CONFIG_HOME": str(tmp_path),
            "_JETSTREAM_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split(" ")) - 1),
        },
    )
    assert done.stdout.split() == offered
    assert done.stderr == ""


def test_bench_measures_publishing_latency_and_fetching(jetstream: Run) -> None:
    jetstream("stream", "create", "bench", "--subject", "bench.>")
    published = json.loads(
        jetstream("bench", "publish", "bench.a", "--messages", "2500", "--size", "100", "--json")
    )
    assert (published["messages"], published["bytes"]) == (2500, 250_000)
    assert published["messages_per_second"] > 0
    one = json.loads(jetstream("bench", "latency", "bench.a", "--messages", "20", "--json"))
    assert 0 < one["p50_us"] <= one["p99_us"] <= one["max_us"]
    fetched = json.loads(jetstream("bench", "fetch", "bench", "--json"))
    assert fetched["messages"] == 1 + 2500 + 1 + 20  # Each begins with one that is not measured.
    told = jetstream("bench", "fetch", "bench", "--messages", "100")
    assert re.search(r"messages +100\nrate +[\d,]+ messages/s, .*B/s\n", told), told


def test_top_shows_the_busiest_streams_again_and_again(server: ServerProcess) -> None:
    with Client(server.grpc, timeout=60) as client:
        client.create_stream("busy", "busy")
        top = [*COMMAND, "--server", server.grpc, "top"]
        with fork_server.start(top, stdout=subprocess.PIPE, stderr=2) as watching:
            assert watching.stdout is not None
            try:
                assert "records/s" in watching.stdout.readline()
                looks: list[list[str]] = [[]]
                while not any(map(shows_the_busy_one_first, looks[1:-1])):
                    for _ in range(10):
                        client.publish("busy", b"")
                    # Blank lines are between the looks.
                    while line := watching.stdout.readline().strip():
                        looks[-1].append(line)
                    looks.append([])
            finally:
                watching.send_signal(signal.SIGINT)


def shows_the_busy_one_first(look: list[str]) -> bool:
    """A node that stands still counts nothing meanwhile. "last …": it has kept two samples."""
    head, heading, first = [line for line in look if not line.startswith("last ")][:3]
    assert "RATE" in heading
    is_busy = re.match(r"busy +busy +[1-9][\d,]*/s", first) is not None
    return is_busy and re.search(r"streams, [1-9]", head) is not None
