"""What must hold of a run of programs, and the name of each way in which it may not.

===============  ==============================================================================
lost             a record that was acknowledged is not in the log, there and whole
denied           a record of which its publisher was told that it is not stored is in the log
duplicate        a record that was given to a publisher once is stored twice
invented         a record is in the log that nobody has published
reordered        records of one publisher stand in another order in a stream
no outcome       a record of a publisher that went on has no outcome by its delivery timeout
skipped          a cursor or a group has passed a record that it had not handed out
repeated         a reader began before a position whose commit had been acknowledged
two readers      a member has handed out records of a stream that another one read already
ping-pong        a process of an instance ended as fenced, although none has come after it
not fenced       a process of an instance went on although another one has come after it
output           an output of `process` is missing, stored twice, or another one than expected
output order     outputs of one key of one stream are stored in another order
failed           a program ended, or was told of an error that no user would expect
starved          a stream was not read to its end in time, after the last fault
===============  ==============================================================================

A record may be handed out again: after an interrupt, a kill, a seek. What one reader hands out
after another must begin at or before the first record that neither has handed out.
"""

from __future__ import annotations

import math
import signal
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple

from tests.chaos.consumers.journal import FENCED, Event, Journal
from tests.chaos.consumers.program import DELIVERY_SECONDS, ENDED_BY_ERROR, ENDED_FENCED
from tests.chaos.consumers.streams import INPUT, OUTPUT, PARTS, SESSION_SECONDS
from tests.chaos.damage.checker import Anomaly

SHOWN = 5
LATE_SECONDS = 15.0
"""How much later than promised something may be noted on a busy machine, beside frozen spans."""
SEEN_SECONDS = 10.0
"""How long a record that was handed out may take until it is noted: its process may stand still."""


class Kind(StrEnum):
    LOST = "lost"
    DENIED = "denied"
    DUPLICATE = "duplicate"
    INVENTED = "invented"
    REORDERED = "reordered"
    NO_OUTCOME = "no outcome"
    SKIPPED = "skipped"
    REPEATED = "repeated"
    TWO_READERS = "two readers"
    PING_PONG = "ping-pong"
    NOT_FENCED = "not fenced"
    OUTPUT = "output"
    OUTPUT_ORDER = "output order"
    FAILED = "failed"
    STARVED = "starved"


class Stored(NamedTuple):
    offset: int
    value: str
    key: str | None


class Purge(NamedTuple):
    """Asked for at that time, by the monotonic clock; done then or later, or not."""

    at: float
    stream: str
    before: int


@dataclass(slots=True)
class History:
    """journals: of all processes, in the order of their start. logs: what each stream holds at the
    end, in order. purges: in their order. starts: the first offset that each stream keeps in the
    end. ended_at: when everything had come to rest."""

    journals: list[Journal] = field(default_factory=list)
    logs: dict[str, list[Stored]] = field(default_factory=dict)
    purges: list[Purge] = field(default_factory=list)
    starts: dict[str, int] = field(default_factory=dict)
    ended_at: float = 0.0

    def purged(self, stream: str, at: float) -> int:
        """What is before that may have been removed by then."""
        found = (each.before for each in self.purges if each.stream == stream and each.at <= at)
        return max(found, default=0)

    def may_follow(self, stream: str, first: int, due: Iterable[int], at: float) -> bool:
        """Whether a reader may go on at `first`, where one of those offsets was due."""
        upto = self.purged(stream, at)
        return any(each == first or each < first <= upto for each in due)


def check(history: History) -> list[Anomaly]:
    journals = history.journals
    senders = [each for each in journals if each.kind == "sender"]
    published = {name: log for name, log in history.logs.items() if name != OUTPUT}
    found = [*_stored(senders, published, history.starts)]
    found += _outcomes(senders, history.ended_at)
    found += _purges(history)
    for reader in sorted({each.reader for each in journals if each.kind == "cursor"}):
        found += _cursor(reader, [each for each in journals if each.reader == reader], history)
    for group in sorted({each.reader for each in journals if each.kind in ("member", "churner")}):
        members = [each for each in journals if each.reader == group]
        found += Reading(group, history).check(members)
        found += _instances(members)
    found += _outputs(published, history.logs.get(OUTPUT, []), history.starts)
    found += _failures(journals)
    return found


# Publishers.


