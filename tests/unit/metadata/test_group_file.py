import json
from dataclasses import replace
from pathlib import Path

import pytest

from jetstream_protocol.errors import PreconditionFailedError, StorageError
from jetstream_protocol.types import NodeId
from jetstream_server.metadata.raft.group_file import Group, GroupFile

ADDRESSES = tuple((NodeId(number), f"host-{number}:1") for number in range(3))
GROUP = Group(NodeId(1), ADDRESSES)


def opened(directory: Path, group: Group = GROUP, *, accept_voters: bool = False) -> Group:
    return GroupFile.open(str(directory), group, accept_voters=accept_voters).group


def belongs_to_ours(directory: Path) -> None:
    file = GroupFile.open(str(directory), GROUP, accept_voters=False)
    file.replace(replace(file.group, cluster_id="ours"))


def test_a_new_folder_takes_what_the_configuration_says(tmp_path: Path) -> None:
    assert opened(tmp_path / "new") == GROUP
    assert opened(tmp_path / "new") == GROUP


def test_the_cluster_id_is_there_at_the_next_start(tmp_path: Path) -> None:
    belongs_to_ours(tmp_path)
    assert opened(tmp_path).cluster_id == "ours"


def test_a_folder_of_another_node_is_refused(tmp_path: Path) -> None:
    opened(tmp_path)
    with pytest.raises(PreconditionFailedError, match="belongs to node 1, but this is node 2"):
        opened(tmp_path, Group(NodeId(2), ADDRESSES), accept_voters=True)


def test_other_voters_are_refused_unless_accepted_and_then_they_stay(tmp_path: Path) -> None:
    belongs_to_ours(tmp_path)
    alone = Group(NodeId(1), ADDRESSES[1:2])
    with pytest.raises(PreconditionFailedError, match=r"voters \[0, 1, 2\]"):
        opened(tmp_path, alone)
    assert opened(tmp_path, alone, accept_voters=True).cluster_id == "ours"
    assert opened(tmp_path, alone).voters == (1,)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": 2}', '{"format": 1, "node_id": "x"}'])
def test_an_unreadable_file_is_refused_and_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "group.json").write_text(text)
    with pytest.raises(StorageError, match=r"group\.json"):
        opened(tmp_path)


def test_every_flipped_bit_is_found(tmp_path: Path) -> None:
    belongs_to_ours(tmp_path)
    file = tmp_path / "group.json"
    whole = file.read_bytes()
    for at in range(len(whole)):
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[at] ^= 1 << bit
            file.write_bytes(damaged)
            with pytest.raises(StorageError, match="is damaged"):
                opened(tmp_path)


def test_the_file_of_an_earlier_release_is_read(tmp_path: Path) -> None:
    """It has no checksum; nor has one that an operator has corrected."""
    values = {"format": 1, "node_id": 1, "voters": [0, 1, 2], "cluster_id": "ours"}
    (tmp_path / "group.json").write_text(json.dumps(values))
    assert opened(tmp_path).cluster_id == "ours"


@pytest.mark.parametrize("beside", ["journal", "snapshot", "synced"])
def test_a_file_that_is_missing_beside_the_rest_is_refused_unless_vouched_for(
    tmp_path: Path, beside: str
) -> None:
    """A recovered group would let those in that it left behind."""
    (tmp_path / beside).write_bytes(b"")
    with pytest.raises(StorageError) as caught:
        opened(tmp_path)
    assert f"{tmp_path}/group.json is missing" in caught.value.message
    assert f"move {tmp_path} away" in caught.value.message
    assert not (tmp_path / "group.json").exists()
    assert opened(tmp_path, accept_voters=True) == GROUP
    assert opened(tmp_path) == GROUP


def test_a_damaged_file_is_refused_in_words_that_say_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "group.json").write_text('{"format": 1, "nod')
    with pytest.raises(StorageError) as caught:
        GroupFile.read(str(tmp_path))
    assert f"{tmp_path}/group.json is damaged" in caught.value.message
    assert f"move {tmp_path} away" in caught.value.message
