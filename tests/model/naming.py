"""Names: what may be called otherwise without any difference to what can happen.

Node ids are interchangeable, for the model lets everyone be elected who may be. Leader epochs,
stream epochs and the runs of a node are only compared with each other, and a new one is above all
there are: their order is all there is to them. Records are only compared for equality, and so are
the sequences of the commands of a run.

`renamed` gives a value under other names. The tables below name every field of every type: one
that the product gains stops the model until somebody has said what it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from jetstream_server.log.epochs import LeaderEpochCache
from jetstream_server.metadata.state.commands import ChangeIsr
from jetstream_server.metadata.state.nodes import NodeMetadata
from jetstream_server.metadata.state.streams import StreamMetadata
from jetstream_server.replication.core.follower import FollowerState
from jetstream_server.replication.core.leader import LeaderState
from jetstream_server.replication.core.messages import (
    Diverging,
    FetchRequest,
    LeaderSnapshot,
    OutOfRange,
    Records,
)
from jetstream_server.replication.core.pending_isr import InSyncReplicas
from jetstream_server.replication.core.progress import FollowerProgress
from jetstream_server.replication.replica import Replica
from tests.model.log import Entry, ModelLog, Slice
from tests.model.process import NODES, Group, Process, Proposal, incarnation_of, session_of
from tests.model.values import DEEP, Interned

EPOCH, STREAM_EPOCH, RUN, RECORD, SEQUENCE, COUNTER, UNREAD = range(7)
Name = tuple[int, ...]
"""Its kind; whose it is (a run's node, a sequence's incarnation); its number. The COUNTER of a run
is its newest sequence: another one is above all that are still known. UNREAD is what nobody looks
at any more: it becomes 0, or is left out."""
FIRST = {EPOCH: 0, STREAM_EPOCH: 0, RUN: 1, SEQUENCE: 1}
IDENTITY = tuple(range(NODES))


class Naming:
    """New names. `nodes`: a node's new id, by the old one. `names`: the numbers; a sequence that is
    missing is not known any more."""

    def __init__(self, nodes: tuple[int, ...], names: Mapping[Name, int]) -> None:
        self.nodes = nodes
        self.olds = tuple(nodes.index(new) for new in IDENTITY)
        """Old ids by the new ones."""
        self._nodes = {-1: -1, **dict(enumerate(nodes))}
        self._names = names
        self._immutable: dict[Any, Any] = {}

    def node(self, node_id: int) -> int:
        return self._nodes[node_id]

    def members(self, node_ids: Iterable[int]) -> tuple[int, ...]:
        return tuple(sorted(map(self.node, node_ids)))

    def epoch(self, epoch: int) -> Any:
        return epoch if epoch < 0 else self._names[EPOCH, epoch]

    def stream_epoch(self, epoch: int) -> Any:
        return epoch if epoch < 0 else self._names[STREAM_EPOCH, epoch]

    def run(self, node_id: int, run: int) -> Any:
        return self._names[RUN, node_id, run]

    def incarnation(self, incarnation: int) -> int:
        if incarnation < 0:
            return incarnation
        run, node_id = divmod(incarnation, NODES)
        return incarnation_of(self.node(node_id), self.run(node_id, run))

    def sequence(self, incarnation: int, sequence: int) -> int | None:
        """None: no command with this id can be applied any more."""
        return self._names.get((SEQUENCE, incarnation, sequence))

    def counter(self, incarnation: int, sequence: int) -> Any:
        return 0 if incarnation < 0 else self._names[COUNTER, incarnation, sequence]

    def unread(self, number: int) -> int:
        return 0

    def record(self, entry: Entry, offset: int) -> Entry:
        return Entry(self.epoch(entry.leader_epoch), self._names[RECORD, entry.number])

    def of(self, used: tuple[Name, ...]) -> tuple[int | None, ...]:
        """The new numbers of those names."""
        return tuple([self._names.get(name) for name in used])

    def entries(self, entries: Iterable[Entry], offset: int = 0) -> tuple[Entry, ...]:
        return tuple(self.record(entry, at) for at, entry in enumerate(entries, offset))

    def value(self, value: Any, known: dict[int, Any]) -> Any:
        """Of any type below. `known` keeps shared what is shared within the value."""
        if value is None:
            return None
        kind = type(value)
        if kind in DEEP:
            twin = known.get(id(value))
            if twin is None:
                twin = known[id(value)] = object.__new__(kind)
                for slot in KEPT[kind]:
                    setattr(twin, slot, getattr(value, slot))
                for slot, rename in RENAMED[kind].items():
                    setattr(twin, slot, rename(self, getattr(value, slot), known))
            return twin
        special = SPECIAL.get(kind)
        if special is not None:
            return special(self, value, known)
        found = self._immutable.get(value)
        if found is None:
            found = self._immutable[value] = self._replaced(value)
        return found

    def _replaced(self, value: Any) -> Any:
        kind = type(value)
        if kind is NodeMetadata:
            return _node_metadata(self, value)
        renames = RENAMED[kind].items()
        return replace(
            value, **{name: rename(self, getattr(value, name), {}) for name, rename in renames}
        )


class _Noting(dict[Name, int]):
    """Every name stays, and is noted."""

    def __missing__(self, name: Name) -> int:
        self[name] = name[-1]
        return name[-1]

    def get(self, name: Name, default: object = None) -> int:
        return self[name]


class _Looking(Naming):
    """Renames nothing, and sees which names there are, and at which epoch and offset records."""

    def __init__(self) -> None:
        super().__init__(IDENTITY, _Noting())
        self.placed: set[tuple[int, int, int]] = set()

    def record(self, entry: Entry, offset: int) -> Entry:
        self.placed.add((entry.leader_epoch, offset, entry.number))
        return super().record(entry, offset)

    def unread(self, number: int) -> int:
        return self._names[UNREAD, number] if number else 0

    @property
    def names(self) -> tuple[Name, ...]:
        return tuple(sorted(self._names))


Rename = Callable[[Naming, Any, dict[int, Any]], Any]


def _value(naming: Naming, value: Any, known: dict[int, Any]) -> Any:
    return naming.value(value, known)


def _node(naming: Naming, node_id: int, known: dict[int, Any]) -> int:
    return naming.node(node_id)


def _members(naming: Naming, node_ids: tuple[int, ...], known: dict[int, Any]) -> tuple[int, ...]:
    return naming.members(node_ids)


def _epoch(naming: Naming, epoch: int, known: dict[int, Any]) -> Any:
    return naming.epoch(epoch)


def _stream_epoch(naming: Naming, epoch: int, known: dict[int, Any]) -> Any:
    return naming.stream_epoch(epoch)


def _incarnation(naming: Naming, incarnation: int, known: dict[int, Any]) -> int:
    return naming.incarnation(incarnation)


def _entries(naming: Naming, entries: tuple[Entry, ...], known: dict[int, Any]) -> Any:
    return naming.entries(entries)


def _starts(naming: Naming, starts: list[tuple[int, int]], known: dict[int, Any]) -> Any:
    return [(naming.epoch(epoch), offset) for epoch, offset in starts]


def _by_node(naming: Naming, values: Mapping[int, Any], known: dict[int, Any]) -> Any:
    renamed = [(naming.node(key), naming.value(value, known)) for key, value in values.items()]
    return dict(sorted(renamed, key=lambda item: item[0]))


def _unread(naming: Naming, number: int, known: dict[int, Any]) -> int:
    return naming.unread(number)


RENAMED: dict[type, dict[str, Rename]] = {
    FollowerProgress: {
        "counts_from": _stream_epoch, "incarnation": _incarnation, "reported_ahead": _stream_epoch,
    },
    FollowerState: {
        "_incarnation": _incarnation, "_log": _value,
        "_node_id": _node, "stream": _value,
    },
    InSyncReplicas: {"agreed": _members, "maximal": _members, "pending": _value},
    LeaderEpochCache: {"_entries": _starts, "latest_epoch": _epoch},
    LeaderState: {
        "_followers": _by_node, "_in_sync": _value, "_log": _value, "_node_id": _node,
        "_nodes": _by_node, "stream": _value,
    },
    ModelLog: {"entries": _entries, "epochs": _value},
    Replica: {
        "following": _value, "incarnation": _incarnation, "leadership": _value, "log": _value,
        "node_id": _node, "stream": _value,
    },
    StreamMetadata: {
        "elr": _members, "isr": _members, "last_known": _members, "leader": _node,
        "leader_epoch": _epoch, "lossy_elections": _unread, "observers": _members,
        "replicas": _members, "stream_epoch": _stream_epoch, "target_replicas": _members,
        "unflushed": _members,
    },
    FetchRequest: {
        "follower": _node, "incarnation": _incarnation, "last_epoch": _epoch,
        "leader_epoch": _epoch, "stream_epoch": _stream_epoch,
    },
    LeaderSnapshot: {"stream_epoch": _unread},
    Diverging: {"request": _value, "epoch": _epoch, "snapshot": _value},
    OutOfRange: {"request": _value, "snapshot": _value},
}  # fmt: skip
"""What is renamed of a value, and how."""

_KEPT: dict[type, str] = {
    FollowerProgress: "_mark_at_us _mark_offset cannot_append caught_up_at_us counts damaged"
    " is_silent position",
    FollowerState: "_asks_flush_since _confirmable _rebuild high_watermark",
    InSyncReplicas: "_awaits_metadata _not_before_us",
    LeaderEpochCache: "",
    LeaderState: "_is_unnoted _lag_max_us _ticked_at_us epoch_start_offset high_watermark",
    ModelLog: "flushed_offset",
    Replica: "_flush_target _lag_default_us _lag_max_us _rebuild _recorded_failure _services"
    " _waiters closed"
    " closeness counters failures high_watermark is_deleted on_commit leader_log_start_offset"
    " newest unreadable_reason why_unheard",
    # Nothing is purged in the model, and there is no lake: their epochs are none there.
    StreamMetadata: "config created_at_us creator group id lake name partition partitions paused"
    " purged_epoch purged_offset queue_group readonly schema_version schemas subject"
    " was_compacted",
    FetchRequest: "cannot_append damaged fetch_offset flushed_offset stream_id",
    LeaderSnapshot: "high_watermark log_start_offset tombstones_gone_below",
    Diverging: "end_offset",
    OutOfRange: "",
}
KEPT = {kind: tuple(names.split()) for kind, names in _KEPT.items()}
"""What is left as it is."""


def _is_complete(kind: type) -> bool:
    slots = {field.name for field in fields(kind)} if is_dataclass(kind) else set(kind.__slots__)
    return slots == {*RENAMED[kind], *KEPT[kind]}


def _node_metadata(naming: Naming, node: NodeMetadata) -> NodeMetadata:
    node_id, incarnation = naming.node(node.node_id), naming.incarnation(node.incarnation)
    session = session_of(node_id, incarnation // NODES)
    return replace(node, node_id=node_id, incarnation=incarnation, session=session)  # type: ignore[arg-type]


def _isr_change(naming: Naming, change: ChangeIsr, known: dict[int, Any]) -> ChangeIsr:
    pairs = zip(change.isr, change.incarnations, strict=True)
    members = sorted((naming.node(node), naming.incarnation(run)) for node, run in pairs)
    return replace(
        change,
        leader=naming.node(change.leader),  # type: ignore[arg-type]
        leader_epoch=naming.epoch(change.leader_epoch),
        stream_epoch=naming.stream_epoch(change.stream_epoch),
        isr=tuple(node for node, _ in members),  # type: ignore[misc]
        incarnations=tuple(incarnation for _, incarnation in members),
    )


def _records(naming: Naming, answer: Records, known: dict[int, Any]) -> Records:
    found: Any = answer.slice
    if found is not None:
        found = Slice(naming.entries(found.entries, answer.request.fetch_offset))
    request, snapshot = naming.value(answer.request, known), naming.value(answer.snapshot, known)
    return Records(request, snapshot, found)


def _proposal(naming: Naming, proposal: Proposal, known: dict[int, Any]) -> Proposal:
    return Proposal(
        naming.node(proposal.node_id),
        naming.incarnation(proposal.incarnation),
        naming.sequence(proposal.incarnation, proposal.sequence) or 0,
        naming.value(proposal.change, known),
    )


def _group(naming: Naming, group: Group, known: dict[int, Any]) -> Group:
    nodes = sorted((naming.value(node, known) for node in group.nodes), key=lambda n: n.node_id)
    results = [
        (naming.incarnation(incarnation), naming.sequence(incarnation, sequence), code)
        for incarnation, sequence, code in group.results
    ]
    kept = sorted((run, number, code) for run, number, code in results if number is not None)
    return Group(tuple(nodes), naming.value(group.stream, known), tuple(kept))


def _process(naming: Naming, process: Process, known: dict[int, Any]) -> Process:
    return Process(
        node_id=naming.node(process.node_id),
        log=naming.value(process.log, known),
        replica=naming.value(process.replica, known),
        run=naming.run(process.node_id, process.run),
        incarnation=naming.incarnation(process.incarnation),
        sequence=naming.counter(process.incarnation, process.sequence),
        proposal=naming.value(process.proposal, known),
        power_lost=process.power_lost,
    )


SPECIAL: dict[type, Rename] = {
    Group: _group,
    ChangeIsr: _isr_change,
    Process: _process,
    Proposal: _proposal,
    Records: _records,
}
for _kind in RENAMED:
    assert _is_complete(_kind), f"every field of {_kind.__name__} has to be named here"


Seen = tuple[tuple[Name, ...], frozenset[tuple[int, int, int]]]
"""The names in a value; and of its records leader epoch, offset and number."""


class Named(Interned):
    """Values known by a number, and under other names by another."""

    def __init__(self, key: Callable[[Any], Any] = lambda value: value) -> None:
        super().__init__()
        self._key = key
        self._looks: dict[int, int] = {}
        self.seen = Interned()
        self._renamed: dict[Naming, dict[int, int]] = {}
        self._renamed_alike: dict[Any, int] = {}

    def of(self, value: Any) -> int:
        return self.number(self._key(value), value)

    def look(self, number: int) -> int:
        """The place in `seen` of what is called by name in it."""
        found = self._looks.get(number)
        if found is None:
            looking = _Looking()
            looking.value(self[number], {})
            seen = looking.names, frozenset(looking.placed)
            found = self._looks[number] = self.seen.number(seen, seen)
        return found

    def renamed(self, number: int, naming: Naming) -> int:
        """The number of the same value under those names."""
        known = self._renamed.get(naming)
        if known is None:
            known = self._renamed[naming] = {}
        found = known.get(number)
        if found is None:
            found = known[number] = self._rename(number, naming)
        return found

    def _rename(self, number: int, naming: Naming) -> int:
        used, _ = self.seen[self.look(number)]
        key = number, naming.nodes, naming.of(used)
        found = self._renamed_alike.get(key)
        if found is None:
            found = self._renamed_alike[key] = self.of(naming.value(self[number], {}))
        return found
