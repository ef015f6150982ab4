"""A snapshot that is none is refused, whatever is odd in it: the member keeps what it has."""

from __future__ import annotations

import copy
import json
import zlib
from collections.abc import Iterator
from typing import Any

import pytest

from jetstream_protocol.errors import StorageError
from jetstream_protocol.types import NodeId, WallUs
from jetstream_server.metadata.state import commands
from jetstream_server.metadata.state.command_json import Command, encode_command
from jetstream_server.metadata.state.nodes import Addresses
from jetstream_server.metadata.state.registry import Registry

ODD: list[Any] = [None, [], {}, "x", -1, 1.5, True, [[]], {"a": 1}, 10**30, [1, 2, 3]]


@pytest.fixture(scope="module")
def lines() -> list[Any]:
    """A snapshot in which there is something of everything, as JSON."""
    registry = Registry()
    addresses = Addresses(grpc="a:1", data="a:2", raft="a:3", http="a:4")

    def do(command: Command) -> dict[str, Any]:
        result = registry.apply(encode_command(command), registry.revision + 1)
        assert "error" not in result
        return dict(result)

    node, at = NodeId(0), WallUs(1)
    level = commands.FEATURE_LEVEL_MAX
    do(commands.RegisterNode(session="s", node_id=node, addresses=addresses,
                             feature_level_max=level))  # fmt: skip
    do(commands.SetCluster(cluster_id="c", feature_level=level))
    do(commands.CreateStream(name="__activity", subject="", replicas=(node,), created_at_us=at,
                             internal=True))  # fmt: skip
    do(commands.CreateStream(name="x", subject="x.>", group="g", replicas=(node,),
                             created_at_us=at))  # fmt: skip
    do(commands.CreateToken(token_id="t", principal="user:x", hash="h", created_at_us=at))
    do(commands.AddAcl(principal="user:x", operations=("read",), allow=True, stream="*",
                       subject=">"))  # fmt: skip
    return [json.loads(line) for line in zlib.decompress(registry.snapshot()).split(b"\n")]


def places(value: Any, *place: str | int) -> Iterator[tuple[str | int, ...]]:
    """Where the value has values in it."""
    inner = enumerate(value) if isinstance(value, list) else ()
    for key, each in value.items() if isinstance(value, dict) else inner:
        yield (*place, key)
        yield from places(each, *place, key)


def test_a_snapshot_with_an_odd_value_anywhere_is_taken_whole_or_refused(lines: list[Any]) -> None:
    refused = 0
    for *path, last in places(lines):
        for odd in ODD:
            changed = copy.deepcopy(lines)
            holder: Any = changed
            for key in path:
                holder = holder[key]
            holder[last] = odd
            data = zlib.compress("\n".join(map(json.dumps, changed)).encode())
            registry = Registry()
            try:
                registry.restore(data)
            except StorageError:
                refused += 1
                assert registry.snapshot() == Registry().snapshot(), "nothing has changed"
            else:
                registry.snapshot()
    assert refused > 100
