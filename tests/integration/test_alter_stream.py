"""Settings of running streams are altered by SDK and command line, against a real server."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta

import pytest

from jetstream_client import (
    AsyncClient,
    Client,
    InvalidRequestError,
    MessageTooLargeError,
    PreconditionFailedError,
    StreamNotFoundError,
)
from jetstream_client.cli.main import run
from tests.support.server import ServerProcess


def test_settings_are_given_at_creation_and_described(client: Client) -> None:
    client.create_stream(
        "settings", "settings.>", max_age=3600, max_bytes=10_000_000_000, max_messages=7,
        compact=True, tombstone_grace=timedelta(minutes=1), duplicate_window=0,
        segment_bytes=1 << 20, segment_age=0.5,
    )  # fmt: skip
    found = client.describe_stream("settings")
    assert (found.max_age, found.max_bytes, found.max_messages) == (3600.0, 10_000_000_000, 7)
    assert (found.compact, found.tombstone_grace, found.duplicate_window) == (True, 60.0, 0.0)
    assert (found.segment_bytes, found.segment_age) == (1 << 20, 0.5)


def test_a_record_above_max_message_bytes_is_refused_until_that_is_altered(
    client: Client,
) -> None:
    client.create_stream("small", "small", max_message_bytes=10)
    assert client.describe_stream("small").max_message_bytes == 10
    with pytest.raises(MessageTooLargeError, match=r"of 11 bytes.*max_message_bytes: 10"):
        client.publish("small", b"x" * 11)
    assert client.describe_stream("small").log_end_offset == 0
    client.alter_stream("small", max_message_bytes=11)
    client.publish("small", b"x" * 11)
    assert client.describe_stream("small").log_end_offset == 1


def test_a_stream_cannot_rely_on_a_lake_that_is_not_there(client: Client) -> None:
    with pytest.raises(PreconditionFailedError, match="no lake"):
        client.create_stream("lake", "lake", lake=True)
    client.create_stream("lake", "lake", lake=False)
    with pytest.raises(PreconditionFailedError, match="no lake"):
        client.alter_stream("lake", lake=True)
    with pytest.raises(InvalidRequestError, match="they need lake"):
        client.alter_stream("lake", local_max_bytes=1 << 30)
    assert not client.describe_stream("lake").lake


def test_altering_changes_what_is_named_and_nothing_else(client: Client) -> None:
    before = client.create_stream("alter", "alter.>", max_bytes=1 << 30)
    after = client.alter_stream("alter", max_age=3600, flush="none")
    assert (after.max_age, after.max_bytes, after.flush) == (3600.0, 1 << 30, "none")
    assert after.stream_epoch == before.stream_epoch + 1
    assert client.describe_stream("alter").max_age == 3600.0
    again = client.alter_stream("alter", max_age=3600)
    assert again.stream_epoch == after.stream_epoch


def test_altering_at_an_epoch_that_has_passed_changes_nothing(client: Client) -> None:
    before = client.create_stream("cas", "cas.>")
    client.alter_stream(before, stream_epoch=before.stream_epoch, max_messages=5)
    with pytest.raises(PreconditionFailedError, match="stream epoch"):
        client.alter_stream(before, stream_epoch=before.stream_epoch, max_messages=6)
    assert client.describe_stream("cas").max_messages == 5


def test_what_cannot_be_altered_is_refused(client: Client) -> None:
    client.create_stream("fixed", "fixed.>")
    with pytest.raises(InvalidRequestError, match="max_age is "):
        client.alter_stream("fixed", max_age=0.001)
    with pytest.raises(InvalidRequestError, match="replicas"):
        client.alter_stream("fixed", replicas=3)  # type: ignore[call-arg]
    with pytest.raises(InvalidRequestError, match="group"):
        client.alter_stream("fixed", group="g")  # type: ignore[call-arg]
    with pytest.raises(InvalidRequestError, match="say which"):
        client.alter_stream("fixed")
    with pytest.raises(StreamNotFoundError):
        client.alter_stream("nobody", compact=True)


def test_altering_at_once_from_many_sides_loses_none(client: Client, server: ServerProcess) -> None:
    client.create_stream("many", "many.>")

    async def alter() -> None:
        async with AsyncClient(server.grpc, timeout=60) as other:
            await asyncio.gather(
                other.alter_stream("many", max_age=10),
                other.alter_stream("many", max_bytes=20),
                other.alter_stream("many", max_messages=30),
                other.alter_stream("many", compact=True),
            )

    asyncio.run(alter())
    found = client.describe_stream("many")
    assert (found.max_age, found.max_bytes, found.max_messages) == (10.0, 20, 30)
    assert found.compact


def test_the_command_line_alters(
    client: Client, server: ServerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--server", server.grpc, "stream"]
    assert run([*arguments, "create", "line", "--subject", "line.>", "--max-bytes", "1GiB"]) == 0
    assert run([*arguments, "alter", "line", "--max-age", "1h30m", "--compact", "--json"]) == 0
    row = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (row["max_age"], row["max_bytes"], row["compact"]) == (5400.0, 1 << 30, True)


def test_flush_altered_to_group_holds_for_what_is_there_and_what_comes(client: Client) -> None:
    client.create_stream("firm", "firm.>", flush="none")
    client.publish("firm.x", b"before")
    client.alter_stream("firm", flush="group")
    client.publish("firm.x", b"after")
    found = client.describe_stream("firm")
    assert found.flushed_offset == found.high_watermark == 2
