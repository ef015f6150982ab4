"""What `cluster health` calls a problem."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from jetstream_client.cli.commands.cluster import cluster_row
from jetstream_client.cli.commands.drain import can_move
from jetstream_client.cli.commands.health import lines_of, lines_of_notes, notes_of, problems_of
from jetstream_client.transport import wire
from jetstream_client.values.types import (
    ClusterInfo,
    DamagedRange,
    Node,
    ReplicaProgress,
    StreamDescription,
)
from jetstream_protocol.generated import api_pb2 as pb

NODES = tuple(Node(n, f"h{n}:1", f"h{n}:2", f"h{n}:4", "", 1, False, False) for n in range(3))
WELL = ClusterInfo("c", 0, NODES, (), "0", 0)


def stream(**fields: Any) -> StreamDescription:
    config = pb.StreamConfig(replicas=3, min_insync_replicas=2)
    known = pb.Stream(
        id=7, name="o", subject="o.>", config=config, replicas=[0, 1, 2], isr=[0, 1, 2]
    )
    return replace(wire.undescribed(known, "online"), **{"leader": 0, **fields})


def kinds(cluster: ClusterInfo, *streams: StreamDescription) -> list[str]:
    return [problem.kind for problem in problems_of(cluster, streams)]


def with_node(**fields: Any) -> ClusterInfo:
    return replace(WELL, nodes=(replace(NODES[0], **fields), *NODES[1:]))


def test_a_cluster_where_all_is_well_has_no_problem_nor_has_one_with_a_draining_node() -> None:
    assert kinds(WELL, stream()) == []
    assert kinds(with_node(draining=True), stream()) == []


def test_a_node_that_gets_nothing_new_is_shown() -> None:
    shown = [node["state"] for node in cluster_row(with_node(disk_full=True))["nodes"]]
    assert shown == ["disk full", "serving", "serving"]


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"leader": -1, "state": "offline: waits for node 0"}, "no_leader"),
        ({"state": "unknown: node 0 does not answer as its leader"}, "leader_silent"),
        ({"state": "offline: fsync failed"}, "log_offline"),
        ({"isr": (0,)}, "too_few_in_sync"),
        ({"isr": (0, 1)}, "out_of_sync"),
        ({"damaged": (DamagedRange(1, 5, 9),)}, "records_damaged"),
        ({"last_append": datetime(2100, 1, 1, tzinfo=UTC)}, "times_ahead"),
    ],
)
def test_each_thing_that_is_wrong_with_a_stream_is_one_problem(
    fields: dict[str, Any], kind: str
) -> None:
    (problem,) = problems_of(WELL, [stream(**fields)])
    assert (problem.kind, problem.about) == (kind, "o@o.>")
    assert "o@o.>" in problem.reason


def test_the_worst_comes_first() -> None:
    broken = replace(with_node(fenced=True), controller=-1)
    assert kinds(broken, stream(isr=(0, 1)), stream(leader=-1)) == [
        "no_controller",
        "node_fenced",
        "no_leader",
        "out_of_sync",
    ]
    assert kinds(with_node(not_ready=("not connected to NATS",))) == ["node_not_ready"]


def test_ten_thousand_streams_in_trouble_are_a_few_lines_for_each_reason() -> None:
    bad = [stream(isr=(0, 1)) for _ in range(10_000)]
    found = problems_of(with_node(fenced=True), [*bad, stream(leader=-1)])
    lines = lines_of(found)
    assert len(lines) == 7
    assert lines[:2] == ["not healthy:", "* node 0 is not heard: is it down?"]
    assert lines[2].startswith("* stream o@o.> has no leader")
    assert lines[3] == lines[5] == "* stream o@o.> has node 2 out of sync"
    assert lines[6] == "* and 9,997 more: streams with nodes out of sync; --all shows them"
    assert len(lines_of(found, everything=True)) == 1 + len(found)
    assert lines_of([]) == ["healthy"]


def test_a_drained_node_keeps_what_no_other_node_in_sync_can_lead() -> None:
    cluster = replace(WELL, nodes=(NODES[0], replace(NODES[1], fenced=True), NODES[2]))
    assert can_move(cluster, [stream(isr=(0, 1))], 0) == []
    assert can_move(cluster, [stream(isr=(0,))], 0) == []
    assert can_move(cluster, [stream(isr=(0, 2))], 0) == [stream(isr=(0, 2))]


def test_where_an_election_may_have_lost_records_is_noted_and_is_no_problem() -> None:
    lossy = stream(lossy_elections=2)
    assert kinds(WELL, lossy) == []
    assert notes_of(WELL, [stream()]) == []
    notes = notes_of(WELL, [stream(), *[lossy] * 5])
    lines = lines_of_notes(notes)
    assert lines[0] == (
        "note: stream o@o.>: committed records may have been lost in 2 elections: compare with "
        "what publishers know"
    )
    assert lines[3:] == ["note: and 2 more such streams; --all shows them"]
    assert lines_of_notes(notes, everything=True) == [lines[0]] * 5


def test_an_observer_that_does_not_follow_is_noted_and_is_no_problem() -> None:
    followed = (ReplicaProgress(2, 5, 0),)
    observed = stream(replicas=(0, 1), isr=(0, 1), observers=(2,), progress=followed)
    assert kinds(WELL, observed) == []
    assert notes_of(WELL, [observed]) == []
    said = "stream o@o.>: its observer on node 2 does not follow; readers use other copies"
    unheard = replace(observed, progress=(ReplicaProgress(2, -1, None),))
    assert notes_of(WELL, [unheard]) == [said]
    fenced = replace(WELL, nodes=(*NODES[:2], replace(NODES[2], fenced=True)))
    assert notes_of(fenced, [observed]) == [said]


def test_a_limit_on_copies_is_noted_and_is_no_problem() -> None:
    limited = replace(WELL, copy_bytes_per_second=1024 * 1024)
    (note,) = notes_of(limited, [stream()])
    assert note.startswith("nodes copy 1MiB a second at most")
    assert problems_of(limited, [stream()]) == []