def _purges(history: History) -> Iterator[Anomaly]:
    """Nothing is removed that nobody has asked to remove."""
    wrong = [
        f"{stream} begins at {start}, purged up to {history.purged(stream, history.ended_at)}"
        for stream, start in history.starts.items()
        if start > history.purged(stream, history.ended_at)
    ]
    return _anomalies(Kind.LOST, wrong)


def _stored(
    senders: Sequence[Journal], logs: Mapping[str, Sequence[Stored]], starts: Mapping[str, int]
) -> Iterator[Anomaly]:
    places: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for stream, log in logs.items():
        for record in log:
            places[record.value].append((stream, record.offset))
    sent = {f"{each.instance}:{event.values[0]}" for each in senders for event in each.of("sent")}
    lost, denied, unsettled = [], [], set()
    for sender in senders:
        for event in sender.of("acked", "refused", "unsettled"):
            value, where = f"{sender.instance}:{event.values[0]}", tuple(event.values[1:3])
            is_kept = event.what == "acked" and where[1] >= starts.get(where[0], 0)
            if is_kept and where not in places[value]:
                lost.append(f"{value} at {where}, stored at {places[value]}")
            if event.what == "refused" and places.get(value):
                denied.append(f"{value} at {places[value]}: {event.values[2]}")
            if event.what == "unsettled":
                unsettled.add(value)
    yield from _anomalies(Kind.LOST, lost)
    yield from _anomalies(Kind.DENIED, denied)
    twice = [f"{value} at {found}" for value, found in places.items() if len(found) > 1]
    yield from _anomalies(Kind.DUPLICATE, twice)
    yield from _anomalies(
        Kind.INVENTED, [value for value in places if places[value] and value not in sent]
    )
    for stream, log in logs.items():
        yield from _anomalies(Kind.REORDERED, _reordered(log, unsettled), stream)


def _reordered(log: Sequence[Stored], unsettled: set[str]) -> list[str]:
    last: dict[str, int] = {}
    wrong = []
    for record in log:
        sender, _, number = record.value.partition(":")
        if record.value in unsettled or not number.isdigit():
            continue
        if int(number) < last.get(sender, -1):
            wrong.append(f"{record.value} at {record.offset} after {last[sender]}")
        last[sender] = max(int(number), last.get(sender, -1))
    return wrong


def _outcomes(senders: Sequence[Journal], ended_at: float) -> Iterator[Anomaly]:
    """Of records whose `send` was interrupted nobody knows whether there is one."""
    wrong = []
    for sender in senders:
        settled = {each.values[0]: each.at for each in sender.of("acked", "refused", "unsettled")}
        open_ = {each.values[0] for each in sender.of("interrupted") if each.values}
        stood = sum(end - start for start, end in sender.frozen)
        lived_until = ended_at
        if sender.ended is not None and sender.ended != 0:
            lived_until = sender.events[-1].at if sender.events else 0.0
        for event in sender.of("sent"):
            number, due = event.values[0], event.at + DELIVERY_SECONDS + LATE_SECONDS + stood
            at = settled.get(number)
            if number not in open_ and (at is None or at > due) and due < lived_until:
                wrong.append(f"{sender.instance}:{number}, {'none' if at is None else 'late'}")
    return _anomalies(Kind.NO_OUTCOME, wrong)


# Readers.


def _cursor(reader: str, journals: Sequence[Journal], history: History) -> Iterator[Anomaly]:
    """One process after the other, one life of a consumer after the other. committed: where the
    next one begins, or later; a seek back is committed, too."""
    upto = committed = 0
    wrong, repeated = [], []
    for journal in journals:
        after: set[int] = set()  # What may come next; empty: anything that was handed out before.
        for event in journal.events:
            if event.what == "opened":
                after = set()
            elif event.what == "seeking":
                after = after | set(event.values) if after else after
                committed = min(committed, *event.values)
            elif event.what == "seeks":
                after = set(event.values)
            elif event.what == "committed" and len(after) == 1:
                committed = min(after)
            elif event.what == "got":
                _, first, last = event.values
                what = f"{first} by process {journal.number} at {event.at:.2f}"
                due = after or range(upto + 1)
                if not history.may_follow(INPUT, first, due, event.at):
                    wrong.append(f"{what}, due were {sorted(after) or f'at most {upto}'}")
                if not after and first < committed:
                    repeated.append(f"{what}, committed was {committed}")
                upto = max(upto, last + 1)
                after = {last + 1}
    yield from _anomalies(Kind.SKIPPED, wrong, f"{INPUT} by {reader}")
    yield from _anomalies(Kind.REPEATED, repeated, f"{INPUT} by {reader}")


