"""What is done to all streams of a keyed group at once, with a real server."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from jetstream_client import (
    Client,
    InvalidRequestError,
    Messages,
    NoStreamError,
    Stream,
    StreamNotFoundError,
    UnavailableError,
)
from jetstream_client.cli import group_fetch
from jetstream_client.cli.main import run as run_command
from jetstream_client.transport.streams import AsyncStreams
from tests.support.nats_server import NatsServer
from tests.support.server import ServerProcess, running_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    data = tmp_path_factory.mktemp("commands") / "data"
    with NatsServer() as nats, running_server(data, "--nats", nats.url) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[Client]:
    with Client(server.grpc, timeout=60) as running:
        yield running


class Command:
    def __init__(self, server: ServerProcess, capture: pytest.CaptureFixture[str]) -> None:
        self._server = server
        self._capture = capture

    def __call__(self, words: str, code: int = 0) -> str:
        """What it prints; on standard error if it fails."""
        return self.run(*words.split(), code=code)

    def run(self, *words: str, code: int = 0) -> str:
        """The same with words that may hold spaces."""
        self._capture.readouterr()
        found = run_command(["--server", self._server.grpc, *words])
        out, err = self._capture.readouterr()
        assert found == code, err
        return err if code else out


@pytest.fixture
def jetstream(server: ServerProcess, capfd: pytest.CaptureFixture[str]) -> Command:
    return Command(server, capfd)


def names(client: Client, group: str) -> list[str]:
    return [each.name for each in client.list_streams() if each.group == group]


def test_a_group_is_described_altered_and_deleted_as_a_whole(client: Client) -> None:
    client.create_group("whole", "whole.>", streams=12)
    client.create_stream("whole-x", "other.whole")
    client.publish("whole.a", b"", key="k")
    described = client.describe_keyed_group("whole")
    assert [each.name for each in described] == [f"whole-{number}" for number in range(12)]
    assert sum(each.high_watermark or 0 for each in described) == 1
    altered = client.alter_keyed_group("whole", max_age=3600.0)
    assert [(each.partition, each.max_age) for each in altered] == [
        (number, 3600.0) for number in range(12)
    ]
    client.delete_keyed_group("whole")
    assert names(client, "whole") == []
    assert client.describe_stream("whole-x").max_age == 0
    for call in (
        client.describe_keyed_group,
        client.alter_keyed_group,
        client.delete_keyed_group,
    ):
        with pytest.raises(StreamNotFoundError, match=r"^there is no keyed group 'whole'$"):
            call("whole")


def test_a_wrong_setting_changes_no_stream(client: Client) -> None:
    client.create_group("wrong", "wrong.>", streams=2)
    with pytest.raises(InvalidRequestError) as raised:
        client.alter_keyed_group("wrong", max_age=-1.0)
    assert [each.max_age for each in client.describe_keyed_group("wrong")] == [0, 0]
    assert not hasattr(raised.value, "__notes__")


def test_what_is_half_done_says_so_and_is_finished_by_repeating_it(
    client: Client, jetstream: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.create_group("half", "half.>", streams=4)
    failing = ["half-2"]

    def fails(method: str) -> None:
        does = getattr(AsyncStreams, method)

        async def change(self: AsyncStreams, stream: Stream, **settings: object) -> object:
            if getattr(stream, "name", "") in failing:
                raise UnavailableError("the disk is on fire")
            return await does(self, stream, **settings)

        monkeypatch.setattr(AsyncStreams, method, change)

    fails("alter_stream")
    fails("delete_stream")
    with pytest.raises(UnavailableError) as raised:
        client.alter_keyed_group("half", max_messages=9)
    said = "not done, or not known to be done, for half-2 to half-3 of group 'half'"
    assert said in raised.value.__notes__[0]
    limits = [each.max_messages for each in client.describe_keyed_group("half")]
    assert limits == [9, 9, 0, 0]
    assert said in jetstream("stream alter half --max-messages 9", code=4)
    with pytest.raises(UnavailableError) as raised:
        client.delete_keyed_group("half")
    assert "for half-2 to half-0 of group 'half'" in raised.value.__notes__[0]
    assert names(client, "half") == ["half-0", "half-1", "half-2"]
    # What cannot be done to the whole group is refused; what goes on with the rest, does.
    with pytest.raises(NoStreamError, match=r"lacks partitions \[3\] of 4"):
        client.alter_keyed_group("half", max_messages=10)
    assert "lacks partitions [3] of 4" in jetstream("stream pause half", code=3)
    assert not any(each.paused for each in client.describe_keyed_group("half"))
    failing.clear()
    assert jetstream("stream delete half --yes") == (
        "deleted half-2\ndeleted half-1\ndeleted half-0\n"
    )
    assert names(client, "half") == []


def test_the_commands_take_the_name_of_a_group(client: Client, jetstream: Command) -> None:
    client.create_group("shop", "shop.>", streams=3)
    for number in range(9):
        client.publish("shop.x", b"%d" % number)
    listed = jetstream("stream describe shop").splitlines()
    assert [line.split()[0] for line in listed] == ["NAME", "shop-0", "shop-1", "shop-2"]
    rows = [json.loads(line) for line in jetstream("stream describe shop --json").splitlines()]
    assert [(row["name"], row["high_watermark"]) for row in rows] == [
        ("shop-0", 3),
        ("shop-1", 3),
        ("shop-2", 3),
    ]
    jetstream("stream alter shop --max-age 1h")
    jetstream("stream readonly shop")
    assert jetstream("stream pause shop") == "paused shop-0\npaused shop-1\npaused shop-2\n"
    described = client.describe_keyed_group("shop")
    assert all(each.paused and each.readonly and each.max_age == 3600 for each in described)
    jetstream("stream readonly shop --undo")
    jetstream("stream resume shop")
    described = client.describe_keyed_group("shop")
    assert not any(each.paused or each.readonly for each in described)
    assert "each has offsets of its own" in jetstream("stream purge shop --before 1 --yes", code=2)
    assert client.describe_keyed_group("shop")[0].log_start_offset == 0
    jetstream("stream purge shop --yes")
    assert [each.log_start_offset for each in client.describe_keyed_group("shop")] == [3, 3, 3]
    assert "there is no stream 'shoe'" in jetstream("stream delete shoe --yes", code=3)


def test_a_stream_of_the_name_is_meant_and_not_the_group(
    client: Client, jetstream: Command
) -> None:
    client.create_group("both", "both.>", streams=2)
    client.create_stream("both", "neither")
    jetstream("stream pause both")
    assert client.describe_stream("both").paused
    assert jetstream("stream delete both --yes") == "deleted both\n"
    described = client.describe_keyed_group("both")
    assert [(each.name, each.paused) for each in described] == [
        ("both-0", False),
        ("both-1", False),
    ]


def test_fetch_merges_the_streams_of_a_group_by_time(client: Client, jetstream: Command) -> None:
    client.create_group("feed", "feed.>", streams=3)
    sent = []
    for number in range(60):
        client.publish(f"feed.{number % 2}", f"{number}", key=f"k{number % 7}")
        sent.append(str(number))
    rows = [json.loads(line) for line in jetstream("fetch feed --json").splitlines()]
    assert [row["value"] for row in rows] == sent
    for row in rows:
        stored = client.fetch(row["stream"], row["offset"], max_messages=1)[0]
        assert stored.text == row["value"]
    assert {row["stream"] for row in rows} == {"feed-0", "feed-1", "feed-2"}

    def shown(words: str) -> list[str]:
        return jetstream(f"fetch feed --format %v\\n {words}").splitlines()

    assert shown("--reverse") == sent[::-1]
    assert shown("--reverse --max 4") == sent[:-5:-1]
    assert shown("--max 5") == sent[:5]
    assert shown("--filter feed.1") == sent[1::2]
    assert shown("--key k3 --max 3") == ["3", "10", "17"]
    assert shown("--filter nothing.here") == []
    assert shown("--from latest") == []
    assert shown("--from 1h") == sent
    assert shown("--from -2 --max 100")[-1] == "59"
    assert len(shown("--from -2")) == 6
    at = client.fetch(rows[30]["stream"], rows[30]["offset"], max_messages=1)[0].timestamp_us
    moment = f"@{at // 1_000_000}.{at % 1_000_000:06}"
    assert shown(f"--from {moment}") == sent[30:]
    assert shown(f"--to {moment} --follow") == sent[:30]
    assert jetstream("fetch feed --max 1").split()[0] == rows[0]["stream"]
    assert jetstream("fetch feed --max 1 --format %N:%o") == f"{rows[0]['stream']}:0"
    refused = jetstream("fetch feed --offset 3", code=2)
    assert "name one of them, as in feed-0, or say earliest" in refused
    client.purge_stream("feed-1")
    kept = [row["value"] for row in rows if row["stream"] != "feed-1"]
    assert shown("--from earliest") == kept
    assert shown("--reverse") == kept[::-1]
    client.delete_stream("feed-2")
    assert "lacks partitions [2] of 3" in jetstream("fetch feed", code=3)


def test_a_group_is_read_in_pieces_without_a_gap_or_a_repetition(
    client: Client, jetstream: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_fetch, "_FETCH_BYTES_MAX", 1)
    monkeypatch.setattr(group_fetch, "_WRITTEN_AT_ONCE", 3)
    client.create_group("pieces", "pieces.>", streams=3)
    sent = [str(number) for number in range(40)]
    for value in sent:
        client.publish("pieces.x", value)
    assert jetstream("fetch pieces --format %v\\n").splitlines() == sent
    assert jetstream("fetch pieces --reverse --format %v\\n").splitlines() == sent[::-1]


def test_following_a_group_goes_on_after_failures_and_shows_each_record_once(
    client: Client, jetstream: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_fetch, "_FETCH_BYTES_MAX", 1)
    monkeypatch.setattr(group_fetch, "_WRITTEN_AT_ONCE", 4)
    monkeypatch.setattr(group_fetch, "FOLLOW_SECONDS", 0.02)
    client.create_group("live", "live.>", streams=3)
    sent = [str(number) for number in range(60)]
    for value in sent[:30]:
        client.publish("live.x", value)
    fetch, calls = Client.fetch, 0

    def sometimes_fails(self: Client, *arguments: Any, **options: Any) -> Messages:
        nonlocal calls
        calls += 1
        if calls % 11 == 0:
            raise UnavailableError("nobody leads it")
        return fetch(self, *arguments, **options)

    monkeypatch.setattr(Client, "fetch", sometimes_fails)

    def publish() -> None:
        for value in sent[30:]:
            time.sleep(0.02)
            client.publish("live.x", value)

    publisher = threading.Thread(target=publish)
    publisher.start()
    try:
        words = f"fetch live --follow --max {len(sent)} --format %N:%o:%v\\n"
        shown = [line.split(":") for line in jetstream(words).splitlines()]
    finally:
        publisher.join()
    assert sorted(int(value) for _, _, value in shown) == list(range(60))
    for stream in ("live-0", "live-1", "live-2"):
        offsets = [int(offset) for name, offset, _ in shown if name == stream]
        assert offsets == list(range(len(offsets)))
    assert calls > 22
