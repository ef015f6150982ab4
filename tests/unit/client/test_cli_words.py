"""What people say who know other tools: words for commands, options in front, ages and sizes."""

from __future__ import annotations

import shlex
from datetime import timedelta
from typing import Any

import pytest
from typer.main import get_command

from jetstream_client.cli.exits import Exit
from jetstream_client.cli.main import app, run
from jetstream_client.cli.suggestions import _PHRASES, _WORDS
from jetstream_client.cli.units import age_text, size_text
from jetstream_server.security.acl import check_subject_given


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("rm orders", "stream delete"),
        ("info orders", "stream describe"),
        ("stream info", "stream describe"),
        ("cluster info", "cluster status"),
        ("tail orders", "fetch --follow"),
        ("ls", "stream list"),
        ("add orders", "stream create"),
        ("stream add orders", "stream create"),
        ("pub orders.eu x", "publish"),
        ("consume orders", "fetch"),
        # rpk
        ("topic list", "stream list"),
        ("topic create orders -p 3", "stream create"),
        ("topic describe orders", "stream describe"),
        ("topic delete orders", "stream delete"),
        ("topic alter-config orders --set a=b", "stream alter"),
        ("topic add-partitions orders -n 1", "stream create-group"),
        ("topic trim-prefix orders", "stream purge"),
        ("topic produce orders", "publish"),
        ("topic consume orders", "fetch"),
        ("topic", "stream"),
        ("cluster partitions list", "stream list"),
        ("cluster metadata", "cluster status"),
        ("cluster describe", "cluster status"),
        ("brokers", "cluster status"),
        ("describe orders", "stream describe"),
        ("cluster config edit", "cluster alter"),
        ("cluster settings", "cluster alter"),
        ("elect", "stream elect"),
        ("activity", "cluster record-activity"),
        ("move orders", "stream reassign"),
        ("cluster maintenance enable 1", "node drain"),
        ("cluster self-test start", "bench"),
        ("security acl list", "acl"),
        ("security user create me", "token create"),
        ("profile use prod", "context use"),
        ("profile create prod", "context add"),
        ("version", "--version"),
        # nats
        ("stream report", "stream list"),
        ("stream view orders", "fetch"),
        ("stream get orders 1", "fetch"),
        ("stream edit orders", "stream alter"),
        ("stream seal orders", "stream readonly"),
        ("stream find", "stream list --feeding"),
        ("consumer add orders a", "consumer create"),
        ("consumer info orders a", "consumer describe"),
        ("consumer next orders a", "fetch"),
        ("server check", "cluster health"),
        ("server list", "cluster status"),
        ("rtt", "cluster health"),
        ("node list", "cluster status"),
        ("node undrain 1", "node drain --undo"),
        ("account info", "acl list"),
        ("context select prod", "context use"),
        ("sub 'orders.>'", "fetch"),
        ("backup orders", "stream backup"),
        ("restore orders", "stream restore"),
        ("latency", "bench latency"),
        # kafka-*.sh
        ("topics", "stream list"),
        ("consumer-groups --list", "group list"),
        ("reset-offsets", "group seek"),
        ("help", "--help"),
    ],
)
def test_a_word_of_another_tool_is_answered_with_ours(
    said: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(said.split()) == Exit.USAGE
    error = capsys.readouterr().err
    assert f" {meant}'? See: " in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        ("-b localhost:9092 -L", "say -s, or --server"),
        ("-C -t orders", " fetch STREAM"),
        ("-P -t orders", " publish SUBJECT"),
        ("-L", " stream list"),
        ("-Q -t orders:0:1", "--from TIME"),
        ("--list --bootstrap-server a:9092", " stream list"),
        ("--describe --topic orders", " stream describe STREAM"),
        ("--create --topic orders", " stream create NAME --subject SUBJECT"),
        ("--reset-offsets --group g", " group seek GROUP --to POSITION"),
        ("stream list --bootstrap-server a:9092", "say --server"),
        ("stream list -X brokers=a:9092", "say --server"),
        ("fetch --topic orders", "the stream is an argument"),
        ("fetch orders --from-beginning", "say --from earliest"),
        ("fetch orders --max-messages 3", "say --max"),
        ("fetch orders -c 3", "say -n, or --max"),
        ("fetch orders -e", "it ends with the last record"),
        ("fetch orders -J", "say --json"),
        ("fetch orders -p 0", "a stream is one partition"),
        ("fetch orders --group g", " group --help"),
        ("fetch orders --since 1h", "say --from, as in --from 1h"),
        (r"fetch orders -f %s\n", "a format is --format, and -f is --follow"),
        ("fetch orders --from beginning", "say earliest"),
        ("fetch orders --from end", "say latest"),
        ("publish --topic orders x", " publish SUBJECT VALUE"),
        ("publish orders -l", "say --lines"),
        ("stream create o --partitions 3", " stream create-group"),
        ("stream create o --replication-factor 3", "say --replicas"),
        ("stream create o --config retention.ms=1", "settings are options"),
        ("stream create o --dupe-window 2m", "say --duplicate-window"),
        ("stream alter o --retention 3d", "say --max-age"),
        ("stream alter o --replicas 3", " stream reassign STREAM --replicas"),
        ("stream list --sort bytes", " top"),
        ("stream purge o --keep 10", "say --before -N"),
        ("stream transfer-leader o --to 2", " stream transfer-leader STREAM NODE"),
        ("stream restore ./o --name p", " stream restore FOLDER NAME"),
        ("export o o.parquet", "say --output FILE"),
        ("cursor seek billing o --to 3", " cursor seek CURSOR STREAM POSITION"),
    ],
)
def test_an_option_of_another_tool_is_answered_with_ours(
    said: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(said.split()) == Exit.USAGE
    error = capsys.readouterr().err
    assert hint in error
    assert error.count("\n") == 1


def test_every_command_that_is_suggested_exists() -> None:
    root = get_command(app)
    for meant in [*_PHRASES.values(), *_WORDS]:
        found: Any = root
        for word in meant.split():
            if word.startswith("-"):
                break
            assert word in found.commands, meant
            found = found.commands[word]


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ("stream ls", "stream list"),
        ("stream rm", "stream delete"),
        ("cursor ls", "cursor list"),
        ("cursor rm", "cursor delete"),
        ("group ls", "group list"),
        ("group rm", "group delete"),
        ("context ls", "context list"),
        ("context rm", "context remove"),
        ("token ls", "token list"),
        ("token rm", "token revoke"),
        ("acl ls", "acl list"),
        ("acl rm", "acl remove"),
        ("voters ls", "voters list"),
    ],
)
def test_a_short_name_is_the_command(
    short: str, long: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = []
    for words in (short, long):
        assert run([*words.split(), "--help"]) == Exit.OK
        shown.append(capsys.readouterr().out.partition("Options:")[0].partition("\n\n")[2])
    assert shown[0] == shown[1] != ""


def test_a_slip_of_the_keys_is_answered_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["stream", "lst"]) == Exit.USAGE
    assert "Did you mean 'list'? See: " in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        "--server 127.0.0.1:1 --timeout 0.2 stream list",
        "--server 127.0.0.1:1 stream --timeout 0.2 list",
        "stream --server 127.0.0.1:1 list --timeout 0.2",
        "--server 127.0.0.1:2 --timeout 60 stream list --server 127.0.0.1:1 --timeout 0.2",
    ],
)
def test_an_option_of_every_command_may_stand_in_front_and_the_last_one_counts(
    arguments: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments.split()) == Exit.UNAVAILABLE
    assert "127.0.0.1:1" in capsys.readouterr().err