@dataclass(slots=True)
class _Tenure:
    """A stream that a member reads. due: the next offset, None before the first. taken_at: when
    another member was given the stream; by: of which instance. handed_out: how often since."""

    due: int | None = None
    taken_at: float = 0.0
    by: str = ""
    handed_out: int = 0


class Reading:
    """What the members of one group have handed out, event by event, over all its processes."""

    def __init__(self, group: str, history: History) -> None:
        self._group = group
        self._may_follow = history.may_follow
        self._upto: dict[str, int] = defaultdict(int)
        self._committed: dict[str, int] = defaultdict(int)
        self._tenures: dict[tuple[int, str], _Tenure] = {}
        self._skipped: list[str] = []
        self._repeated: list[str] = []
        self._two: list[str] = []

    def check(self, journals: Sequence[Journal]) -> Iterator[Anomaly]:
        events = [(event, journal) for journal in journals for event in journal.events]
        for event, journal in sorted(events, key=lambda each: each[0].at):
            if event.what == "opened":
                for member, stream in list(self._tenures):
                    if member == journal.number:
                        del self._tenures[member, stream]
            elif event.what == "assigned":
                for stream in event.values:
                    self._assigned(journal, stream, event.at)
            elif event.what == "revoked":
                for stream in event.values:
                    self._revoked(journal, stream, event.at)
            elif event.what == "got":
                self._got(journal, event)
            elif event.what == "committed":
                self._has_committed(journal)
        yield from _anomalies(Kind.SKIPPED, self._skipped, f"{PARTS} by {self._group}")
        yield from _anomalies(Kind.REPEATED, self._repeated, f"{PARTS} by {self._group}")
        yield from _anomalies(Kind.TWO_READERS, self._two, f"{PARTS} by {self._group}")

    def _assigned(self, journal: Journal, stream: str, at: float) -> None:
        for (member, other), tenure in self._tenures.items():
            if other == stream and member != journal.number and not tenure.taken_at:
                tenure.taken_at, tenure.by = at, journal.instance
        self._tenures[journal.number, stream] = _Tenure()

    def _revoked(self, journal: Journal, stream: str, at: float) -> None:
        """Its reader waits meanwhile, unless another thread closes it: then one record may be on
        its way into the journal."""
        tenure = self._tenures.pop((journal.number, stream), None)
        if tenure is not None and journal.kind == "churner":
            tenure.taken_at = tenure.taken_at or at
            self._tenures[journal.number, stream] = tenure

    def _has_committed(self, journal: Journal) -> None:
        for (member, stream), tenure in self._tenures.items():
            if member == journal.number and tenure.due is not None and not tenure.taken_at:
                self._committed[stream] = max(self._committed[stream], tenure.due)

    def _got(self, journal: Journal, event: Event) -> None:
        stream, first, last = event.values
        what = f"{stream} {first} by process {journal.number} at {event.at:.2f}"
        tenure = self._tenures.get((journal.number, stream))
        if tenure is None:
            self._two.append(f"{what}, which did not have it")
            return
        upto = self._upto[stream]
        if tenure.due is None and not self._may_follow(stream, first, range(upto + 1), event.at):
            self._skipped.append(f"{what}, due was {self._upto[stream]} at most")
        if tenure.due is None and first < self._committed[stream]:
            self._repeated.append(f"{what}, committed was {self._committed[stream]}")
        if tenure.due is not None and not self._may_follow(stream, first, [tenure.due], event.at):
            self._skipped.append(f"{what}, due was {tenure.due}")
        tenure.due = last + 1
        self._upto[stream] = max(self._upto[stream], last + 1)
        if tenure.taken_at:
            tenure.handed_out += 1
            if not _may_overlap(journal, tenure, event.at):
                self._two.append(f"{what}, another's since {tenure.taken_at:.2f}")


def _may_overlap(journal: Journal, tenure: _Tenure, at: float) -> bool:
    """What a member may still hand out once its stream is another's: one record or batch, which it
    was about to when it was frozen; or, when a process of the same name has taken its place, what
    comes until it hears of that, or its session ends."""
    late = at - tenure.taken_at
    if tenure.by and tenure.by == journal.instance:
        return late <= SESSION_SECONDS + SEEN_SECONDS + _frozen(journal, tenure.taken_at)
    return tenure.handed_out == 1 and late <= SEEN_SECONDS + _frozen(journal, tenure.taken_at - 60)


