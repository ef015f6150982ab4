"""What has to hold in every state: committed records are where they have to be, and logs match."""

from __future__ import annotations

from collections.abc import Sequence

from jetstream_server.metadata.state.streams import StreamMetadata
from tests.model.log import Entry
from tests.model.nodes import Facts


def violation_of_nodes(
    stream: StreamMetadata, nodes: Sequence[Facts], committed: tuple[Entry, ...]
) -> str:
    """What is wrong with the nodes of the stream, "": nothing. `nodes`: one for each id."""
    for node_id in (*stream.isr, *stream.elr):
        fact = nodes[node_id]
        if not fact.may_have_lost and fact.entries[: len(committed)] != committed:
            return (
                f"node {node_id} is in ISR {stream.isr} or ELR {stream.elr} with "
                f"{fact.entries}; committed: {committed}"
            )
    for a in range(len(nodes)):
        for b in range(a):
            one, other = nodes[a], nodes[b]
            if not match(one.entries, other.entries):
                return f"logs {one.entries} and {other.entries} do not match"
            if one.led_epoch == other.led_epoch >= 0:
                return f"nodes {a} and {b} lead epoch {one.led_epoch}"
    return ""


def match(one: tuple[Entry, ...], other: tuple[Entry, ...]) -> bool:
    """Whether the same epoch at an offset means the same records up to there."""
    for offset in range(min(len(one), len(other)) - 1, -1, -1):
        if one[offset].leader_epoch == other[offset].leader_epoch:
            return one[: offset + 1] == other[: offset + 1]
    return True


def common_length(one: tuple[Entry, ...], other: tuple[Entry, ...]) -> int:
    """How many records are the same in both, from the start."""
    length = 0
    while length < min(len(one), len(other)) and one[length] == other[length]:
        length += 1
    return length
