"""Names under which the API is answered."""

from __future__ import annotations

from pathlib import Path

import pytest

from jetstream_protocol.errors import PermissionDeniedError
from jetstream_server.node.config import load
from jetstream_server.node.listeners import own_names
from jetstream_server.serving.http.hosts import OwnHosts

TREE = Path(__file__).resolve().parents[3]
OWN = OwnHosts(["node0", "Node1.Example", ""])


@pytest.mark.parametrize(
    "header",
    [
        None, "localhost", "localhost:9295", "LocalHost.", "127.0.0.1", "127.0.0.1:1", "[::1]",
        "[2001:db8::1]:9295", "10.0.0.7:9295", "node0", "NODE0:9295", "node1.example.:80",
    ],
)  # fmt: skip
def test_own_names_and_addresses_are_answered(header: str | None) -> None:
    OWN.check(header)


@pytest.mark.parametrize(
    "header",
    [
        "evil.example", "evil.example:9295", "node0.evil.example", "127.0.0.1.evil.example",
        "localhost.evil.example", "node", "[evil]:80", "1.2.3", "node0@evil", "node0/evil", "é",
    ],
)  # fmt: skip
def test_other_names_are_refused(header: str) -> None:
    with pytest.raises(PermissionDeniedError, match="advertises"):
        OWN.check(header)


def test_the_names_are_those_of_the_file() -> None:
    config = load(TREE / "config" / "compose.yaml", environment={"JETSTREAM_CREDENTIAL": "x" * 20})
    assert set(own_names(config)) == {"node0", "node1", "node2"}
