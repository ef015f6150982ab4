"""`jetstream-server unsafe-recover`: continues a metadata group without voters that are lost."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import typer

from jetstream_protocol.errors import JetstreamError, PreconditionFailedError
from jetstream_protocol.types import NodeId
from jetstream_server.log.data_folder import DataFolder
from jetstream_server.log.disk import OsDisk
from jetstream_server.metadata.member.unsafe_recovery import Recovery, plan_recovery, recover
from jetstream_server.metadata.state.streams import StreamMetadata
from jetstream_server.node.config import Config, NodeConfig

NAMES_SHOWN = 20
"""How many stream names are shown, of perhaps thousands."""


class Refused(Exception):
    """The recovery was refused; the message is one line. code: the exit code."""

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code


def unsafe_recover(config: Config, node: NodeConfig, *, yes: bool, dry_run: bool) -> None:
    """Show what may be lost, ask, and recover the folder of a stopped node. Raises Refused."""
    if not Path(config.data, "meta.json").exists():
        raise Refused(f"{config.data} is not the data folder of a node: nothing to recover")
    disk = OsDisk()
    try:
        folder = DataFolder.open(
            disk,
            str(config.data),
            node_id=node.id,
            cluster="" if config.is_alone else config.cluster,
        )
        try:
            _unsafe_recover(folder, config, yes=yes, dry_run=dry_run)
        finally:
            folder.close()
    except JetstreamError as error:
        raise Refused(error.message) from error
    finally:
        disk.close()


def _unsafe_recover(folder: DataFolder, config: Config, *, yes: bool, dry_run: bool) -> None:
    voters = [NodeId(voter) for voter in config.voter_addresses]
    if not voters:
        raise PreconditionFailedError("the configuration names no voters")
    recovery = plan_recovery(folder.metadata_directory, voters)
    for line in _described(folder, recovery):
        print(line)
    sys.stdout.flush()
    if dry_run:
        return
    if not yes:
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise Refused("it asks first, and this is no terminal: --yes goes on without", 2)
        typer.confirm("Recover?", abort=True)
    recover(folder.metadata_directory, recovery)
    print("recovered: do the same on every other node that stays, then start them")


def _described(folder: DataFolder, recovery: Recovery) -> Iterator[str]:
    known, lost = recovery.known, _named(recovery.lost)
    written = datetime.fromtimestamp(known.modified, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    yield f"node {folder.node_id} of cluster {recovery.before.cluster_id}, folder {folder.path}"
    yield f"  voters of its metadata  {_numbers(recovery.before.voters)}"
    yield f"  voters from now on      {_numbers(recovery.after.voters)}"
    yield f"  lost for good           {_numbers(recovery.lost)}"
    yield f"  its metadata            entry {known.last_index} of term {known.term}"
    yield f"  last written            {written}"
    yield f"  streams in it           {len(known.registry.streams)}"
    yield ""
    yield "What may be lost:"
    yield f"* what {lost} had agreed on without this node: streams created, altered or deleted,"
    yield "  and that replicas here are not in sync, with all that was acknowledged after that"
    if recovery.before.node_id not in recovery.after.voters:
        yield "* what this node knows of the metadata and the voters do not: it takes over theirs"
    if recovery.assumed_alive:
        others = _numbers(recovery.assumed_alive)
        yield f"* nodes that do not vote are taken to stay: {others}. If one of them is lost, too,"
        yield "  so are records that only it and lost nodes hold, which this does not say"
    if recovery.gone:
        yield f"* all records of {_count(recovery.gone)} of which no node that stays has a copy:"
        yield f"  {_names(recovery.gone)}"
    if recovery.observed:
        yield from _observed(recovery)
    if recovery.unled:
        yield f"* records of {_count(recovery.unled)} of which no replica that stays is in sync:"
        yield "  elect one by hand then (jetstream stream elect STREAM --unclean NODE):"
        yield f"  {_names(recovery.unled)}"
    yield ""
    yield f"From then on {lost} will be refused until the data folder there is moved away."


def _observed(recovery: Recovery) -> Iterator[str]:
    stream = recovery.observed[0]
    observer = recovery.observers_left(stream)[0]
    name, replicas = shlex.quote(stream.full_name), _numbers((*stream.replicas, observer))
    yield f"* the last records of {_count(recovery.observed)} of which only observers stay."
    yield "  Nobody leads such a stream until you make an observer a replica beside the lost ones,"
    yield "  and elect it by hand then:"
    yield f"    jetstream stream reassign {name} --replicas {replicas.replace(' ', '')}"
    yield f"    jetstream stream elect {name} --unclean {observer}"
    yield f"  {_names(recovery.observed, recovery.observers_left)}"


def _numbers(nodes: Sequence[NodeId]) -> str:
    return ", ".join(map(str, nodes))


def _named(nodes: Sequence[NodeId]) -> str:
    return f"node{'s' if len(nodes) > 1 else ''} {_numbers(nodes)}"


def _count(streams: Sequence[StreamMetadata]) -> str:
    return "1 stream" if len(streams) == 1 else f"{len(streams)} streams"


def _names(
    streams: Sequence[StreamMetadata],
    observers: Callable[[StreamMetadata], Sequence[NodeId]] | None = None,
) -> str:
    """observers: returns those of a stream that are left; they are named too."""
    shown = [stream.full_name for stream in streams[:NAMES_SHOWN]]
    if observers is not None:
        shown = [
            f"{name} ({_named(observers(stream))})"
            for name, stream in zip(shown, streams, strict=False)
        ]
    more = len(streams) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
