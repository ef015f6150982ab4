"""What must hold of the lake itself, and a name for each kind of failure.

==================  ===========================================================================
table               the table has a hole, an offset twice, an object that is not there, or other
                    batches than the log
orphan              an object that no table needs lies in the store long after its grace time
disk                a node keeps far more than the stream's local_max_bytes, though the store is
                    there
stalled             nothing was acknowledged while only the store was away
==================  ===========================================================================

What must hold of the replicas' copies is the damage campaign's (tests/chaos/damage/checker.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from jetstream_protocol.errors import CorruptBatchError
from jetstream_server.lake.stores import Store
from jetstream_server.lake.table import ListedObject, StreamTable
from tests.chaos.damage.checker import SHOWN, Anomaly
from tests.chaos.damage.copies import Copy
from tests.support.lake_objects import decode


class Kind(StrEnum):
    TABLE = "table"
    ORPHAN = "orphan"
    DISK = "disk"
    STALLED = "stalled"


def table_of(store: Store, location: str) -> StreamTable:
    """location: of a version of it, in the store."""
    return StreamTable(store, store.url, location.partition("/metadata/")[0], {})


def check_table(store: Store, location: str, start: int, end: int, copy: Copy) -> list[Anomaly]:
    """The version that counts, which is said to hold [start, end), against a replica's copy."""
    try:
        objects = table_of(store, location).objects(location)
        data = b"".join(decode(store.get(each.name)) for each in objects)
    except (OSError, CorruptBatchError) as error:
        return [Anomaly(Kind.TABLE, "", f"{location} cannot be read: {error}")]
    texts = []
    if problem := why_not_in_a_row(objects, start, end):
        texts.append(problem)
    if copy.log_start_offset == start and copy.data[: len(data)] != data:
        texts.append(f"the objects up to {end} hold other batches than node {copy.node}")
    return [Anomaly(Kind.TABLE, "", text) for text in texts]


def why_not_in_a_row(objects: Sequence[ListedObject], start: int, end: int) -> str:
    """ "" if they hold [start, end), each offset once."""
    at = start
    for each in objects:
        if each.begin != at:
            return f"after {at} comes an object that begins at {each.begin}"
        at = each.end
    return "" if at == end else f"the objects end at {at}, not at {end}"


def orphans(store: Store, location: str) -> list[str]:
    """What lies in the stream's folder, and no table needs."""
    table = table_of(store, location)
    listed = {each.name for each in store.list(f"{table.folder}/")}
    return sorted(listed - table.reached(location) - {table.marker_of(location)})


def check_orphans(names: Sequence[str]) -> list[Anomaly]:
    if not names:
        return []
    shown = ", ".join(name.rpartition("/")[2] for name in names[:SHOWN])
    return [Anomaly(Kind.ORPHAN, "", f"{len(names)} objects that no table needs: {shown}")]
