"""A late copy of a change of the voters undoes no later one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from jetstream_protocol.errors import UnavailableError
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_server.metadata.raft.voter_change import Verdict
from jetstream_server.serving.grpc.voters import GroupVoters
from tests.support.loops import on_loop


class Metadata:
    """Leads, with four nodes; the log of notes is that of LastChanges."""

    leader, is_alone = 0, False
    registry = SimpleNamespace(nodes=dict.fromkeys(range(4)))

    def __init__(self) -> None:
        self.voters, self.revision, self.noted = (0, 1, 2), 10, 0

    def status(self) -> Any:
        return SimpleNamespace(
            voters=self.voters, role="leader", leader=0, connected=(), voter_addresses=(),
            are_voters_committed=True,
        )  # fmt: skip

    async def note_change(self, what: str, made_at: int) -> int:
        if self.noted > made_at:
            raise UnavailableError(f"{what} was changed after this call was sent")
        self.revision += 1
        self.noted = self.revision
        return self.noted

    async def change_voters(self, wanted: tuple[int, ...]) -> tuple[Verdict, str]:
        self.voters = wanted
        return Verdict.APPEND, ""


def wish(*voters: int, noted_at: int = 0) -> pb.ChangeVotersRequest:
    return pb.ChangeVotersRequest(voters=voters, noted_at=noted_at)


@on_loop
async def test_a_copy_of_a_caller_s_call_is_refused() -> None:
    metadata = Metadata()
    group = GroupVoters(metadata, None, 0)  # type: ignore[arg-type]
    await group.change(wish(0, 1, 2, 3), forward=True, seconds=60, made_at=10)
    await group.change(wish(0, 1, 2), forward=True, seconds=60, made_at=11)
    with pytest.raises(UnavailableError, match="changed after this call was sent"):
        await group.change(wish(0, 1, 2, 3), forward=True, seconds=60, made_at=10)
    assert metadata.voters == (0, 1, 2)
    await group.change(wish(0, 1, 2, 3), forward=True, seconds=60, made_at=12)
    assert metadata.voters == (0, 1, 2, 3)


async def late_between_nodes() -> tuple[int, ...]:
    """The voters after a copy of what another node has asked for came late."""
    metadata = Metadata()
    group = GroupVoters(metadata, None, 0)  # type: ignore[arg-type]
    await group.change(wish(0, 1, 2, 3, noted_at=11), forward=False, seconds=60)
    await group.change(wish(0, 1, 2, noted_at=15), forward=False, seconds=60)
    try:
        await group.change(wish(0, 1, 2, 3, noted_at=11), forward=False, seconds=60)
    except UnavailableError:
        pass
    return metadata.voters


@on_loop
async def test_a_copy_of_what_a_node_asks_the_leader_for_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert await late_between_nodes() == (0, 1, 2)
    monkeypatch.setattr(GroupVoters, "_check_is_last", lambda *_: None)
    assert await late_between_nodes() == (0, 1, 2, 3), "the mutant lives"
