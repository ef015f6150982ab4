"""A call is repeated if its answer was lost, and a copy of it may arrive late: it meets what was
made in the meantime, and leaves it alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from jetstream_client import (
    AsyncClient,
    NotFoundError,
    PreconditionFailedError,
    UnavailableError,
)
from jetstream_client.transport.control import ControlPlane
from jetstream_client.transport.grpc_calls import LostCallError
from tests.support.loops import on_loop
from tests.support.server import ServerProcess


class Copies:
    """Notes the calls of clients, and sends the last one once more."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._last: Callable[[], Any] | None = None
        call = ControlPlane.call

        async def noting(plane: ControlPlane, request: Any, **options: Any) -> Any:
            if options.get("changes"):
                self._last = lambda: call(plane, request, **options)
            return await call(plane, request, **options)

        monkeypatch.setattr(ControlPlane, "call", noting)

    def kept(self) -> Callable[[], Any]:
        """Sends a copy of the last call that changed something."""
        assert self._last is not None
        return self._last


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> Copies:
    return Copies(monkeypatch)


@on_loop
async def test_of_a_cursor_and_its_deletion(server: ServerProcess, copies: Copies) -> None:
    async with AsyncClient(server.grpc, timeout=60) as client:
        await client.create_stream("late-cursor", "late-cursor")
        await client.commit_cursor("billing", "late-cursor", 0)
        await client.delete_cursor("billing", "late-cursor")
        late = copies.kept()
        again = await client.commit_cursor("billing", "late-cursor", 0)
        with pytest.raises(PreconditionFailedError, match="its revision is"):
            await late()
        assert (await client.describe_cursor("billing", "late-cursor")).revision == again.revision
        with pytest.raises(NotFoundError):
            await client.delete_cursor("nothing", "late-cursor")


@on_loop
async def test_of_a_group_and_its_deletion(server: ServerProcess, copies: Copies) -> None:
    async with AsyncClient(server.grpc, timeout=60) as client:
        await client.create_stream("late-group", "late-group")
        await client.publish("late-group", b"one")

        async def has_read() -> None:
            async with client.consume_group("late-group", "late", session_timeout=1.0) as member:
                await anext(member)

        await has_read()
        await client.delete_group("late")
        late = copies.kept()
        await has_read()
        with pytest.raises(NotFoundError, match="no such consumer group"):
            await late()
        assert (await client.describe_group("late")).streams


@on_loop
async def test_of_a_pause_of_a_consumer(server: ServerProcess, copies: Copies) -> None:
    async with AsyncClient(server.grpc, timeout=60) as client:
        await client.create_stream("late-pause", "late-pause")
        await client.create_consumer("late-pause", "mailers")
        await client.pause_consumer("late-pause", "mailers", 60)
        late = copies.kept()
        await client.delete_consumer("late-pause", "mailers")
        await client.create_consumer("late-pause", "mailers")
        with pytest.raises(NotFoundError):
            await late()
        assert (await client.describe_consumer("late-pause", "mailers")).paused_until is None


@on_loop
async def test_of_a_purge(server: ServerProcess, copies: Copies) -> None:
    async with AsyncClient(server.grpc, timeout=60) as client:
        await client.create_stream("late-purge", "late-purge")
        await client.publish("late-purge", b"old")
        assert await client.purge_stream("late-purge") == 1
        late = copies.kept()
        await client.publish("late-purge", b"new")
        assert (await late()).log_start_offset == 1
        assert (await client.fetch("late-purge"))[0].value == b"new"


class Attempts:
    """Notes the attempts of clients' calls, and sends the last one once more."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.late: Callable[[], Any] | None = None
        self.lost = 0
        attempt = ControlPlane._attempt

        async def noting(plane: ControlPlane, *sent: Any) -> Any:
            if "Describe" not in type(sent[0]).__name__:
                self.late = lambda: attempt(plane, *sent)
            found = await attempt(plane, *sent)
            if self.lost:
                self.lost -= 1
                raise LostCallError("its answer is lost")
            return found

        monkeypatch.setattr(ControlPlane, "_attempt", noting)

    def kept(self) -> Callable[[], Any]:
        assert self.late is not None
        return self.late


@on_loop
async def test_of_changes_that_were_undone(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = Attempts(monkeypatch)
    async with (
        AsyncClient(server.grpc, timeout=60) as client,
        AsyncClient(server.grpc, timeout=60) as other,
    ):
        stream = await client.create_stream("late-change", "late-change")
        created = attempts.kept()
        changes = (
            (client.pause_stream(stream), other.resume_stream(stream)),
            (client.resume_stream(stream), other.pause_stream(stream)),
            (client.set_stream_readonly(stream), other.set_stream_readonly(stream, False)),
            (client.alter_stream(stream, max_age=60), other.alter_stream(stream, max_age=90)),
            (
                client.alter_cluster(copy_bytes_per_second=1 << 20),
                other.alter_cluster(copy_bytes_per_second=0),
            ),
        )
        mailers = stream, "mailers"
        await client.create_consumer(*mailers)
        consumers = (
            (client.pause_consumer(*mailers, 60), other.resume_consumer(*mailers)),
            (client.resume_consumer(*mailers), other.pause_consumer(*mailers, 60)),
            (
                client.create_consumer(*mailers, max_deliver=3),
                other.create_consumer(*mailers, max_deliver=5),
            ),
        )
        for first, second in (*changes, *consumers):
            await first
            late = attempts.kept()
            await second
            with pytest.raises(UnavailableError, match="changed after this call was sent"):
                await late()
        consumer = await client.describe_consumer(*mailers)
        assert (consumer.paused_until is not None, consumer.max_deliver) == (True, 5)
        await client.delete_consumer(*mailers)
        with pytest.raises(UnavailableError, match="changed after this call was sent"):
            await late()
        (found,) = [each for each in await client.list_streams() if each.id == stream.id]
        assert (found.paused, found.readonly, found.max_age) == (True, False, 90)
        await other.delete_stream(stream)
        with pytest.raises(UnavailableError, match="changed after this call was sent"):
            await created()


@on_loop
async def test_of_a_change_whose_answer_is_lost(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = Attempts(monkeypatch)
    async with AsyncClient(server.grpc, timeout=60) as client:
        stream = await client.create_stream("lost-answer", "lost-answer")
        attempts.lost = 2
        await client.alter_stream(stream, max_age=60)
        attempts.lost = 1
        assert (await client.pause_stream(stream)).paused
        attempts.lost = 1
        await client.delete_stream(stream)