def _frozen(journal: Journal, since: float) -> float:
    return sum(end - start for start, end in journal.frozen if end > since)


def _instances(members: Sequence[Journal]) -> Iterator[Anomaly]:
    """Of a name, the process that has joined last stays; each earlier one that still runs ends."""
    fenced, stayed = [], []
    for journal in members:
        others = [
            each
            for each in members
            if each is not journal and journal.instance and each.instance == journal.instance
        ]
        for told in journal.of("error"):
            if told.values[0] == FENCED and not any(
                each.begun < told.at and _joined(each) > journal.begun for each in others
            ):
                fenced.append(f"process {journal.number}, instance {journal.instance!r}")
        if journal.ended is None and any(
            _joined(journal) < (_joined(each) if each.ended is None else each.begun)
            for each in others
            if _joined(each) < math.inf
        ):
            stayed.append(f"process {journal.number}, instance {journal.instance!r}")
    yield from _anomalies(Kind.PING_PONG, fenced)
    yield from _anomalies(Kind.NOT_FENCED, stayed)


def _joined(journal: Journal) -> float:
    """When it had joined for the last time. One that was started first may come last: it was slow,
    or stood still."""
    return max((event.at for event in journal.of("opened")), default=math.inf)


# Outputs.


def _outputs(
    published: Mapping[str, Sequence[Stored]], log: Sequence[Stored], starts: Mapping[str, int]
) -> Iterator[Anomaly]:
    """Of records that were removed there may be one or not."""
    expected = {
        f"{stream}:{record.offset}": record.key
        for stream, records in published.items()
        if stream.startswith(f"{PARTS}-")
        for record in records
    }
    stored = Counter(record.value for record in log)
    wrong = [f"{value} is missing" for value in expected.keys() - stored.keys()]
    wrong += [
        f"{value} is none"
        for value in stored.keys() - expected.keys()
        if not _was_removed(value, starts)
    ]
    wrong += [f"{value} is there {count} times" for value, count in stored.items() if count > 1]
    wrong += [
        f"{record.value} has the key {record.key!r}"
        for record in log
        if record.value in expected and expected[record.value] != record.key
    ]
    yield from _anomalies(Kind.OUTPUT, sorted(wrong), OUTPUT)
    of_key: dict[tuple[str, str | None], list[int]] = defaultdict(list)
    for record in log:
        stream, _, offset = record.value.partition(":")
        if record.key is not None and offset.isdigit():
            of_key[stream, record.key].append(int(offset))
    misplaced = [
        f"{stream}:{after} of {key!r} after {before}"
        for (stream, key), offsets in of_key.items()
        for before, after in pairwise(offsets)
        if after < before
    ]
    yield from _anomalies(Kind.OUTPUT_ORDER, misplaced, OUTPUT)


def _was_removed(output: str, starts: Mapping[str, int]) -> bool:
    stream, _, offset = output.partition(":")
    return offset.isdigit() and int(offset) < starts.get(stream, 0)


# Errors.


def _failures(journals: Iterable[Journal]) -> Iterator[Anomaly]:
    wrong = []
    for journal in journals:
        who = f"process {journal.number}, {journal.kind} of {journal.reader}"
        wrong += [f"{who}: {event.values[0]}" for event in journal.of("crash")]
        wrong += [
            f"{who}: {event.values[0]}: {event.values[2]}"
            for event in journal.of("error")
            if not event.values[1] and not (journal.instance and event.values[0] == FENCED)
        ]
        may_end = {None, 0, -signal.SIGKILL, -signal.SIGTERM}
        if journal.instance:
            may_end |= {ENDED_FENCED, ENDED_BY_ERROR}
        if journal.ended not in may_end:
            wrong.append(f"{who} ended with {journal.ended}")
    yield from _anomalies(Kind.FAILED, wrong)


def _anomalies(kind: Kind, texts: Sequence[str], stream: str = "") -> Iterator[Anomaly]:
    if texts:
        more = f" and {len(texts) - SHOWN} more" if len(texts) > SHOWN else ""
        yield Anomaly(kind, stream, ", ".join(texts[:SHOWN]) + more)
