"""`jetstream dead-letter`: what `process` could not handle is listed, shown, published again and
dropped."""

from __future__ import annotations

import json

import pytest

from jetstream_client import Client, Message
from jetstream_client.cli import options
from jetstream_client.cli.main import run as run_here
from jetstream_client.processing.outputs import DeadLetter, read_dead_letter
from tests.support.command import jetstream
from tests.support.server import ServerProcess

ODD_KEY = b"\xff\x00key"
"""A header cannot carry it as text."""


def fail_two(client: Client, name: str) -> None:
    """A stream `name` of three records on two subjects; two of them are dead letters."""
    client.create_stream(name, f"{name}.>")
    client.create_stream(f"{name}-dead", f"dead.{name}")
    client.publish(f"{name}.eu", b"bad", key=ODD_KEY, headers={"n": ["1", "2"]})
    client.publish(f"{name}.eu", b"good")
    client.publish(f"{name}.us", None, key=b"k")

    def handler(message: Message) -> None:
        if message.value != b"good":
            raise ValueError(f"no {message.offset}")

    done = client.process(
        name, handler, cursor="billing", stop="latest", retries=0, dead_letter=f"dead.{name}"
    )
    assert (done.records, done.dead_letters) == (1, 2)


def run(server: ServerProcess, *arguments: str, code: int = 0) -> str:
    done = jetstream("dead-letter", *arguments, "--server", server.grpc)
    assert done.returncode == code, done
    return done.stdout if code == 0 else done.stderr


