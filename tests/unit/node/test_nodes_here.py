"""Several nodes of one machine: which they are, and what is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from jetstream_server.node.config import ConfigurationError
from jetstream_server.node.nodes_here import NodesHere, configured


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("JETSTREAM_")]:
        monkeypatch.delenv(name)


def here(folder: Path, count: int, machine: int | None = None, **values: object) -> NodesHere:
    file = folder / "machines.yaml"
    file.write_text(yaml.safe_dump({"data": str(folder / "data"), "insecure": True, **values}))
    return configured(file, {}, machine, count)


def machines(count: int, **values: object) -> list[dict[str, object]]:
    return [
        {
            "id": number,
            "host": f"log{number}",
            **{
                port: {"listen": f"0.0.0.0:{9292 + at}", "advertise": f"log{number}:{9292 + at}"}
                for at, port in enumerate(("grpc", "data", "raft", "http"))
            },
            **values,
        }
        for number in range(count)
    ]


def test_a_file_without_nodes_is_one_machine(tmp_path: Path) -> None:
    found = here(tmp_path, 4)
    assert [node.id for node in found.nodes] == [0, 1, 2, 3]
    assert [node.grpc.listen for node in found.nodes] == [
        "127.0.0.1:9292", "127.0.0.1:9302", "127.0.0.1:9312", "127.0.0.1:9322",
    ]  # fmt: skip
    assert {node.rack for node in found.nodes} == {"machine-0"}
    assert list(found.config.voter_addresses) == [0, 1, 2]


def test_each_machine_runs_its_own_nodes_of_a_cluster_that_all_agree_on(tmp_path: Path) -> None:
    found = here(tmp_path, 2, machine=1, nodes=machines(3))
    assert [node.id for node in found.nodes] == [100, 101]
    assert [node.http.advertise for node in found.nodes] == ["log1:9295", "log1:9305"]
    assert {node.rack for node in found.nodes} == {"log1"}
    assert [node.id for node in found.config.nodes] == [0, 1, 100, 101, 200, 201]
    assert found.values == here(tmp_path, 2, machine=0, nodes=machines(3)).values


@pytest.mark.parametrize(
    ("count", "nodes", "voters"),
    [
        (1, 1, [0]),
        (2, 1, [0, 1]),
        (2, 2, [0, 1, 100]),
        (8, 2, [0, 1, 100]),
        (4, 3, [0, 100, 200]),
        (4, 4, [0, 100, 200]),
        (2, 5, [0, 100, 200, 300, 400]),
    ],
)
def test_voters_are_on_as_many_machines_as_possible(
    tmp_path: Path, count: int, nodes: int, voters: list[int]
) -> None:
    assert here(tmp_path, count, 0, nodes=machines(nodes)).config.voters == voters


def test_a_voter_of_the_file_is_the_first_node_of_its_machine(tmp_path: Path) -> None:
    assert here(tmp_path, 4, 0, nodes=machines(3), voters=[2]).config.voters == [200]


def test_another_number_of_nodes_leaves_the_ids_of_those_before(tmp_path: Path) -> None:
    few, many = (here(tmp_path, count, 2, nodes=machines(3)) for count in (2, 5))
    assert many.nodes[:2] == few.nodes


def test_a_rack_label_of_the_file_stays(tmp_path: Path) -> None:
    found = here(tmp_path, 2, 0, nodes=machines(1, rack="b"))
    assert {node.rack for node in found.nodes} == {"b"}


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"nats": {"embedded": True}}, "nats.embedded"),
        ({"nodes": machines(3), "insecure": False}, "insecure"),
        ({"nodes": [{"id": 0, "grpc": "127.0.0.1:65530"}]}, "127.0.0.1:65540"),
        ({"nodes": [{"id": 0, "data": "127.0.0.1:9302"}]}, "advertised as 127.0.0.1:9302"),
        ({"nodes": [{"id": 700}]}, "nodes"),
    ],
)
def test_what_cannot_work_is_refused(tmp_path: Path, values: dict[str, object], says: str) -> None:
    machine = None if "nodes" not in values else values["nodes"][0]["id"]  # type: ignore[index]
    with pytest.raises(ConfigurationError, match=says):
        here(tmp_path, 2, machine, **values)


def test_the_folder_of_a_single_node_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "meta.json").write_text("{}")
    with pytest.raises(ConfigurationError, match="node-0"):
        here(tmp_path, 2)
    assert not (tmp_path / "data" / "cluster.yaml").exists()


def test_a_variable_must_not_replace_the_machines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JETSTREAM_NODES", "[{}]".format('{"id": 3}'))
    with pytest.raises(ConfigurationError, match="JETSTREAM_NODES"):
        here(tmp_path, 2)
