"""`jetstream stream digest`."""

from __future__ import annotations

from contextlib import ExitStack

import typer

from jetstream_client.cli import interrupts, options
from jetstream_client.cli.exits import Exit
from jetstream_client.cli.invocation import Invocation, common_options
from jetstream_client.cli.output import emit_json, print_table
from jetstream_client.cli.progress import progress_bar
from jetstream_client.cli.stream_or_group import for_each
from jetstream_client.migration.replica_digest import Comparison, ReplicaDigest, compare
from jetstream_client.values.types import StreamLike


@common_options(patience=True)
def digest(cli: Invocation, stream: options.StreamName) -> None:
    """Compare what the replicas of a stream hold.

    Each node reads its own files, checks them, and tells a digest: no record is moved. Replicas
    are equal to the byte, except for what one has compacted: each does so by itself. That part is
    compared by the last record of each key, with which a reader ends. Exit code 6: replicas
    differ, or one cannot be read. With the name of a keyed group it compares those of each of its
    streams.

    Example:  jetstream stream digest orders
    """
    are_equal = True
    with cli.client() as client:
        for name, found in for_each(client, stream, lambda each: _compared(cli, each)):
            are_equal = are_equal and found.is_equal
            if cli.json:
                emit_json(_row(found))
                continue
            if name != stream:
                print(f"{name}:")
            _draw(found)
    if not are_equal:
        raise typer.Exit(Exit.DAMAGED)


def _compared(cli: Invocation, stream: StreamLike) -> Comparison:
    with ExitStack() as stack:
        done, advance = 0, None

        def progress(total: int, now: int) -> None:
            nonlocal done, advance
            advance = advance or stack.enter_context(progress_bar(total))
            advance(now - done)
            done = now

        return interrupts.run(compare(cli.config, stream, progress))


def _row(found: Comparison) -> dict[str, object]:
    return {
        "stream": found.stream.name,
        "start": found.start,
        "end": found.end,
        "bytes_from": found.bytes_from,
        "equal": found.is_equal,
        "replicas": [
            {
                "node": each.node,
                "digest": each.digest,
                "differs_at": each.differs_at,
                "by_key": each.by_key,
                "problem": each.problem,
            }
            for each in found.replicas
        ],
    }


def _draw(found: Comparison) -> None:
    rows = [
        (each.node, each.digest or "-", _note(each, found.stream.leader)) for each in found.replicas
    ]
    print_table(("NODE", "DIGEST", ""), rows)
    print(f"offsets {found.start} to {found.end - 1}" if found.end > found.start else "no offsets")
    if found.bytes_from > found.start:
        print(f"to offset {found.bytes_from - 1} by the last record of each key, as compacted")


def _note(replica: ReplicaDigest, leader: int) -> str:
    note = "leader" if replica.node == leader else ""
    if replica.differs_at is not None:
        start, end = replica.differs_at
        how = ", in the last record of a key" if replica.by_key else ""
        note = f"{note} differs from offset {start} to {end - 1}{how}".strip()
    if replica.problem:
        note = f"{note} {replica.problem}".strip()
    return note
