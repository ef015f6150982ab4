"""Cursors with a real server: resuming, checkpoints, and streams that are not what they were."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from jetstream_client import (
    AsyncClient,
    Client,
    Consumer,
    DivergedError,
    InvalidRequestError,
    JetstreamError,
    Last,
    NotFoundError,
    OffsetOutOfRangeError,
    Position,
    PreconditionFailedError,
    StreamNotFoundError,
)
from jetstream_client.cli.main import run as run_command
from jetstream_client.reading import consumer as consumers
from jetstream_client.transport.cursors import Commit, Result
from tests.support.loops import on_loop
from tests.support.server import ServerProcess


@pytest.fixture
def stream(client: Client, name: str) -> Iterator[str]:
    """A stream with the records 0 to 9."""
    client.create_stream(name, name)
    for number in range(10):
        client.publish(name, b"%d" % number)
    yield name
    with suppress(StreamNotFoundError):
        client.delete_stream(name)


def offsets(consumer: Consumer, count: int) -> list[int]:
    return [next(consumer).offset for _ in range(count)]


def position(client: Client, cursor: str, stream: str) -> int:
    return client.describe_cursor(cursor, stream).offset


@pytest.mark.parametrize("wrong", ["", 'we"ird\\cur sor', "a" * 256, "billing\n"])
def test_a_name_that_no_cursor_can_have_is_refused_when_its_reader_is_made(
    client: Client, server: ServerProcess, stream: str, wrong: str
) -> None:
    with pytest.raises(InvalidRequestError, match="invalid cursor name") as by_server:
        client.commit_cursor(wrong, stream, 0)
    said = f"^{re.escape(by_server.value.message)}$"
    handled: list[object] = []
    for make in (
        lambda: client.consume(stream, cursor=wrong),
        lambda: client.consume_group(stream, wrong),
        lambda: client.consume_group(stream, "billing", instance=wrong or " "),
        lambda: client.process(stream, handled.append, cursor=wrong),
        lambda: client.process(stream, handled.append, group=wrong),
    ):
        with pytest.raises(InvalidRequestError, match=said if wrong else "invalid cursor name"):
            make()
    assert not handled

    @on_loop
    async def asynchronously() -> None:
        async with AsyncClient(server.grpc, timeout=60) as asynchronous:
            with pytest.raises(InvalidRequestError, match=said):
                asynchronous.consume(stream, cursor=wrong)
            with pytest.raises(InvalidRequestError, match=said):
                asynchronous.consume_group(stream, wrong)

    asynchronously()


def make_anew(client: Client, stream: str) -> None:
    client.delete_stream(stream)
    client.create_stream(stream, stream)
    for _ in range(10):
        client.publish(stream, b"new")


class TestResuming:
    def test_a_cursor_resumes_where_the_block_before_ended_well(
        self, client: Client, stream: str
    ) -> None:
        with client.consume(stream, cursor="billing") as consumer:
            assert offsets(consumer, 4) == [0, 1, 2, 3]
        assert position(client, "billing", stream) == 4
        with client.consume(stream, cursor="billing") as consumer:
            assert consumer.committed == consumer.position == 4
            assert offsets(consumer, 3) == [4, 5, 6]
        with client.consume(stream, cursor="audit") as consumer:
            assert offsets(consumer, 1) == [0]

    def test_a_record_whose_handling_failed_comes_again(self, client: Client, stream: str) -> None:
        def handle_some() -> None:
            with client.consume(stream, cursor="billing") as consumer:
                for message in consumer:
                    _ = 1 // (3 - message.offset)

        with pytest.raises(ZeroDivisionError):
            handle_some()
        assert position(client, "billing", stream) == 3
        with client.consume(stream, cursor="billing") as consumer:
            assert offsets(consumer, 1) == [3]

    def test_a_consumer_that_is_only_closed_repeats_its_last_record(
        self, client: Client, stream: str
    ) -> None:
        consumer = client.consume(stream, cursor="billing")
        offsets(consumer, 3)
        consumer.close()
        assert position(client, "billing", stream) == 2

    def test_start_says_where_a_new_cursor_begins_and_nothing_later(
        self, client: Client, stream: str
    ) -> None:
        with client.consume(stream, 7, cursor="billing") as consumer:
            assert offsets(consumer, 2) == [7, 8]
        with client.consume(stream, 7, stop="latest", cursor="billing") as consumer:
            assert [message.offset for message in consumer] == [9]
        assert position(client, "billing", stream) == 10

    def test_a_new_cursor_stays_where_it_began_although_nothing_was_read(
        self, client: Client, stream: str
    ) -> None:
        with client.consume(stream, "latest", cursor="billing"):
            pass
        client.publish(stream, b"10")
        with client.consume(stream, "latest", cursor="billing") as consumer:
            assert consumer.position == 10

    def test_batches_are_done_once_the_next_is_asked_for(self, client: Client, stream: str) -> None:
        consumer = client.consume(stream, cursor="billing")
        batches = consumer.batches()
        first = next(batches)
        assert len(first) == 10
        consumer.close()
        assert position(client, "billing", stream) == 0
        with client.consume(stream, stop="latest", cursor="billing") as consumer:
            assert sum(map(len, consumer.batches())) == 10
        assert position(client, "billing", stream) == 10

    def test_batches_are_as_small_as_wanted_and_nothing_of_a_fetch_is_lost(
        self, client: Client, stream: str
    ) -> None:
        with client.consume(stream, cursor="billing") as consumer:
            batches = consumer.batches(max_records=4)
            assert [next(batches).offsets() for _ in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
            consumer.commit()
            assert next(consumer).offset == 8
            consumer.seek(2)
            assert next(consumer.batches(max_records=3)).offsets() == [2, 3, 4]
        assert position(client, "billing", stream) == 5
        with client.consume(stream, stop="latest", cursor="billing") as consumer:
            assert [each.offsets() for each in consumer.batches(2)] == [[5, 6], [7, 8], [9]]
        assert position(client, "billing", stream) == 10
        backwards = client.consume(stream, reverse=True)
        assert [each.offsets() for each in backwards.batches(6)] == [
            [9, 8, 7, 6, 5, 4],
            [3, 2, 1, 0],
        ]
        with pytest.raises(InvalidRequestError, match="max_records must be positive"):
            next(client.consume(stream).batches(max_records=0))

    @on_loop
    async def test_asynchronous_batches_alike(self, server: ServerProcess) -> None:
        async with AsyncClient(server.grpc, timeout=60) as client:
            await client.create_stream("portions", "portions")
            for _ in range(5):
                await client.publish("portions", b"")
            async with client.consume("portions", cursor="billing") as consumer:
                async for batch in consumer.batches(max_records=2):
                    if batch.offsets() == [2, 3]:
                        break
            assert (await client.describe_cursor("billing", "portions")).offset == 4

    def test_a_filter_does_not_hold_the_cursor_back(self, client: Client, stream: str) -> None:
        with client.consume(stream, stop="latest", key=b"none", cursor="billing") as consumer:
            assert list(consumer) == []
        assert position(client, "billing", stream) == 10

    def test_a_paused_consumer_counts_what_it_keeps_as_not_done(
        self, client: Client, stream: str
    ) -> None:
        with client.consume(stream, cursor="billing") as consumer:
            offsets(consumer, 2)
            consumer.pause()
            consumer.resume()
            assert offsets(consumer, 1) == [2]
            consumer.pause()
        assert position(client, "billing", stream) == 3

    @on_loop
    async def test_an_asynchronous_client_alike(self, server: ServerProcess) -> None:
        async with AsyncClient(server.grpc, timeout=60) as client:
            await client.create_stream("asynchronous", "asynchronous")
            for _ in range(5):
                await client.publish("asynchronous", b"")
            async with client.consume("asynchronous", cursor="billing") as consumer:
                assert [(await anext(consumer)).offset for _ in range(2)] == [0, 1]

            async def handle_some() -> None:
                async with client.consume("asynchronous", cursor="billing") as consumer:
                    async for message in consumer:
                        _ = 1 // (3 - message.offset)

            with pytest.raises(ZeroDivisionError):
                await handle_some()
            found = await client.describe_cursor("billing", "asynchronous")
            assert (found.offset, found.lag) == (3, 2)


class TestCheckpoints:
    def test_it_commits_by_itself_while_it_waits(
        self, client: Client, stream: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(consumers, "CHECKPOINT_SECONDS", 0.05)
        with client.consume(stream, cursor="billing") as consumer:
            offsets(consumer, 5)
            eventually(lambda: consumer.committed == 4)
            offsets(consumer, 1)
            eventually(lambda: position(client, "billing", stream) == 5)

    def test_by_hand_nothing_else_commits(self, client: Client, stream: str) -> None:
        with client.consume(stream, cursor="billing", auto_commit=False) as consumer:
            offsets(consumer, 4)
            consumer.commit(2)
            assert consumer.committed == 2
            consumer.commit(metadata="batch 7")
            offsets(consumer, 2)
        found = client.describe_cursor("billing", stream)
        assert (found.offset, found.metadata, found.last_epoch) == (4, "batch 7", 0)
        assert found.owner

    def test_a_checkpoint_takes_no_commit_by_hand_back(self, client: Client, stream: str) -> None:
        with client.consume(stream, cursor="billing") as consumer:
            offsets(consumer, 4)
            consumer.commit()  # The fourth, too, although the fifth was not asked for.
            client._thread.run(consumer._consumer.checkpoint())
            assert position(client, "billing", stream) == 4
            offsets(consumer, 2)
            client._thread.run(consumer._consumer.checkpoint())
            assert position(client, "billing", stream) == 5

    def test_without_a_cursor_there_is_nothing_to_commit(self, client: Client, stream: str) -> None:
        with (
            client.consume(stream) as consumer,
            pytest.raises(InvalidRequestError, match="no cursor"),
        ):
            consumer.commit()

    def test_the_second_of_two_consumers_is_refused(self, client: Client, stream: str) -> None:
        first = client.consume(stream, cursor="billing", auto_commit=False)
        second = client.consume(stream, cursor="billing", auto_commit=False)
        offsets(first, 3)
        offsets(second, 5)
        first.commit()
        with pytest.raises(PreconditionFailedError, match="one consumer at a time"):
            second.commit()
        offsets(first, 1)
        first.commit()
        assert position(client, "billing", stream) == 4
        for consumer in (first, second):
            consumer.close()

    def test_a_consumer_whose_cursor_was_moved_ends(
        self, client: Client, stream: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(consumers, "CHECKPOINT_SECONDS", 0.05)
        with client.consume(stream, cursor="billing") as consumer:
            offsets(consumer, 3)
            eventually(lambda: consumer.committed == 2)
            client.seek_cursor("billing", stream, "earliest")
            with pytest.raises(PreconditionFailedError, match="by hand"):
                list(consumer)
        assert position(client, "billing", stream) == 0


class TestReset:
    def test_records_that_were_removed_are_no_silent_jump(
        self, client: Client, stream: str
    ) -> None:
        client.seek_cursor("billing", stream, 2)
        client.purge_stream(stream, 6)
        assert client.describe_cursor("billing", stream).state == "truncated"
        with (
            client.consume(stream, cursor="billing") as consumer,
            pytest.raises(OffsetOutOfRangeError) as told,
        ):
            next(consumer)
        assert any("on_reset" in note for note in told.value.__notes__)
        with client.consume(stream, cursor="billing", on_reset="earliest") as consumer:
            assert offsets(consumer, 2) == [6, 7]
        assert position(client, "billing", stream) == 8

    def test_a_stream_made_anew_is_not_the_one_that_was_read(
        self, client: Client, stream: str
    ) -> None:
        client.seek_cursor("billing", stream, 3)
        client.delete_stream(stream)
        full_name = f"{stream}@{stream}"
        assert client.describe_cursor("billing", full_name).state == "stream deleted"
        client.create_stream(stream, stream)
        for _ in range(5):
            client.publish(stream, b"new")
        assert client.describe_cursor("billing", stream).state == "stream re-created"
        with pytest.raises(DivergedError, match="created again since"):
            client.consume(stream, cursor="billing")
        with client.consume(stream, cursor="billing", on_reset="latest") as consumer:
            assert consumer.position == 5
            client.publish(stream, b"newer")
            assert offsets(consumer, 1) == [5]
        found = client.describe_cursor("billing", stream)
        assert (found.state, found.offset) == ("current", 6)

    @pytest.mark.parametrize("auto_commit", [False, True])
    def test_a_stream_made_anew_before_the_first_read_is_not_the_one_that_was_opened(
        self, client: Client, stream: str, auto_commit: bool
    ) -> None:
        client.seek_cursor("billing", stream, 3)
        consumer = client.consume(stream, cursor="billing", auto_commit=auto_commit)
        assert consumer.position == 3
        make_anew(client, stream)
        with pytest.raises(StreamNotFoundError):
            next(consumer)
        with suppress(JetstreamError):
            consumer.close()

    @pytest.mark.parametrize("start", ["earliest", "latest", Last(2)])
    def test_an_offset_of_a_stream_made_anew_before_the_first_read_says_nothing(
        self, client: Client, stream: str, start: Position
    ) -> None:
        with client.consume(stream, start) as consumer:
            make_anew(client, stream)
            with pytest.raises(StreamNotFoundError):
                next(consumer)

    def test_a_seek_into_a_stream_made_anew_fails(self, client: Client, stream: str) -> None:
        with client.consume(stream) as consumer:
            next(consumer)
            make_anew(client, stream)
            with pytest.raises(StreamNotFoundError):
                consumer.seek("latest")

    def test_an_epoch_of_another_history_is_no_silent_jump(
        self, client: Client, stream: str
    ) -> None:
        client.publish(stream, b"")
        client.commit_cursor("billing", stream, 4, last_epoch=7)
        for seconds in (1.0, 5.0, 25.0):  # The server may not answer in the shortest.
            with (
                client.consume(stream, cursor="billing", patience=seconds) as consumer,
                pytest.raises(JetstreamError) as told,
            ):
                next(consumer)
            if "epoch 7" in str(told.value):
                break
        assert "epoch 7" in str(told.value)


class TestLooking:
    def test_lag_is_told_in_records_and_seconds(self, client: Client, stream: str) -> None:
        client.seek_cursor("billing", stream, 4)
        client.seek_cursor("audit", stream, "latest")
        first, second = client.describe_cursors(stream=stream)
        assert (first.name, first.lag, first.lag_seconds) == ("audit", 0, 0.0)
        assert (second.name, second.lag, second.state) == ("billing", 6, "current")
        assert second.lag_seconds is not None
        assert 0.0 < second.lag_seconds < 60.0

    def test_what_is_moved_and_deleted_by_hand_is_in_the_audit_log(
        self, own_server: ServerProcess
    ) -> None:
        """What others move fills up what the log takes in half a minute."""
        own_server.start()
        with Client(own_server.grpc, timeout=60) as client:
            client.create_stream("moved", "moved")
            for number in range(6):
                client.publish("moved", b"%d" % number)
            with client.consume("moved", cursor="reader") as consumer:
                offsets(consumer, 3)
            client.seek_cursor("by-hand", "moved", 4)
            client.seek_cursor("by-hand", "moved", 5)
            client.delete_cursor("by-hand", "moved")
        lines = [json.loads(line) for line in own_server.log_text.splitlines() if line[:1] == "{"]
        noted = [
            line for line in lines if line["event"] == "audit" and "Cursor" in line["operation"]
        ]
        assert [line["operation"].rpartition("/")[2] for line in noted] == [
            "CommitCursors",  # The second within half a minute is left out.
            "DeleteCursor",
        ]
        assert noted[0]["resource"] == "by-hand in moved@moved"
        assert (noted[0]["principal"], noted[0]["offset"]) == ("anonymous", 4)

    def test_a_deleted_cursor_begins_anew(self, client: Client, stream: str) -> None:
        client.seek_cursor("billing", stream, 4)
        client.delete_cursor("billing", stream)
        assert client.list_cursors("billing", stream=stream) == []
        with pytest.raises(NotFoundError):
            client.delete_cursor("billing", stream)
        with client.consume(stream, cursor="billing") as consumer:
            assert offsets(consumer, 1) == [0]

    def test_a_stream_is_named_in_one_way_for_all_calls_about_cursors(
        self, client: Client, stream: str
    ) -> None:
        known = client.describe_stream(stream)
        client.seek_cursor("billing", stream, 4)
        for named in (stream, f"{stream}@{stream}", known.id):
            assert [each.name for each in client.list_cursors(stream=named)] == ["billing"]
            assert [each.name for each in client.list_cursors("billing", stream=named)]
        client.delete_stream(stream)
        for unknown in (stream, known.id):
            with pytest.raises(StreamNotFoundError):
                client.list_cursors(stream=unknown)
            with pytest.raises(StreamNotFoundError):
                client.delete_cursor("billing", unknown)
        full_name = f"{stream}@{stream}"
        assert [each.name for each in client.list_cursors(stream=full_name)] == ["billing"]
        client.delete_cursor("billing", full_name)
        assert client.list_cursors(stream=full_name) == []

    def test_a_cursor_is_not_moved_to_what_the_stream_does_not_hold(
        self, client: Client, stream: str
    ) -> None:
        with pytest.raises(OffsetOutOfRangeError):
            client.seek_cursor("billing", stream, 99)
        with pytest.raises(InvalidRequestError, match="cursor name"):
            client.seek_cursor("with space", stream, 1)
        with pytest.raises(StreamNotFoundError):
            client.seek_cursor("billing", "nowhere", 1)

    @on_loop
    async def test_a_copy_of_a_commit_by_hand_that_comes_late_takes_nothing_back(
        self, server: ServerProcess
    ) -> None:
        async with AsyncClient(server.grpc, timeout=60) as client:
            await client.create_stream("late", "late")
            sent: list[Commit] = []
            commit = client._cursors.commit

            async def noted(wanted: Commit) -> Result:
                sent.append(wanted)
                return await commit(wanted)

            client._cursors.commit = noted  # type: ignore[method-assign]
            await client.commit_cursor("billing", "late", 1)
            await client.commit_cursor("billing", "late", 2)
            for copy in list(sent):
                result = await commit(copy)
                assert result.HasField("error")
            assert (await client.describe_cursor("billing", "late")).offset == 2
            # Many at once: each follows the one that it has seen, and all are carried out.
            offsets = range(3, 8)
            await asyncio.gather(*(client.commit_cursor("billing", "late", n) for n in offsets))
            assert (await client.describe_cursor("billing", "late")).offset in offsets

    def test_the_stream_of_the_cursors_is_listed_only_when_asked_for(
        self, client: Client, stream: str
    ) -> None:
        client.seek_cursor("billing", stream, 1)
        assert "__cursors" not in [each.name for each in client.list_streams()]
        found = [each for each in client.list_streams(internal=True) if each.name == "__cursors"]
        assert [each.subject for each in found] == [""]
        with pytest.raises(InvalidRequestError, match="the server's own"):
            client.delete_stream("__cursors")
        with pytest.raises(InvalidRequestError, match="the server's own"):
            client.commit_cursor("billing", "__cursors", 1)
        with pytest.raises(InvalidRequestError, match="for the server's own"):
            client.create_stream("__mine", "mine")


class TestCommand:
    def test_cursors_are_moved_shown_and_forgotten(
        self,
        server: ServerProcess,
        client: Client,
        stream: str,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        def command(*arguments: str, code: int = 0) -> str:
            assert run_command(["--server", server.grpc, "cursor", *arguments]) == code
            captured = capsys.readouterr()
            return captured.err if code else captured.out

        said = command("seek", "biling", stream, "-3", code=3)
        assert "--create makes one" in said
        assert command("list", "--stream", stream).count("\n") == 1, "no cursor is made"
        assert "there is no stream" in command("seek", "billing", "nowhere", "0", code=3)
        assert "at offset 7" in command("seek", "billing", stream, "-3", "--create")
        assert "at offset 0" in command("seek", "billing", stream, "1h")
        assert "at offset 10" in command("seek", "billing", stream, "latest")
        found = json.loads(command("seek", "billing", stream, "4", "--json"))
        assert (found["offset"], found["lag"], found["state"]) == (4, 6, "current")
        heading, row = command("list", "--stream", stream).splitlines()
        assert heading.split()[:5] == ["CURSOR", "STREAM", "OFFSET", "LAG", "BEHIND"]
        assert row.split()[:4] == ["billing", f"{stream}@{stream}", "4", "6"]
        lines = command("list", "--cursor", "billing", "--stream", stream, "--json").splitlines()
        assert [json.loads(line)["lag"] for line in lines] == [6]
        assert "high_watermark" in command("describe", "billing", stream)
        assert "holds" in command("seek", "billing", stream, "99", code=1)
        client.delete_stream(stream)
        full_name = f"{stream}@{stream}"
        assert "stream deleted" in command("describe", "billing", full_name)
        command("delete", "billing", full_name, "--yes")
        assert "no cursor" in command("delete", "billing", full_name, "--yes", code=3)
        assert run_command(["--server", server.grpc, "stream", "list", "--internal"]) == 0
        assert "__cursors" in capsys.readouterr().out

    def test_a_drained_node_is_not_said_to_lead_nothing_while_it_leads_the_cursors(
        self,
        server: ServerProcess,
        client: Client,
        stream: str,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        client.seek_cursor("billing", stream, 1)
        drain = ["--server", server.grpc, "node", "drain", "0"]
        try:
            assert run_command([*drain, "--wait", "--json"]) == 0
            assert "__cursors" in json.loads(capsys.readouterr().out)["still_leads"]
        finally:
            assert run_command([*drain, "--undo"]) == 0


@on_loop
async def test_many_commits_at_once_share_calls(server: ServerProcess) -> None:
    async with AsyncClient(server.grpc, timeout=60) as client:
        await client.create_stream("shared", "shared")
        commits = [client.commit_cursor(f"c{number}", "shared", 0) for number in range(600)]
        assert len(await asyncio.gather(*commits)) == 600
        assert len(await client.list_cursors(stream="shared")) == 600


def eventually(holds: object, seconds: float = 60.0) -> None:
    assert callable(holds)
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)