def rows(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


def test_dead_letters_are_listed_shown_retried_and_dropped(
    server: ServerProcess, client: Client
) -> None:
    fail_two(client, "dl")
    client.publish("dead.dl", b"nobody's")
    newest, oldest = rows(run(server, "list", "dl-dead", "--json"))
    assert (newest["offset"], newest["record_offset"], newest["subject"]) == (1, 2, "dl.us")
    assert (oldest["offset"], oldest["record_offset"], oldest["subject"]) == (0, 0, "dl.eu")
    assert (oldest["process"], oldest["attempts"]) == ("billing", 1)
    assert (oldest["error"], oldest["error_message"]) == ("builtins.ValueError", "no 0")
    assert len(rows(run(server, "list", "dl-dead", "--json", "--max", "1"))) == 1
    assert rows(run(server, "list", "dl-dead", "--json", "--process", "other")) == []
    heading, first, second = run(server, "list", "dl-dead").splitlines()
    assert heading.split() == [
        "OFFSET",
        "RECORD",
        "SUBJECT",
        "PROCESS",
        "ATTEMPTS",
        "ERROR",
        "MESSAGE",
    ]
    assert first.split()[:4] == ["1", "dl", "2", "dl.us"]
    assert second.endswith("ValueError  no 0")

    shown = run(server, "show", "dl-dead", "0")
    assert "record     dl@dl.> 0\n" in shown
    assert "headers    n: 1, n: 2\n" in shown
    assert shown.endswith("value\n  bad\n")
    assert "(tombstone)" in run(server, "show", "dl-dead", "1")

    said = run(server, "retry", "dl-dead", "0", "1")
    assert said == "0: stored in dl at offset 3\n1: stored in dl at offset 4\n"
    again, tombstone = client.fetch("dl", 3)
    assert (again.subject, again.key, again.value) == ("dl.eu", ODD_KEY, b"bad")
    assert [text for name, text in again.headers.multi_items() if name == "n"] == ["1", "2"]
    assert not [name for name, _ in again.headers.multi_items() if name.startswith("Dead-")]
    assert (tombstone.subject, tombstone.key, tombstone.value) == ("dl.us", b"k", None)
    repeated = rows(run(server, "retry", "dl-dead", "--all", "--yes", "--json"))
    assert [(row["dead_letter"], row["offset"], row["duplicate"]) for row in repeated] == [
        (0, 3, True),
        (1, 4, True),
    ]

    assert run(server, "drop", "dl-dead", "--all", "--yes").endswith("of dl-dead is 3 now\n")
    assert rows(run(server, "list", "dl-dead", "--json")) == []
    assert run(server, "retry", "dl-dead", "--all", "--yes") == "there is nothing to retry\n"


def test_what_is_wrong_changes_nothing(server: ServerProcess, client: Client) -> None:
    fail_two(client, "dw")
    client.publish("dead.dw", b"nobody's", headers={"Dead-Letter-Stream": "dw"})
    for arguments, code, text in (
        (["retry", "dw-dead"], 2, "say the offsets of dead letters, or --all"),
        (["retry", "dw-dead", "0", "--all"], 2, "say the offsets of dead letters, or --all"),
        (["retry", "dw-dead", "0", "--process", "billing"], 2, "--process goes with --all"),
        (["retry", "dw-dead", "0", "2"], 2, "offset 2 of dw-dead is no dead letter"),
        (["show", "dw-dead", "2"], 2, "it lacks the headers"),
        (["show", "dw-dead", "9"], 1, "offset 9"),
        (["drop", "dw-dead"], 2, "say --before POSITION, or --all"),
        (["drop", "dw-dead", "--all", "--before", "1"], 2, "say --before POSITION, or --all"),
        (["list", "dw-none"], 3, "dw-none"),
    ):
        assert text in run(server, *arguments, code=code)
    assert [message.value for message in client.fetch("dw")] == [b"bad", b"good", None]
    assert len(client.fetch("dw-dead")) == 3


def test_a_question_names_the_subjects_and_no_is_no(
    server: ServerProcess, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_two(client, "dq")
    asked = []
    monkeypatch.setattr(options, "on_terminal", lambda: True)
    monkeypatch.setattr("typer.confirm", lambda question, err: asked.append(question))
    assert run(server, "retry", "dq-dead", "--all", code=130) == "not retried\n"
    assert asked == ["Publish the dead letters of dq-dead again on dq.eu, dq.us?"]
    assert len(client.fetch("dq")) == 3


def test_what_comes_while_the_question_is_answered_is_left_alone(
    server: ServerProcess, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be on a subject that the question does not name."""
    fail_two(client, "later")
    client.create_stream("unnamed", "unnamed.>")
    letter = next(iter(client.fetch("later-dead", 0, max_messages=1)))
    headers = {name: letter.headers[name] for name in letter.headers if "Dead-Letter" in name}
    headers["Dead-Letter-Subject"] = "unnamed.x"

    def confirm(question: str, *_: object, **__: object) -> None:
        assert "unnamed" not in question
        client.publish("dead.later", b"later", headers=headers)

    monkeypatch.setattr(options, "confirm", confirm)
    assert run_here(["dead-letter", "retry", "later-dead", "--all", "--server", server.grpc]) == 0
    assert list(client.fetch("unnamed", 0)) == []
    assert len(list(client.fetch("later", 3))) == 2


def test_a_letter_that_is_no_copy_of_the_record_it_names_is_not_retried(
    server: ServerProcess, client: Client
) -> None:
    """Who may publish dead letters could have a retry publish anything anywhere."""
    fail_two(client, "df")
    client.create_stream("victim", "victim.>")
    client.publish("victim.x", b"theirs")
    true = next(iter(client.fetch("df-dead", 0, max_messages=1)))
    headers: dict[str, str | list[str]] = {
        name: [text for other, text in true.headers.multi_items() if other == name]
        for name in true.headers
        if not name.startswith("Nats-")
    }
    victim: dict[str, str | list[str]] = {
        "Dead-Letter-Stream": "victim@victim.>",
        "Dead-Letter-Stream-Id": str(client.describe_stream("victim").id),
        "Dead-Letter-Offset": "0",
        "Dead-Letter-Subject": "victim.x",
    }
    forged: dict[str, dict[str, str | list[str]]] = {
        "another subject": {"Dead-Letter-Subject": "victim.x"},
        "another value": victim,
        "more headers": {"n": ["1", "2", "3"]},
        "no such offset": {"Dead-Letter-Offset": "99"},
        "another stream of that name": {"Dead-Letter-Stream-Id": "999"},
        "no such stream": {"Dead-Letter-Stream": "none@none.>"},
    }
    for what, changed in forged.items():
        value = b"forged" if what == "another value" else b"bad"
        client.publish("dead.df", value, headers=headers | changed)
    said = run(server, "retry", "df-dead", "--all", "--yes", code=1)
    assert said.count(": not retried: record ") == len(forged)
    assert [each.value for each in client.fetch("victim")] == [b"theirs"]
    assert len(client.fetch("df")) == 3 + 2, "the true ones are"
    assert "is another one" in run(server, "retry", "df-dead", "3", code=1)
    run(server, "retry", "df-dead", "3", "--unverified")
    assert [each.value for each in client.fetch("victim")] == [b"theirs", b"forged"]


def test_a_dead_letter_that_failed_again_is_read_by_its_newest_headers(
    server: ServerProcess, client: Client
) -> None:
    fail_two(client, "da")
    client.create_stream("da-dead-2", "deader.da")

    def handler(message: Message) -> None:
        raise KeyError("still")

    client.process(
        "da-dead", handler, cursor="again", stop="latest", retries=0, dead_letter="deader.da"
    )
    letters = [read_dead_letter(message) for message in client.fetch("da-dead-2")]
    assert all(isinstance(letter, DeadLetter) for letter in letters)
    first = letters[0]
    assert first is not None
    assert (first.process, first.subject, first.record_offset) == ("again", "dead.da", 0)
    assert (first.error, first.headers) == ("builtins.KeyError", {"n": ["1", "2"]})
