"""The `jetstream` command as people and scripts run it: a process, a server, pipes, signals. What
depends on how Python starts is run by a new interpreter, the rest is forked."""

from __future__ import annotations

import base64
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

import pytest

from jetstream_client import Client, StreamNotFoundError
from jetstream_client.cli import options
from tests.support import command
from tests.support.fork_server import Stream, fork_server
from tests.support.server import ServerProcess

Run = Callable[..., subprocess.CompletedProcess[str]]
COMMAND = [sys.executable, "-m", "jetstream_client"]
IMPORTS_MAX = 400
"""Modules for a command that asks nobody, Python's own among them: 230 when this was written."""


@pytest.fixture
def environment(server: ServerProcess) -> dict[str, str]:
    return {**os.environ, "JETSTREAM_SERVERS": server.grpc}


@pytest.fixture
def process(environment: dict[str, str]) -> Run:
    """Run the command as a process; unless told otherwise it has to succeed."""

    def run(
        *arguments: str, code: int = 0, stdin: str | TextIO | None = None
    ) -> subprocess.CompletedProcess[str]:
        done = fork_server.run([*COMMAND, *arguments], environment=environment, given=stdin)
        return checked(done, code)

    return run


@pytest.fixture
def jetstream(server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the command within this process, which is many times quicker."""
    monkeypatch.setenv("JETSTREAM_SERVERS", server.grpc)

    def run(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        return checked(command.jetstream(*arguments), code)

    return run


def checked(done: subprocess.CompletedProcess[str], code: int) -> subprocess.CompletedProcess[str]:
    assert done.returncode == code, done
    assert "Traceback" not in done.stderr
    if code:
        assert re.fullmatch(r"(error: .*\n)?", done.stderr), done.stderr
    else:
        assert re.fullmatch(r"(note: .*\n)?", done.stderr), done.stderr
    return done


def objects(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_first_walk_through(process: Run) -> None:
    process("stream", "create", "orders", "--subject", "orders.>")
    published = process(
        "publish", "orders.eu", '{"id": 42}', "--key", "42", "--header", "source: web"
    )
    assert published.stdout == "stored in orders at offset 0\n"
    line = process("fetch", "orders").stdout
    assert re.fullmatch(
        r" +0  \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z  orders\.eu  42  \{\"id\": 42\}\n", line
    )
    process("stream", "delete", "orders", "--yes")
    assert "orders" not in process("stream", "list").stdout


def test_json_rows_carry_everything(jetstream: Run) -> None:
    created = objects(jetstream("stream", "create", "rows", "--subject", "rows.>", "--json"))
    assert created[0]["name"] == "rows"
    jetstream("publish", "rows.é", "ü", "--key", "k", "-H", "a:1", "-H", "a:2", "-H", "b:3")
    (row,) = objects(jetstream("fetch", "rows", "--json"))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:]{8}\.\d{6}Z", row.pop("timestamp"))
    assert row == {
        "offset": 0,
        "subject": "rows.é",
        "key": "k",
        "key_encoding": "utf8",
        "value": "ü",
        "value_encoding": "utf8",
        "headers": {"a": ["1", "2"], "b": "3", "Jetstream-Key": "k"},
    }


def test_describe_has_what_operators_ask_for(jetstream: Run) -> None:
    jetstream("stream", "create", "told", "--subject", "told.>", "--flush", "none")
    jetstream("publish", "told.x", "1", "--count", "5")
    (row,) = objects(jetstream("stream", "describe", "told", "--json"))
    for field, value in {
        "leader": 0,
        "isr": [0],
        "replicas": [0],
        "log_start_offset": 0,
        "high_watermark": 5,
        "log_end_offset": 5,
        "flush": "none",
        "state": "online",
    }.items():
        assert row[field] == value
    assert isinstance(row["leader_epoch"], int)
    shown = jetstream("stream", "describe", "told@told.>", "--all").stdout
    assert "high_watermark" in shown
    for field, nodes in (("leader", "node 0"), ("replicas", "node 0"), ("isr", "node 0")):
        assert re.search(rf"^{field} +{nodes}$", shown, re.MULTILINE), shown
    assert re.search(r"^duplicate_window +2m$", shown, re.MULTILINE)
    jetstream("stream", "create", "cleaned", "--subject", "cleaned.>", "--compact")
    lines = jetstream("stream", "describe", "cleaned", "--all").stdout.splitlines()
    told = {line.split()[0] for line in lines if line.startswith("compaction")}
    assert {"compaction_cleaned_to", "compaction_dirty_ratio", "compaction_ended_at"} <= told
    assert "compaction" not in told


def test_a_new_stream_says_who_stores_its_messages_too(server: ServerProcess) -> None:
    def created(name: str, subject: str, *options: str) -> str:
        create = ("stream", "create", name, "--subject", subject, *options)
        done = command.jetstream("--server", server.grpc, *create)
        assert done.returncode == 0, done
        return done.stderr

    assert created("twice", "twice.>") == ""
    assert created("twice", "twice.>") == ""
    assert created("eu", "twice.eu") == "note: twice (twice.>) stores these messages, too\n"
    assert created("each", "twice.*.>") == "note: twice (twice.>) stores these messages, too\n"
    assert created("part", "part.eu") == ""
    assert created("parts", "part.>") == "note: part (part.eu) stores some of these messages, too\n"
    assert created("a", "shared", "--group", "g") == ""
    assert created("b", "shared", "--group", "g") == ""
    for count in range(5):
        said = created(f"many{count}", "many.x")
    named = "many0 (many.x), many1 (many.x), many2 (many.x)"
    assert said == f"note: {named} and 1 more store these messages, too\n"


def test_lists_are_one_object_a_line_or_aligned_columns(jetstream: Run) -> None:
    for name in ("list-1", "list-2"):
        jetstream("stream", "create", name, "--subject", "list.>", "--group", "g")
    rows = objects(jetstream("stream", "list", "--feeding", "list.x", "--json"))
    assert [row["name"] for row in rows] == ["list-1", "list-2"]
    assert objects(jetstream("--json", "stream", "list", "--feeding", "list.x")) == rows
    head, first, _ = jetstream("stream", "list", "--feeding", "list.x").stdout.splitlines()
    assert head.split() == [
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
    assert head.index("SUBJECT") == first.index("list.>")


def test_values_come_from_arguments_or_stdin(
    jetstream: Run, process: Run, environment: dict[str, str]
) -> None:
    jetstream("stream", "create", "sources", "--subject", "sources.>")
    process("publish", "sources.x", "-")  # Of /dev/null, but it is asked for.
    process("publish", "sources.x", "-", "--whole", stdin="from\nstdin\n")
    binary = [*COMMAND, "publish", "sources.x", "--whole"]
    assert fork_server.run(binary, environment=environment, given=b"\xff\x00").returncode == 0
    jetstream("publish", "sources.x", "--", "--dashes")
    rows = objects(jetstream("fetch", "sources", "--json"))
    assert [(row["value"], row["value_encoding"]) for row in rows] == [
        ("", "utf8"),
        ("from\nstdin\n", "utf8"),
        ("/wA=", "base64"),
        ("--dashes", "utf8"),
    ]


def values_of(jetstream: Run, stream: str) -> list[str]:
    return [row["value"] for row in objects(jetstream("fetch", stream, "--json"))]


def test_each_line_of_a_pipe_is_a_record_and_a_file_is_one(
    jetstream: Run, process: Run, tmp_path: Path
) -> None:
    jetstream("stream", "create", "lines", "--subject", "lines.>")
    said = process("publish", "lines.x", "-", "--key", "k", stdin="one\n\nthree").stdout
    assert "stored in lines between offsets 0 and 2" in said
    assert values_of(jetstream, "lines") == ["one", "", "three"]
    many = "".join(f"{number:032}\n" for number in range(6_000))  # Read in several pieces.
    process("publish", "lines.x", "-", stdin=many)
    assert values_of(jetstream, "lines")[3:] == many.split()
    assert "nothing is stored" in process("publish", "lines.x", "-", stdin="").stdout
    assert "nothing is stored" in process("publish", "lines.x", stdin="").stdout
    file = tmp_path / "file"
    file.write_text("four\nfive\n")
    for option, expected in (((), ["four\nfive\n"]), (("--lines",), ["four", "five"])):
        with file.open() as source:
            process("publish", "lines.x", "-", *option, stdin=source)
        assert values_of(jetstream, "lines")[6_003:][-len(expected) :] == expected


def test_without_a_value_a_pipe_or_file_is_read_and_an_empty_value_is_one(
    jetstream: Run, process: Run, tmp_path: Path
) -> None:
    jetstream("stream", "create", "bare", "--subject", "bare.>")
    process("publish", "bare.x", stdin="one\ntwo\n")
    process("publish", "bare.x", "", stdin="unread\n")
    file = tmp_path / "file"
    file.write_text("three\nfour\n")
    with file.open() as source:
        process("publish", "bare.x", stdin=source)
    assert values_of(jetstream, "bare") == ["one", "two", "", "three\nfour\n"]


def test_without_a_value_and_an_input_nothing_is_stored(
    process: Run, environment: dict[str, str], tmp_path: Path
) -> None:
    process("stream", "create", "forgot", "--subject", "forgot.>")
    (tmp_path / "empty").touch()
    with (tmp_path / "empty").open() as empty:
        for stdin in (None, empty):
            refused = process("publish", "forgot.x", stdin=stdin, code=2)
            assert "error: say the value, or - to read standard input. See:" in refused.stderr
    assert "say the value" in on_a_terminal(["publish", "forgot.x", "--count", "2"], environment)
    assert process("fetch", "forgot").stdout == ""


@pytest.mark.parametrize(
    "option", [("--msg-id", "a"), ("--count", "2"), ("--expected-offset", "0")]
)
def test_what_is_of_one_record_is_refused_with_lines(
    jetstream: Run, process: Run, option: tuple[str, str]
) -> None:
    assert "--whole" in process("publish", "lines.x", "-", *option, stdin="a\nb\n", code=2).stderr
    assert "go with -" in jetstream("publish", "lines.x", "value", "--lines", code=2).stderr


def test_lines_are_stored_as_they_come_and_ctrl_c_ends_it(
    jetstream: Run, environment: dict[str, str]
) -> None:
    jetstream("stream", "create", "slow", "--subject", "slow.>")
    with fork_server.start(
        [*COMMAND, "publish", "slow.x", "-"],
        environment=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=False,
    ) as publishing:
        assert publishing.stdin is not None
        assert publishing.stderr is not None
        publishing.stdin.write(b"one\n")
        publishing.stdin.flush()
        deadline = time.monotonic() + 60
        while values_of(jetstream, "slow") != ["one"]:
            assert time.monotonic() < deadline
        publishing.send_signal(signal.SIGINT)
        assert publishing.wait(60) == 130
        assert publishing.stderr.read() == b""


def test_count_publishes_many(jetstream: Run) -> None:
    jetstream("stream", "create", "counted", "--subject", "counted.>")
    said = jetstream("publish", "counted.x", "v", "--count", "3000").stdout
    assert "stored in counted between offsets 0 and 2999" in said
    acks = objects(jetstream("publish", "counted.x", "v", "--count", "10", "--json"))
    assert sorted(ack["offset"] for ack in acks) == list(range(3000, 3010))
    assert {ack["stream"] for ack in acks} == {"counted"}


def test_what_was_stored_before_is_said_to_be_there_already(jetstream: Run) -> None:
    jetstream("stream", "create", "repeated", "--subject", "repeated.>")
    publish = ("publish", "repeated.x", "v", "--msg-id", "1")
    assert jetstream(*publish).stdout == "stored in repeated at offset 0\n"
    assert jetstream(*publish).stdout == "already in repeated at offset 0\n"
    said = jetstream("publish", "repeated.x", "v", "--msg-id", "2", "--count", "3").stdout
    assert said.startswith("stored in repeated between offsets 1 and 1, 2 of them already\n")


def test_fetch_takes_offsets_bounds_and_times(jetstream: Run) -> None:
    jetstream("stream", "create", "ranges", "--subject", "ranges.>")
    jetstream("publish", "ranges.x", "v", "--count", "20")
    offsets = lambda *options: [  # noqa: E731
        row["offset"] for row in objects(jetstream("fetch", "ranges", "--json", *options))
    ]
    assert offsets() == list(range(20))
    assert offsets("--offset", "17") == [17, 18, 19]
    assert offsets("--offset", "3", "--max", "4") == [3, 4, 5, 6]
    assert offsets("--max", "2") == [0, 1]
    assert offsets("--offset", "latest") == []
    assert offsets("--offset", "2020-01-01T00:00:00Z", "--max", "1") == [0]
    assert offsets("--offset", "20") == []
    odd = "note: ranges takes ranges.>: nothing fits range.>\n"
    found = jetstream("fetch", "ranges", "--filter", "range.>")
    assert (found.stdout, found.stderr) == ("", odd)
    for fitting in ("*.y", "ranges.x"):
        assert jetstream("fetch", "ranges", "--filter", fitting).stderr == ""


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ("stream describe nowhere", 3, "nowhere"),
        ("stream delete nowhere --yes", 3, "nowhere"),
        ("fetch nowhere", 3, "nowhere"),
        ("publish void.x hello", 3, "no stream listens on 'void.x'"),
        ("publish a.* hello", 2, "wildcard"),
        ("stream create bad/name --subject x", 2, "invalid stream name"),
        ("stream list --server 127.0.0.1:1 --timeout 0.3", 4, "cannot reach 127.0.0.1:1"),
        ("--server 127.0.0.1:1 fetch x --timeout 0.3", 4, "cannot reach 127.0.0.1:1"),
        ("stream create x --subject x --server no.invalid --timeout 1", 4, "name is not known"),
    ],
)
def test_failures_are_one_line_with_an_exit_code(
    jetstream: Run, arguments: str, code: int, says: str
) -> None:
    done = jetstream(*arguments.split(), code=code)
    assert says in done.stderr
    assert done.stdout == ""


def test_other_failures_too(jetstream: Run) -> None:
    jetstream("stream", "create", "mine", "--subject", "mine.>")
    done = jetstream("stream", "create", "mine", "--subject", "mine.>", "--flush", "none", code=1)
    assert "another configuration" in done.stderr
    assert "it is empty" in jetstream("fetch", "mine", "--offset", "99999999", code=1).stderr
    done = jetstream("stream", "create", "mine", "--subject", "mine.x", code=1)
    assert "--allow-same-name" in done.stderr
    done = jetstream("stream", "create", "wide", "--subject", ">", code=2)
    assert "create it with --acks off" in done.stderr
    jetstream("stream", "create", "mine", "--subject", "mine.x", "--allow-same-name")
    assert "mine@mine.>" in jetstream("fetch", "mine", code=1).stderr


def test_follow_prints_what_comes_until_ctrl_c(jetstream: Run, environment: dict[str, str]) -> None:
    jetstream("stream", "create", "followed", "--subject", "followed.>")
    jetstream("publish", "followed.x", "before")
    with fork_server.start(
        [*COMMAND, "fetch", "followed", "--follow", "--json"],
        environment=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as follower:
        assert follower.stdout is not None
        assert follower.stderr is not None
        assert json.loads(follower.stdout.readline())["value"] == "before"
        jetstream("publish", "followed.x", "after")
        assert json.loads(follower.stdout.readline())["value"] == "after"
        follower.send_signal(signal.SIGINT)
        assert follower.wait(60) == 130
        assert follower.stderr.read() == ""


def test_follow_outlasts_a_time_without_a_server(own_server: ServerProcess) -> None:
    own_server.start()
    with Client(own_server.grpc, timeout=60) as client:
        client.create_stream("away", "away.>")
        client.publish("away.x", "1")
    command = [*COMMAND, "fetch", "away", "--follow", "--json", "--timeout", "1"]
    with fork_server.start(
        [*command, "--server", own_server.grpc], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as follower:
        assert follower.stdout is not None
        assert follower.stderr is not None
        assert json.loads(follower.stdout.readline())["value"] == "1"
        own_server.kill()
        assert follower.stderr.readline().startswith("waiting for a server: ")
        time.sleep(2.5)  # Several attempts.
        own_server.start()
        with Client(own_server.grpc, timeout=60) as client:
            client.publish("away.x", "2")
        row = json.loads(follower.stdout.readline())
        assert (row["offset"], row["value"]) == (1, "2")
        follower.send_signal(signal.SIGINT)
        assert follower.wait(60) == 130
        said = follower.stderr.read().splitlines()  # Again, if the machine stood still.
        assert all(line.startswith("waiting for a server: ") for line in said)


def test_follow_stops_at_max(jetstream: Run) -> None:
    jetstream("stream", "create", "enough", "--subject", "enough.>")
    jetstream("publish", "enough.x", "v", "--count", "5")
    rows = objects(jetstream("fetch", "enough", "--follow", "--max", "3", "--json"))
    assert [row["offset"] for row in rows] == [0, 1, 2]


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_leaves_ends_it_quietly(
    jetstream: Run, environment: dict[str, str], unbuffered: str
) -> None:
    jetstream("stream", "create", "piped", "--subject", "piped.>")
    jetstream("publish", "piped.x", "v" * 100, "--count", "3000")
    with subprocess.Popen(
        [*COMMAND, "fetch", "piped"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**environment, "PYTHONUNBUFFERED": unbuffered},
    ) as fetching:
        assert fetching.stdout is not None
        assert fetching.stderr is not None
        fetching.stdout.readline()
        fetching.stdout.close()
        assert fetching.wait(60) == 141
        assert fetching.stderr.read() == b""


def test_a_full_disk_is_an_error_not_a_traceback(
    jetstream: Run, environment: dict[str, str]
) -> None:
    jetstream("stream", "create", "spilled", "--subject", "spilled.>")
    jetstream("publish", "spilled.x", "v" * 100, "--count", "1000")
    with open("/dev/full", "w") as full:
        fetch = [*COMMAND, "fetch", "spilled"]
        with fork_server.start(
            fetch, environment=environment, stdout=full, stderr=subprocess.PIPE
        ) as fetching:
            assert fetching.stderr is not None
            assert fetching.stderr.read() == "error: No space left on device\n"
    assert fetching.returncode == 1


@pytest.mark.parametrize(
    ("redirected", "code"),
    [
        ("stream list >&-", 0),
        ("stream list >&- 2>&-", 0),
        ("stream delete nowhere <&-", 2),
        ("stream delete nowhere --yes <&-", 3),
        ("publish a.b - <&-", 2),
    ],
)
def test_closed_standard_streams_are_no_error_of_ours(
    environment: dict[str, str], redirected: str, code: int
) -> None:
    script = f'"$0" -m jetstream_client {redirected}'
    done = subprocess.run(
        ["sh", "-c", script, sys.executable],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env=environment,
        timeout=60,
    )
    assert done.returncode == code, done
    assert "Traceback" not in done.stderr


def test_an_output_that_lacks_a_letter_gets_an_escape(
    jetstream: Run, environment: dict[str, str]
) -> None:
    jetstream("stream", "create", "letters", "--subject", "letters.>")
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    for arguments in (["publish", "letters.x", "é", "--key", "ü"], ["fetch", "letters"]):
        done = subprocess.run(
            [*COMMAND, *arguments], env=environment | ascii_only, capture_output=True, timeout=60
        )
        assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.endswith(rb"letters.x  \xfc  \xe9" + b"\n")
    assert jetstream("fetch", "letters").stdout.endswith("ü  é\n")


def on_a_terminal(
    arguments: list[str],
    environment: dict[str, str],
    typed: bytes = b"",
    *,
    columns: int = 100,
    stdout: Stream | None = None,
) -> str:
    """What the command prints when it thinks that a person is watching. stdout: where else its
    standard output goes."""
    primary, secondary = pty.openpty()
    with fork_server.start(
        [*COMMAND, *arguments],
        environment={**environment, "TERM": "xterm", "COLUMNS": str(columns)},
        stdin=secondary,
        stdout=secondary if stdout is None else stdout,
        stderr=secondary,
    ) as process:
        os.close(secondary)
        os.write(primary, typed)
        shown = b""
        while True:
            try:
                chunk = os.read(primary, 4096)
            except OSError:  # Linux says EIO when the last process has closed the terminal.
                break
            shown += chunk
        process.wait(60)
    os.close(primary)
    return shown.decode()


def test_on_a_terminal_deleting_asks_first(jetstream: Run, environment: dict[str, str]) -> None:
    jetstream("stream", "create", "asked", "--subject", "asked.>")
    shown = on_a_terminal(["stream", "delete", "asked"], environment, b"n\n")
    assert shown.endswith("not deleted\r\n")
    assert "asked" in jetstream("stream", "list").stdout
    delete = ["stream", "delete", "asked"]
    assert "?" in on_a_terminal(delete, environment, b"n\n", stdout=subprocess.DEVNULL)
    assert "asked" in jetstream("stream", "list").stdout
    on_a_terminal(delete, environment, b"y\n")
    assert "asked" not in jetstream("stream", "list").stdout


def test_removing_a_rule_shows_it_and_asks_first(
    jetstream: Run, environment: dict[str, str]
) -> None:
    def added(*arguments: str) -> str:
        return str(objects(jetstream("acl", "add", "user:ann", *arguments, "--json"))[0]["id"])

    reads = added("--allow", "read", "--stream", "o", "--subject", ">")
    shown = on_a_terminal(["acl", "remove", reads], environment, b"n\n")
    assert f"Remove rule {reads} (user:ann, allow read on streams o on >)? [y/N]:" in shown
    assert "No other rule" not in shown
    assert shown.endswith("not removed\r\n")
    rules = added("--allow", "security_alter", "--cluster")
    alone = "No other rule lets anybody change rules and tokens. Remove"
    assert alone in on_a_terminal(["acl", "remove", rules], environment, b"n\n")
    other = added("--allow", "all", "--cluster")
    assert alone not in on_a_terminal(["acl", "remove", rules], environment, b"y\n")
    assert "--yes" in jetstream("acl", "remove", other, code=2).stderr
    for rule in (reads, other):
        jetstream("acl", "remove", rule, "--yes")
    assert "user:ann" not in jetstream("acl", "list").stdout


def test_a_tested_right_says_that_security_is_off(jetstream: Run) -> None:
    assert jetstream("acl", "test", "cluster_alter", code=1).stdout == (
        "denied, no rule allows it\n"
        "security is off: nothing is checked now; with it on, this would be denied\n"
    )
    (row,) = objects(jetstream("acl", "test", "cluster_alter", "--json", code=1))
    assert (row["allowed"], row["enforced"]) == (False, False)


@pytest.mark.parametrize(
    "arguments",
    [
        ("stream", "delete", "kept"),
        ("stream", "purge", "kept"),
        ("cursor", "delete", "reader", "kept"),
    ],
)
def test_without_a_terminal_what_removes_data_needs_yes(
    process: Run, server: ServerProcess, arguments: tuple[str, ...]
) -> None:
    with Client(server.grpc, timeout=60) as client:
        client.create_stream("kept", "kept.>")
        client.publish("kept.x", "1")
        client.seek_cursor("reader", "kept", "latest")
        refused = process(*arguments, code=2)
        assert "add --yes" in refused.stderr
        assert client.describe_stream("kept").log_start_offset == 0
        assert client.describe_cursor("reader", "kept").offset == 1
        process(*arguments, "--yes")
        with suppress(StreamNotFoundError):
            client.delete_stream("kept")


def test_on_a_terminal_tables_are_for_people(jetstream: Run, environment: dict[str, str]) -> None:
    jetstream("stream", "create", "shown", "--subject", "shown.>")
    shown = on_a_terminal(["stream", "list"], environment)
    assert "\x1b[1m" in shown
    assert re.search(r"shown +shown\.>", shown)


@pytest.mark.parametrize("columns", [30, 75, 90, 200])
def test_on_a_narrow_terminal_headings_and_numbers_stay_whole(
    jetstream: Run, environment: dict[str, str], columns: int
) -> None:
    subject = "narrow." + "x" * 60
    jetstream("stream", "create", "narrow", "--subject", subject)
    listing = ["stream", "list", "--feeding", subject]
    shown = on_a_terminal(listing, environment, columns=columns)
    words = re.sub(r"\x1b\[\d*m", "", shown).split()
    assert {"SUBJECT", "REPLICAS", "STATE", "narrow", "1/1"} <= set(words)
    assert (subject in words) is (columns in (30, 200))  # Else it is folded.
    jetstream("stream", "delete", "narrow", "--yes")


def test_what_was_mistyped_or_is_not_there_is_said(jetstream: Run) -> None:
    jetstream("stream", "create", "invoices", "--subject", "invoices.>")
    jetstream("publish", "invoices.eu", "one")
    for words in (["fetch", "Invoces"], ["stream", "delete", "invoice", "--yes"]):
        assert "did you mean 'invoices'?" in jetstream(*words, code=3).stderr
    assert "mean" not in jetstream("fetch", "unlike-any-other", code=3).stderr
    listed = jetstream("cursor", "list", "--stream", "invoices")
    assert (listed.stderr, listed.stdout.count("\n")) == ("note: no cursors\n", 1)
    assert not jetstream("cursor", "list", "--stream", "invoices", "--json").stderr
    for source in ("--from-jetstream=", "--from-kafka=", "--from-jetstream=\udcff"):
        assert jetstream("import", "copy", source, code=2).stderr.count("\n") == 1


def test_fetch_ends_with_what_is_there_wherever_it_is_to_stop(jetstream: Run) -> None:
    jetstream("stream", "create", "short", "--subject", "short")
    jetstream("publish", "short", "one")
    for end in ("1", "2", str(2**63 - 1), "2100-01-01"):
        assert jetstream("fetch", "short", "--to", end).stdout.count("\n") == 1


def test_without_a_terminal_it_says_which_options_there_are(jetstream: Run) -> None:
    done = jetstream("cursor", "delete", "nobody", "nowhere", code=2)
    assert "--yes" in done.stderr
    assert "--dry-run" not in done.stderr
    with pytest.raises(options.UsageError, match="--yes, or --dry-run"):
        options.confirm("?", "no", yes=False, dry_run=True)


@pytest.fixture(scope="module")
def rotten(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with a stream `kept` of ten records, one of which its disk has lost."""
    server = ServerProcess(tmp_path_factory.mktemp("rotten") / "data").start()
    try:
        with Client(server.grpc, timeout=60) as client:
            client.create_stream("kept", "kept.>")
            for _ in range(10):
                client.publish("kept.x", bytes(200))
        (segment,) = server.data.glob("streams/*/*.log")
        data = bytearray(segment.read_bytes())
        data[len(data) * 6 // 10] ^= 1
        segment.write_bytes(data)
        yield server
    finally:
        server.kill()


def test_logs_are_examined_offline(jetstream: Run, own_server: ServerProcess) -> None:
    own_server.start()
    target = ("--server", own_server.grpc)
    jetstream("stream", "create", "kept", "--subject", "kept.>", *target)
    jetstream("publish", "kept.x", "value", "--key", "k", "--count", "10", *target)
    own_server.stop()

    assert jetstream("log", "verify", str(own_server.data)).stdout.endswith(": sound\n")
    batches = objects(jetstream("log", "dump", str(own_server.data), "--json"))
    assert sum(batch["records"] for batch in batches) == 10
    assert batches[0]["base_offset"] == 0
    assert batches[-1]["last_offset"] == 9
    rows = objects(jetstream("log", "dump", str(own_server.data), "--records"))
    assert [row["offset"] for row in rows] == list(range(10))
    assert (rows[0]["key"], rows[0]["value"], rows[0]["subject"]) == ("k", "value", "kept.x")
    assert "BASE_OFFSET" in jetstream("log", "dump", str(own_server.data)).stdout

    (segment,) = Path(own_server.data).glob("streams/*/*.log")
    data = bytearray(segment.read_bytes())
    data[100] ^= 1
    segment.write_bytes(data)
    damage = jetstream("log", "verify", str(own_server.data), "--json", code=6)
    found = [(row["file"], row["position"], row["repairable"]) for row in objects(damage)]
    assert (str(segment), 0) in [(file, position) for file, position, _ in found]
    assert "KIND" in jetstream("log", "verify", str(segment), code=6).stdout
    jetstream("log", "dump", str(segment), "--records", code=6)


@pytest.mark.parametrize("count", ["--max=9", "--max=1000", "--timeout=10"])
def test_what_a_disk_has_lost_is_named_and_what_is_before_it_is_printed(
    jetstream: Run, rotten: ServerProcess, count: str
) -> None:
    fetched = ("fetch", "kept", "--json", "--from", "0", count, "--server", rotten.grpc)
    done = jetstream(*fetched, code=1)
    offsets = [row["offset"] for row in objects(done)]
    assert offsets == list(range(len(offsets)))
    assert 0 < len(offsets) < 9
    assert re.search(
        rf"node 0 has lost offsets {len(offsets)} to (\d+) of stream 'kept' to its disk: "
        r".*reading can continue from offset \d+",
        done.stderr,
    )


def test_a_file_of_json_lines_that_becomes_one_record_is_noted(
    jetstream: Run, environment: dict[str, str], tmp_path: Path
) -> None:
    jetstream("stream", "create", "jsonl", "--subject", "jsonl")
    said = []
    for number, text in enumerate(['{"a": 1}\n{"a": 2}\n', '{\n  "a": 1\n}\n', '{"a": 1}\n']):
        path = tmp_path / f"{number}.json"
        path.write_text(text)
        for words in [], ["--whole"], ["--lines"]:
            with open(path, "rb") as file:
                command = [*COMMAND, "publish", "jsonl", *words]
                done = fork_server.run(command, environment=environment, given=file)
            assert done.returncode == 0, done
            said.append("note: the whole file is one record" in done.stderr)
    assert said == [True] + [False] * 8


def test_a_path_without_a_log_is_wrong_usage(jetstream: Run, tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("hello")
    assert "neither" in jetstream("log", "verify", str(tmp_path), code=2).stderr
    assert (
        "is not a segment" in jetstream("log", "dump", str(tmp_path / "letter.txt"), code=2).stderr
    )


def test_it_starts_with_few_imports(environment: dict[str, str]) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "jetstream_client", "--version"]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    imported = [line.rpartition("|")[2].strip() for line in done.stderr.splitlines()]
    assert "typer" in imported
    assert not {"grpc", "nats", "pyarrow", "duckdb"} & set(imported)
    assert len(imported) < IMPORTS_MAX


@pytest.mark.parametrize(
    "data",
    [
        b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n1 0 obj\n",
        b"PK\x03\x04\x14\x00\n\n",
        b"one\ntwo\n\0\n",
        "zwölf\n".encode("utf-16"),
        "zwölf\n".encode("latin-1"),
    ],
)
def test_what_is_piped_and_no_text_is_not_cut_at_its_line_ends(
    jetstream: Run, environment: dict[str, str], name: str, data: bytes
) -> None:
    stream = re.sub(r"\W", "", name)[-30:] + os.urandom(4).hex()
    jetstream("stream", "create", stream, "--subject", stream)

    def publish(*words: str) -> subprocess.CompletedProcess[bytes]:
        command = [*COMMAND, "publish", stream, *words]
        return fork_server.run(command, environment=environment, given=data, text=False)

    for words in [], ["-"]:
        done = publish(*words)
        assert done.returncode == 2, done
        assert b"say --whole if all of it is one record" in done.stderr
    assert not objects(jetstream("fetch", stream, "--json")), "nothing is stored"
    assert publish("--whole").returncode == 0
    assert publish("--lines").returncode == 0
    found = [
        base64.b64decode(row["value"])
        if row["value_encoding"] == "base64"
        else row["value"].encode()
        for row in objects(jetstream("fetch", stream, "--json"))
    ]
    assert found == [data, *data.removesuffix(b"\n").split(b"\n")]


def test_what_is_piped_in_pieces_of_characters_is_text(
    jetstream: Run, environment: dict[str, str]
) -> None:
    jetstream("stream", "create", "pieces", "--subject", "pieces")
    with fork_server.start(
        [*COMMAND, "publish", "pieces"],
        environment=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=2,
        text=False,
    ) as process:
        assert process.stdin is not None
        for piece in b"one \xc3", b"\xbc\ntwo \xe2\x82", b"\xac\n":
            process.stdin.write(piece)
            process.stdin.flush()
            time.sleep(0.5)
        process.stdin.close()
        assert process.wait(60) == 0
    rows = objects(jetstream("fetch", "pieces", "--json"))
    assert [row["value"] for row in rows] == ["one ü", "two €"]
