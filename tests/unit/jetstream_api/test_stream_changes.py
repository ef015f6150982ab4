"""Streams that clients create and change: what is refused for now, and late copies."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jetstream_protocol.errors import StreamNotFoundError, UnavailableError
from jetstream_protocol.settings import STREAM_SETTINGS, Setting
from jetstream_server.jetstream_api import stream_reads
from jetstream_server.jetstream_api.answers import MESSAGE_BYTES_MAX, stream_config
from jetstream_server.jetstream_api.catalogue import Catalogue
from jetstream_server.jetstream_api.stream_changes import StreamChanges, differing
from jetstream_server.jetstream_api.stream_configs import wanted_stream
from jetstream_server.metadata.client.raft_metadata_log import RaftMetadataLog
from jetstream_server.metadata.state.command_json import Command
from tests.support.virtual_time import on_virtual_loop
from tests.unit.metadata.cluster import Cluster
from tests.unit.protocol.test_settings import other_value


@pytest.mark.parametrize("setting", [each for each in STREAM_SETTINGS if each.name != "replicas"])
def test_an_update_with_what_info_shows_changes_nothing(setting: Setting) -> None:
    """Clients send back the whole configuration, whatever they change of it."""
    plain = Cluster(3).create()
    config = replace(plain.config, **{setting.field: other_value(setting)})
    stream = replace(plain, config=config)
    shown = stream_config(stream)
    assert differing(stream, wanted_stream(shown["name"], shown)) == {}
    edited = wanted_stream(shown["name"], shown | {"description": "other"})
    assert differing(stream, edited) == {"description": "other"}


def test_an_update_can_switch_the_window_off_and_on() -> None:
    plain = Cluster(3).create()
    stream = replace(plain, config=replace(plain.config, duplicate_window_us=0, max_age_us=10**7))
    shown = stream_config(stream)
    wanted = wanted_stream(shown["name"], shown | {"duplicate_window": 5 * 10**9})
    assert differing(stream, wanted) == {"duplicate_window_us": 5_000_000}


def test_a_limit_that_clients_cannot_be_told_stays_when_they_change_something_else() -> None:
    plain = Cluster(3).create()
    stream = replace(plain, config=replace(plain.config, max_message_bytes=2**40))
    shown = stream_config(stream)
    assert shown["max_msg_size"] == MESSAGE_BYTES_MAX
    edited = wanted_stream(shown["name"], shown | {"description": "other"})
    assert differing(stream, edited) == {"description": "other"}


class Streams:
    """Refuses to create so many times."""

    def __init__(self, refusals: int) -> None:
        self.refusals = refusals
        self.dates = list[int]()

    def check_room(self, *_: object) -> None: ...

    async def create(
        self, name: str, *_: object, made_at: int, **__: object
    ) -> tuple[object, bool]:
        self.dates.append(made_at)
        if self.refusals:
            self.refusals -= 1
            raise UnavailableError("the feature level is about to be raised; try again")
        return SimpleNamespace(id=1, name=name, leader=1), True


class Peers:
    """Other nodes, which hear of what has changed as late as the test says."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []
        self.hears = asyncio.Event()
        self.hears.set()

    async def reach_epoch(self, node_id: int, stream_id: int, _: int) -> None:
        self.asked.append((node_id, stream_id))
        await self.hears.wait()
        raise StreamNotFoundError("it was deleted")


def nodes(*fenced: bool) -> dict[int, object]:
    return {at: SimpleNamespace(node_id=at, fenced=each) for at, each in enumerate(fenced)}


def changes(streams: Streams, peers: Peers | None = None) -> StreamChanges:
    async def nothing(*_: object) -> dict[str, object]:
        return {}

    audit = SimpleNamespace(done=lambda *_: None, in_doubt=lambda *_: None)
    control = SimpleNamespace(
        quota_holder=lambda _: "", quotas=SimpleNamespace(streams=0), audit=audit
    )
    registry = SimpleNamespace(
        find=lambda *_: None, streams={}, revision=7, nodes=nodes(False, False, False, True)
    )
    given: list[Any] = [
        SimpleNamespace(registry=registry),
        streams,
        SimpleNamespace(check_new=lambda *_: 0, control=control),
        SimpleNamespace(describe=nothing),
        None,
        peers or Peers(),
        None,
        nothing,
        SimpleNamespace(full_reason=""),
        None,
    ]
    return StreamChanges(*given, node_id=1)


@on_virtual_loop
async def test_a_setting_that_is_not_taken_yet_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stream_reads, "_PAUSE_SECONDS", 0)
    body = {"name": "s", "max_msg_size": 1000}
    assert await changes(Streams(3)).create("s", body) == {"did_create": True}
    async with asyncio.timeout(60):
        with pytest.raises(UnavailableError):
            await changes(Streams(10**6)).create("s", body)


class Log:
    """Another caller changes each thing while the first `others` proposals are on their way."""

    def __init__(self, others: int) -> None:
        self.registry = SimpleNamespace(
            find=lambda *_: None, streams={}, revision=7, nodes=nodes(False, False)
        )
        self.others, self.proposed = others, list[tuple[str, int]]()

    async def propose(self, command: Command, *, made_at: int) -> None:
        self.proposed.append((command.op, made_at))
        if self.others:
            self.others -= 1
            self.registry.revision += 1
            raise UnavailableError("it was changed after this call was sent; try again")


@on_virtual_loop
async def test_a_change_is_dated_and_made_anew_for_who_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stream_reads, "_PAUSE_SECONDS", 0)
    streams, log = Streams(2), Log(others=2)
    await changes(streams).create("s", {"name": "s"})
    assert streams.dates == [7, 7, 7]
    made = changes(streams)
    made._metadata = cast(RaftMetadataLog, log)
    stream = SimpleNamespace(id=1, full_name="s@s")
    made._catalogue = cast(Catalogue, SimpleNamespace(stream=lambda *_: stream))
    assert await made.delete("s") == {"success": True}
    assert log.proposed == [("delete_stream", at) for at in (7, 8, 9)]


@on_virtual_loop
async def test_a_change_is_answered_once_the_other_nodes_have_heard_of_it() -> None:
    """NATS brings the next request to any of them: they answered that there is no such stream."""
    peers = Peers()
    made = changes(Streams(0), peers)
    peers.hears.clear()
    created = asyncio.ensure_future(made.create("s", {"name": "s"}))
    done, _ = await asyncio.wait([created], timeout=0.5)
    assert not done
    assert peers.asked == [(0, 1), (2, 1)]
    peers.hears.set()
    assert await created == {"did_create": True}
    stream = SimpleNamespace(id=5, full_name="s@s")
    made._catalogue = cast(Catalogue, SimpleNamespace(stream=lambda *_: stream))
    made._metadata = cast(RaftMetadataLog, Log(others=0))
    peers.asked.clear()
    assert await made.delete("s") == {"success": True}
    assert peers.asked == [(0, 5)]


@on_virtual_loop
async def test_a_node_that_does_not_answer_holds_it_up_for_a_moment() -> None:
    peers = Peers()
    peers.hears.clear()
    async with asyncio.timeout(2):
        assert await changes(Streams(0), peers).create("s", {"name": "s"}) == {"did_create": True}
