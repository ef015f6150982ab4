"""The group that a metadata folder belongs to: `<directory>/group.json`, written atomically.

    {"format": 2, "node_id": 0, "voters": {"0": "host:port", …}, "cluster_id": "…",
     "recoveries": ["…"], "crc": "…"}

Raft is safe only among its own voters: a folder moved to another node, another cluster, or a
configuration with other voters could outvote members that know more. So all three are compared
before anything else. In format 1, `voters` is a list of ids: those of the configuration, which has
to name the same ones. Format 2 is written once the group's own log has named the voters
(voters.py), as of the last committed change. From then on the configuration's are ignored.
`cluster_id` is "" until the group has agreed on one; from then on links with another cluster are
refused (handshake.py). `recoveries` has a token for each recovery without lost
voters (unsafe_recovery.py): nodes that lack one of them are refused as well.

It is written before anything else in the folder. **safety** If it is missing while other metadata
exists, the folder's owner and earlier recoveries are unknown. The node does not start then unless
an operator accepts it (`accept_voters`). `crc`: see identity_file.py.

While the log has named none, operators may also change the voters by stopping every node, and
starting each once with `accept_voters`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from jetstream_protocol.errors import PreconditionFailedError, StorageError
from jetstream_protocol.logfiles import identity_file
from jetstream_protocol.types import NodeId
from jetstream_server.metadata.raft.files import is_there, read_file, replace_file
from jetstream_server.metadata.raft.voters import Voters

CONFIGURED, NAMED = 1, 2
"""Formats: who says which nodes vote, the configuration or the group's log."""
_FIELDS = ("format", "node_id", "voters", "cluster_id", "recoveries")
_BESIDE = ("journal", "snapshot", "synced")


@dataclass(frozen=True, slots=True)
class Group:
    """voters: by id, with their addresses. is_named: the group's log has named them."""

    node_id: NodeId
    addresses: tuple[tuple[NodeId, str], ...]
    cluster_id: str = ""
    recoveries: tuple[str, ...] = ()
    is_named: bool = False

    @property
    def voters(self) -> tuple[NodeId, ...]:
        return tuple(node_id for node_id, _ in self.addresses)

    @property
    def voter_set(self) -> Voters:
        return Voters(self.addresses, len(self.recoveries))


class GroupFile:
    """The file of one folder and its content."""

    def __init__(self, directory: str, group: Group) -> None:
        self._path = os.path.join(directory, "group.json")
        self.group = group

    @classmethod
    def open(cls, directory: str, group: Group, *, accept_voters: bool) -> GroupFile:
        """Compare the configuration with the folder, which may be new.

        Raises PreconditionFailedError when they differ, StorageError for a file that is missing
        or unreadable.
        """
        try:
            os.makedirs(directory, exist_ok=True)
            return cls._open(directory, group, accept_voters)
        except OSError as error:
            raise StorageError(f"metadata folder {directory}: {error}") from error

    @classmethod
    def _open(cls, directory: str, group: Group, accept_voters: bool) -> GroupFile:
        file = cls(directory, group)
        if not is_there(file._path):
            if not accept_voters and any(
                is_there(os.path.join(directory, name)) for name in _BESIDE
            ):
                raise StorageError(
                    f"{file._path} is missing, and the rest of the metadata is there; restore it, "
                    f"or, while a majority of the other voters runs, move {directory} away and "
                    "start again; a node without other voters, of which you are sure that the "
                    "folder is its own, starts once with --accept-voters: see "
                    "docs/operations/lost_node.md"
                )
            file._write()
            return file
        known = _decode(read_file(file._path), file._path)
        _compare(known, group, file._path, accept_voters)
        if known.is_named:
            file.group = known
        else:
            file.group = replace(group, cluster_id=known.cluster_id, recoveries=known.recoveries)
            if file.group.voters != known.voters:
                file._write()
        return file

    @classmethod
    def exists(cls, directory: str) -> bool:
        """Whether the folder has a file, or anything beside which there should be one. Raises
        StorageError."""
        names = ("group.json", *_BESIDE)
        try:
            return any(is_there(os.path.join(directory, name)) for name in names)
        except OSError as error:
            raise StorageError(f"metadata folder {directory}: {error}") from error

    @classmethod
    def read(cls, directory: str) -> GroupFile:
        """The file of a folder that has one. Raises StorageError."""
        path = os.path.join(directory, "group.json")
        try:
            return cls(directory, _decode(read_file(path), path))
        except OSError as error:
            raise StorageError(f"{path} cannot be read: {error.strerror}") from error

    def replace(self, group: Group) -> None:
        """Replace the content. Raises StorageError."""
        self.group = group
        try:
            self._write()
        except OSError as error:
            raise StorageError(f"metadata folder: {self._path}: {error}") from error

    def _write(self) -> None:
        voters = {str(node_id): address for node_id, address in self.group.addresses}
        values = {
            "format": NAMED if self.group.is_named else CONFIGURED,
            "node_id": self.group.node_id,
            "voters": voters if self.group.is_named else list(self.group.voters),
            "cluster_id": self.group.cluster_id,
            "recoveries": list(self.group.recoveries),
        }
        replace_file(self._path, [identity_file.encode(values)])


def _decode(data: bytes, path: str) -> Group:
    try:
        values = identity_file.decode(data, _FIELDS)
        found, voters = values["format"], values["voters"]
        if found not in (CONFIGURED, NAMED):
            raise StorageError(f"{path} has format {found}; this software reads up to {NAMED}")
        addresses = voters if found == NAMED else dict.fromkeys(voters, "")
        return Group(
            NodeId(int(values["node_id"])),
            tuple(sorted((NodeId(int(voter)), str(at)) for voter, at in addresses.items())),
            str(values["cluster_id"]),
            tuple(map(str, values.get("recoveries", ()))),
            is_named=found == NAMED,
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        folder = os.path.dirname(path)
        raise StorageError(
            f"{path} is damaged ({error}); restore it, or, while a majority of the other voters "
            f"runs, move {folder} away and start again: see docs/operations/lost_node.md"
        ) from error


def _compare(known: Group, configured: Group, path: str, accept_voters: bool) -> None:
    if known.node_id != configured.node_id:
        raise PreconditionFailedError(
            f"{path} belongs to node {known.node_id}, but this is node {configured.node_id}"
        )
    if known.voters != configured.voters and not known.is_named and not accept_voters:
        raise PreconditionFailedError(
            f"{path}: this node's metadata was agreed on by the voters {list(known.voters)}, but "
            f"the configuration names {list(configured.voters)}; they are changed by `jetstream "
            "voters`. If they were changed while this node was down, let its configuration name "
            "the earlier ones until it has started once: see docs/operations/cluster.md. If the "
            "others were recovered by `jetstream-server unsafe-recover` and this node is to stay, "
            "run that here as well"
        )
