"""Who shares a name with whom is decided when the command applies: what took the name since the
creator's rights were checked is seen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jetstream_protocol.errors import PermissionDeniedError, PreconditionFailedError
from jetstream_protocol.types import WallUs
from jetstream_server.metadata.client.raft_metadata_log import RaftMetadataLog
from jetstream_server.metadata.client.stream_requests import ATTEMPTS_MAX, Streams
from jetstream_server.metadata.state.command_json import Command
from jetstream_server.metadata.state.commands import NAMES_LEVEL, CreateStream
from jetstream_server.metadata.state.nodes import FeatureLevel
from jetstream_server.metadata.state.registry import Registry
from tests.unit.metadata.cluster import cluster_at

from .cluster import Cluster

OWNER, THIEF = "user:owner", "user:thief"


def at_level(level: FeatureLevel = NAMES_LEVEL) -> Cluster:
    return Cluster.at_level(1, level)


cluster = cluster_at(1, NAMES_LEVEL)


def create(cluster: Cluster, name: str, subject: str, **fields: Any) -> None:
    cluster.create(name, subject, (0,), **fields)


@pytest.mark.parametrize(
    ("theirs", "mine"),
    [
        ({"name": "orders"}, {"name": "mine", "group": "orders"}),
        ({"name": "orders-0", "group": "orders"}, {"name": "mine", "group": "orders"}),
        ({"name": "orders-0", "group": "orders"}, {"name": "orders"}),
        ({"name": "orders"}, {"name": "orders"}),
    ],
)
def test_a_name_that_another_took_meanwhile_is_not_shared(
    cluster: Cluster, theirs: dict[str, Any], mine: dict[str, Any]
) -> None:
    decided_at = cluster.registry.revision
    create(cluster, subject="orders.>", creator=OWNER, **theirs)
    asked = {"subject": "mine.x", "creator": THIEF, **mine}
    with pytest.raises(PreconditionFailedError, match="was taken while"):
        create(cluster, names_at=decided_at, **asked)
    assert cluster.changes == []
    create(cluster, names_at=cluster.registry.revision, **asked)


def test_what_the_creator_has_made_itself_is_in_nobodys_way(cluster: Cluster) -> None:
    decided_at = cluster.registry.revision
    for number in range(3):
        create(cluster, f"o-{number}", "o.>", group="o", creator=OWNER, names_at=decided_at)
    assert [each.name for each in cluster.registry.read_as_one("o")] == ["o-0", "o-1", "o-2"]


def test_a_stream_that_exists_is_found_whatever_shares_its_name_by_now(cluster: Cluster) -> None:
    decided_at = cluster.registry.revision
    create(cluster, "o-0", "o.>", group="o", creator=OWNER)
    create(cluster, "o-1", "o.>", group="o", creator=THIEF)
    create(cluster, "o-0", "o.>", group="o", creator=OWNER, names_at=decided_at)


def test_a_group_holds_its_streams_until_they_are_deleted(cluster: Cluster) -> None:
    create(cluster, "o-0", "o.>", group="o")
    create(cluster, "o", "x.>")
    assert [each.name for each in cluster.registry.holders_of("o")] == ["o-0", "o"]
    restored = Registry()
    restored.restore(cluster.registry.snapshot())
    assert restored.holders_of("o") == cluster.registry.holders_of("o")
    assert restored.read_as_one("o") == cluster.registry.read_as_one("o")
    for stream in cluster.registry.holders_of("o"):
        cluster.send(f'{{"op":"delete_stream","stream_id":{stream.id}}}')
    assert cluster.registry.holders_of("o") == cluster.registry.read_as_one("o") == []


class Proposer:
    """Creates streams as a node does. meanwhile: runs before the next proposal is applied."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.proposed: list[CreateStream] = []
        self.meanwhile: Callable[[], None] = lambda: None
        metadata = SimpleNamespace(registry=cluster.registry, propose=self._propose)
        self.streams = Streams(
            cast("RaftMetadataLog", metadata), lambda: WallUs(0), nodes_configured=1
        )

    async def _propose(self, command: Command, **_: object) -> dict[str, Any]:
        assert isinstance(command, CreateStream)
        self.proposed.append(command)
        self.meanwhile()
        return self.cluster.do(command)

    def create(self, name: str, group: str, check_names: Callable[[], int]) -> None:
        settings = {"group": group, "partition": 0, "partitions": 0}
        made = self.streams.create(
            name, f"{name}.x", settings, False, check_names=check_names, creator=THIEF
        )
        asyncio.run(made)


def test_the_rights_are_decided_again_for_what_came_in_between(cluster: Cluster) -> None:
    proposer, registry = Proposer(cluster), cluster.registry

    def check() -> int:
        if registry.holders_of("orders"):
            raise PermissionDeniedError("no")
        return registry.revision

    def victim() -> None:
        create(cluster, "orders", "orders.>", creator=OWNER)
        proposer.meanwhile = lambda: None

    proposer.meanwhile = victim
    with pytest.raises(PermissionDeniedError):
        proposer.create("mine", "orders", check)
    assert len(proposer.proposed) == 1
    assert [each.name for each in registry.read_as_one("orders")] == ["orders"]


def test_whoever_may_share_the_name_does_so_after_all(cluster: Cluster) -> None:
    proposer, registry = Proposer(cluster), cluster.registry
    others = iter(range(5))

    def other() -> None:
        if (number := next(others, None)) is not None:
            create(cluster, f"o-{number}", "o.>", group="o", creator=OWNER)

    proposer.meanwhile = other
    proposer.create("mine", "o", lambda: registry.revision)
    assert len(proposer.proposed) == 6
    assert len(registry.read_as_one("o")) == 6


def test_it_does_not_try_for_ever(cluster: Cluster) -> None:
    proposer, count = Proposer(cluster), iter(range(1000))
    proposer.meanwhile = lambda: create(
        cluster, f"o-{next(count)}", "o.>", group="o", creator=OWNER
    )
    with pytest.raises(PreconditionFailedError):
        proposer.create("mine", "o", lambda: cluster.registry.revision)
    assert len(proposer.proposed) == ATTEMPTS_MAX


def test_older_software_is_not_told_when_the_rights_were_decided() -> None:
    cluster = at_level(FeatureLevel(NAMES_LEVEL - 1))
    proposer = Proposer(cluster)
    proposer.create("mine", "orders", lambda: cluster.registry.revision)
    assert [command.names_at for command in proposer.proposed] == [0]