@pytest.mark.parametrize("twice", ["--from 1 --offset 2", "-o 1 -o 2", "--from 1 --from 2"])
def test_two_beginnings_contradict_each_other(
    twice: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["fetch", "orders", *twice.split()]) == Exit.USAGE
    assert "--from and --offset are one option" in capsys.readouterr().err


def test_a_format_and_json_contradict_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--json", "fetch", "orders", "--format", "%v"]) == Exit.USAGE
    assert "--json and --format" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-5, "0s"), (0.4, "0s"), (59, "59s"), (60, "1m"), (5400, "1h"), (86_400 * 12.5, "12d")],
)
def test_an_age_is_said_in_its_largest_unit(seconds: float, text: str) -> None:
    assert age_text(timedelta(seconds=seconds)) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0B"), (1023, "1023B"), (1536, "1.5KiB"), (3 * 1024**3, "3GiB"), (5 * 1024**4, "5TiB")],
)
def test_a_size_is_said_in_its_largest_unit(size: int, text: str) -> None:
    assert size_text(size) == text


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ("node drain x", "'NODE': not a whole number"),
        ("publish a b -n 0", "it must be at least 1"),
        ("node drain 99999999999", "it must be at most 2147483647"),
    ],
)
def test_a_wrong_number_is_answered_in_words_of_users(
    said: str, answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(said.split()) == Exit.USAGE
    assert answer in capsys.readouterr().err


def test_arguments_are_in_capitals_and_the_rules_of_examples_can_be_added() -> None:
    found = [get_command(app)]
    rules = 0
    for command in found:
        found.extend(getattr(command, "commands", {}).values())
        arguments = [each for each in command.params if each.param_type_name == "argument"]
        assert [each.metavar for each in arguments if not (each.metavar or "").isupper()] == []
        for line in (command.help or "").splitlines():
            words = shlex.split(line) if "jetstream acl add" in line else []
            if "--allow" in words and "--cluster" not in words:
                given = dict(zip(words[4::2], words[5::2], strict=True))
                operations = given["--allow"].split(",")
                check_subject_given(operations, allow=True, subject=given.get("--subject", ""))
                rules += 1
    assert rules == 2
