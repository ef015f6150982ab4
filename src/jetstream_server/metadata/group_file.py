"""Which group a metadata folder belongs to: `<directory>/group.json`, written atomically.

    {"format": 1, "node_id": 0, "voters": [0, 1, 2], "cluster_id": "…", "recoveries": ["…"]}

Raft is only safe among the voters it began with: a folder carried to another node, another
cluster, or into a configuration with other voters could outvote those who know better. So all
three are compared before anything else happens. `cluster_id` is "" until the group has agreed on
one; from then on links with another cluster are refused (handshake.py). `recoveries` has a token
for each time the group was recovered without voters it had lost (unsafe_recovery.py): who lacks one
is refused likewise.

Changing the voters is for operators: stop every node, start them with `accept_voters` once.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace

from jetstream_protocol.errors import PreconditionFailedError, StorageError
from jetstream_protocol.types import NodeId
from jetstream_server.metadata.files import read_file, replace_file

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Group:
    node_id: NodeId
    voters: tuple[NodeId, ...]
    cluster_id: str = ""
    recoveries: tuple[str, ...] = ()


class GroupFile:
    """The file in one folder, and what it says."""

    def __init__(self, directory: str, group: Group) -> None:
        self._path = os.path.join(directory, "group.json")
        self.group = group

    @classmethod
    def open(cls, directory: str, group: Group, *, accept_voters: bool) -> GroupFile:
        """Compare what the configuration says with the folder, which may be new.

        Raises PreconditionFailedError when they differ, StorageError for an unreadable file.
        """
        try:
            os.makedirs(directory, exist_ok=True)
            return cls._open(directory, group, accept_voters)
        except OSError as error:
            raise StorageError(f"metadata folder {directory}: {error}") from error

    @classmethod
    def _open(cls, directory: str, group: Group, accept_voters: bool) -> GroupFile:
        file = cls(directory, group)
        if not os.path.exists(file._path):
            file._write()
            return file
        known = _decode(read_file(file._path), file._path)
        _compare(known, group, file._path, accept_voters)
        file.group = replace(group, cluster_id=known.cluster_id, recoveries=known.recoveries)
        if file.group != known:
            file._write()
        return file

    @classmethod
    def read(cls, directory: str) -> GroupFile:
        """The file of a folder that has one. Raises StorageError."""
        path = os.path.join(directory, "group.json")
        try:
            return cls(directory, _decode(read_file(path), path))
        except OSError as error:
            raise StorageError(f"{path} cannot be read: {error.strerror}") from error

    def set_cluster_id(self, cluster_id: str) -> None:
        """Remember the id the group has agreed on. Raises StorageError."""
        self.replace(replace(self.group, cluster_id=cluster_id))

    def replace(self, group: Group) -> None:
        """Say this from now on. Raises StorageError."""
        self.group = group
        try:
            self._write()
        except OSError as error:
            raise StorageError(f"metadata folder: {self._path}: {error}") from error

    def _write(self) -> None:
        values = {
            "format": FORMAT,
            "node_id": self.group.node_id,
            "voters": list(self.group.voters),
            "cluster_id": self.group.cluster_id,
            "recoveries": list(self.group.recoveries),
        }
        replace_file(self._path, [json.dumps(values).encode() + b"\n"])


def _decode(data: bytes, path: str) -> Group:
    try:
        values = json.loads(data)
        if values["format"] != FORMAT:
            raise StorageError(
                f"{path} has format {values['format']}; this software reads {FORMAT}"
            )
        voters = tuple(NodeId(int(voter)) for voter in values["voters"])
        return Group(
            NodeId(int(values["node_id"])),
            voters,
            str(values["cluster_id"]),
            tuple(map(str, values.get("recoveries", ()))),
        )
    except (ValueError, KeyError, TypeError) as error:
        folder = os.path.dirname(path)
        raise StorageError(
            f"{path} is damaged ({error}); restore it, or, while a majority of the other voters "
            f"runs, move {folder} away and start again: see docs/operations.md"
        ) from error


def _compare(known: Group, configured: Group, path: str, accept_voters: bool) -> None:
    if known.node_id != configured.node_id:
        raise PreconditionFailedError(
            f"{path} belongs to node {known.node_id}, but this is node {configured.node_id}"
        )
    if known.voters != configured.voters and not accept_voters:
        raise PreconditionFailedError(
            f"{path}: this node's metadata was agreed on by the voters {list(known.voters)}, but "
            f"the configuration names {list(configured.voters)}; docs/operations.md says how to "
            "change them"
        )
