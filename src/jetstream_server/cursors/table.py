"""The state of the leader of `__cursors`: the latest record of every key, and uncommitted writes.

Pure: requests in, records to append and answers out. The log is the truth: a new leader loads it.

    plan ──> records to append ──(appended)──> waits ──(committed)──> answers, and entries

Invariants. `committed_entries` holds only records that every later leader will have. Readers see
nothing else. A request is decided against all records appended before it, committed or not. It is
answered once all of them are committed, so no answer depends on a record that may still be lost. A
key counts for its creator until it is deleted, whoever writes it later. The revision of a record is
its offset, so it grows with every record of a key. **safety** While activity is recorded, a change
that has to be published is in one batch with its event (events.py), or is refused.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, takewhile
from sys import intern
from typing import NamedTuple

from jetstream_protocol.errors import (
    JetstreamError,
    PreconditionFailedError,
    QuotaExceededError,
    UnavailableError,
)
from jetstream_server.cursors.events import (
    EVENT_PREFIX,
    NO_CAUSE,
    Cause,
    CursorEvent,
    Event,
    event_about,
    event_key,
    waiting_event,
)
from jetstream_server.cursors.records import (
    CONSUMER_PREFIX,
    CURSOR_PREFIX,
    GROUP_PREFIX,
    creator_of,
    with_creator,
)

NO_REVISION = -1
"""The expected revision of a key that has no record."""
KEYS_MAX = 250_000
"""Upper bound on cursors, and on consumer groups: 100 MB of memory for each of them on the node
that leads `__cursors`."""

EVENTS_WAITING_MAX = 20_000
"""Upper bound on events that wait for their commit or to be noted. While so many wait, changes that
need one are refused."""
MOVES_WAITING_MAX = EVENTS_WAITING_MAX // 2
"""While so many wait, moves by hand are refused. The rest is for creations and deletions: consumers
must not suffer from a client that moves cursors faster than that can be published."""


class Entry(NamedTuple):
    """The latest record of a key. revision: its offset. creator: the principal that has created the
    key; "": none."""

    value: bytes
    revision: int
    creator: str = ""


class Fence(NamedTuple):
    """The committer of a position: a member of the consumer group `name` in that generation, or "":
    no member. The group decides whether it may commit (coordinator.py)."""

    name: str
    stream_id: int
    member_id: str = ""
    generation: int = 0


@dataclass(frozen=True, slots=True)
class Write:
    """A record to write. value: None deletes the key. expected_revision: write the record only if
    the key has this revision; NO_REVISION: only if it has none; None: in any case. creator: the
    principal whose a new key is, "" for none; creator_keys_max: how many keys it may have, 0: any
    number. cause: what an event about it says."""

    key: bytes
    value: bytes | None
    expected_revision: int | None = None
    fence: Fence | None = None
    creator: str = ""
    creator_keys_max: int = 0
    cause: Cause = NO_CAUSE


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a write. entry: the key's current record; None: there is none."""

    entry: Entry | None
    error: JetstreamError | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """Records to append at `base_offset`, in one batch, and the answer to each request. The answers
    may be sent once all records below `end_offset` are committed. A plan without records only waits
    for that. events: the keys of the events among the records."""

    base_offset: int
    keys: list[bytes]
    values: list[bytes | None]
    answers: list[list[Outcome]]
    creators: list[str] = field(default_factory=list)
    events: list[bytes] = field(default_factory=list)

    @property
    def end_offset(self) -> int:
        return self.base_offset + len(self.keys)

    def add(self, key: bytes, entry: Entry | None, creator: str = "") -> None:
        self.keys.append(key)
        self.values.append(None if entry is None else entry.value)
        self.creators.append(creator)


class CursorTable:
    """See the module."""

    def __init__(self, keys_max: int = KEYS_MAX) -> None:
        self._keys_max = keys_max
        self._committed: dict[bytes, Entry] = {}
        self._latest: dict[bytes, tuple[int, Entry | None]] = {}
        """For each key with uncommitted records: the offset of the last one, and its entry."""
        self._waiting: deque[Plan] = deque()
        self._sorted: list[bytes] | None = None
        self._created: Counter[str] = Counter()
        """How many keys each creator has, records that wait included."""
        self._kinds: Counter[bytes] = Counter()
        """How many keys there are of each kind, records that wait included."""
        self._events: dict[bytes, None] = {}
        """The keys of the committed events, in the order of the log."""
        self._uncommitted_events = 0

    @property
    def committed_entries(self) -> Mapping[bytes, Entry]:
        """The latest committed record of each key."""
        return self._committed

    def revision(self, key: bytes) -> int:
        """Of the latest committed record; NO_REVISION: there is none."""
        entry = self._committed.get(key)
        return NO_REVISION if entry is None else entry.revision

    @property
    def waits(self) -> bool:
        """Whether a plan waits for its commit."""
        return bool(self._waiting)

    def events(self, count_max: int, bytes_max: int) -> list[Event]:
        """The first committed events that wait to be noted, all of one leader epoch. At least one,
        if there is any, and not much more than that many bytes."""
        found: list[Event] = []
        for key in islice(self._events, count_max):
            event = waiting_event(key, self._committed[key].value)
            if found and event.leader_epoch != found[0].leader_epoch:
                break
            found.append(event)
            bytes_max -= len(self._committed[key].value)
            if bytes_max <= 0:
                break
        return found

    def load(
        self, offsets: Iterable[int], keys: Iterable[bytes | None], values: Iterable[bytes | None]
    ) -> None:
        """Take over committed records of the log, in their order."""
        self._sorted = None
        for offset, key, value in zip(offsets, keys, values, strict=True):
            if key is None:
                continue
            before = self._committed.get(key)
            entry = None if value is None else Entry(value, offset, intern(creator_of(key, value)))
            self._count(key, before, entry)
            self._list_event(key, entry)
            if entry is None:
                self._committed.pop(key, None)
            else:
                self._committed[key] = entry

    def plan(
        self,
        requests: Iterable[Sequence[Write]],
        base_offset: int,
        telling_epoch: int | None = None,
    ) -> Plan:
        """Decide the requests in their order. Changes nothing; `appended` does. telling_epoch: the
        leader epoch, if changes of cursors are to be published; else None."""
        plan = Plan(base_offset, [], [], [])
        planned: dict[bytes, Entry | None] = {}
        more = _More(Counter(), Counter())
        for writes in requests:
            plan.answers.append(
                [self._decide(write, planned, more, plan, telling_epoch) for write in writes]
            )
        return plan

    def _decide(
        self,
        write: Write,
        planned: dict[bytes, Entry | None],
        more: _More,
        plan: Plan,
        telling_epoch: int | None,
    ) -> Outcome:
        key, expected = write.key, write.expected_revision
        before = planned[key] if key in planned else self._newest(key)
        revision = NO_REVISION if before is None else before.revision
        if expected is not None and expected != revision:
            error = PreconditionFailedError(
                f"its revision is {_in_words(revision)}, not {_in_words(expected)}: another client "
                "has committed it meanwhile"
            )
            return Outcome(before, error)
        if write.value is None and before is None:
            return Outcome(None)
        kind = _kind_of(key)
        if before is None and self._kinds[kind] + more.kinds[kind] >= self._keys_max:
            return Outcome(None, _too_many_error(kind, self._keys_max))
        creator = write.creator if before is None else before.creator
        most = write.creator_keys_max
        if (
            before is None
            and creator
            and 0 < most <= self._created[creator] + more.created[creator]
        ):
            return Outcome(None, _quota_error(creator, most))
        entry = None
        if write.value is not None:
            entry = Entry(with_creator(write.value, creator), plan.end_offset, creator)
        event = None if telling_epoch is None else _event(before, entry, write)
        if event is not None and (cannot := self._cannot_publish_error(event, plan)):
            return Outcome(before, cannot)
        change = (entry is not None) - (before is not None)
        more.created[creator] += change
        more.kinds[kind] += change
        planned[key] = entry
        plan.add(key, entry, creator)
        if event is not None and telling_epoch is not None:
            offset = plan.end_offset
            plan.events.append(event_key(telling_epoch, offset))
            plan.add(plan.events[-1], Entry(event.text.encode(), offset))
        return Outcome(entry)

    def _cannot_publish_error(self, event: CursorEvent, plan: Plan) -> UnavailableError | None:
        """Why no more events may be written; None: they may."""
        waiting = len(self._events) + self._uncommitted_events + len(plan.events)
        if waiting >= EVENTS_WAITING_MAX:
            return UnavailableError(
                f"{EVENTS_WAITING_MAX} changes of cursors wait to be recorded in __activity: too "
                "many are created and deleted at once, or its replicas are not in sync; try again"
            )
        if event.is_move and waiting >= MOVES_WAITING_MAX:
            return UnavailableError(
                "cursors are moved by hand faster than that is recorded in __activity; try again "
                "(if it stays so, look whether the replicas of __activity are in sync)"
            )
        return None

    def _newest(self, key: bytes) -> Entry | None:
        return self._latest[key][1] if key in self._latest else self._committed.get(key)

    def appended(self, plan: Plan) -> None:
        """Note that the plan's records are in the log, at its `base_offset`."""
        for offset, key, entry in _records(plan):
            self._count(key, self._newest(key), entry)
            self._latest[key] = offset, entry
        self._uncommitted_events += len(plan.events)
        self._waiting.append(plan)

    def _count(self, key: bytes, before: Entry | None, after: Entry | None) -> None:
        self._kinds[_kind_of(key)] += (after is not None) - (before is not None)
        if before is not None:
            self._created[before.creator] -= 1
        if after is not None:
            self._created[after.creator] += 1

    def advance(self, high_watermark: int) -> list[Plan]:
        """Note the high watermark, and return the plans to answer: all below it is committed."""
        done = []
        while self._waiting and self._waiting[0].end_offset <= high_watermark:
            plan = self._waiting.popleft()
            self._commit(plan)
            done.append(plan)
        return done

    def _commit(self, plan: Plan) -> None:
        self._uncommitted_events -= len(plan.events)
        for offset, key, entry in _records(plan):
            self._list_event(key, entry)
            if entry is None:
                self._sorted = None
                self._committed.pop(key, None)
            else:
                if key not in self._committed:
                    self._sorted = None
                self._committed[key] = entry
            if self._latest[key][0] == offset:
                del self._latest[key]  # No later record of the key waits.

    def _list_event(self, key: bytes, entry: Entry | None) -> None:
        if key.startswith(EVENT_PREFIX):
            if entry is None:
                self._events.pop(key, None)
            else:
                self._events[key] = None

    def keys(self, prefix: bytes) -> list[bytes]:
        """The keys of committed records that have the prefix, sorted."""
        if self._sorted is None:
            self._sorted = sorted(self._committed)
        start = bisect_left(self._sorted, prefix)
        return list(
            takewhile(lambda key: key.startswith(prefix), islice(self._sorted, start, None))
        )

    def page(self, prefix: bytes, after: bytes, count_max: int) -> tuple[list[Entry], bytes]:
        """Committed records with keys after `after` that have the prefix, sorted by key. Also
        returns where the next page begins; b"": this was the last page."""
        if self._sorted is None:
            self._sorted = sorted(self._committed)
        start = bisect_right(self._sorted, max(after, prefix))
        keys = self._sorted[start : start + count_max]
        found = [key for key in keys if key.startswith(prefix)]
        is_last = len(found) < count_max or start + count_max >= len(self._sorted)
        return [self._committed[key] for key in found], b"" if is_last else keys[-1]


def _event(before: Entry | None, after: Entry | None, write: Write) -> CursorEvent | None:
    """What to tell of a write; None: nothing."""
    if not write.key.startswith(CURSOR_PREFIX):
        return None
    was, now = (None if each is None else each.value for each in (before, after))
    return event_about(was, now, write.cause)


def _quota_error(creator: str, most: int) -> QuotaExceededError:
    return QuotaExceededError(
        f"{creator} has created {most} cursors that exist, as many as it may: delete some, or have "
        "security.cursors_per_principal raised"
    )


_KINDS = {GROUP_PREFIX: "consumer groups", CONSUMER_PREFIX: "durable consumers"}


def _too_many_error(kind: bytes, most: int) -> QuotaExceededError:
    what = _KINDS.get(kind, "cursors")
    return QuotaExceededError(f"there are {most} {what} already, as many as there may be")


def _kind_of(key: bytes) -> bytes:
    """The prefix of a key, up to its first slash."""
    return key[: key.find(b"/") + 1]


class _More(NamedTuple):
    """By how much a plan changes the number of keys, of each creator and of each kind."""

    created: Counter[str]
    kinds: Counter[bytes]


def _records(plan: Plan) -> Iterator[tuple[int, bytes, Entry | None]]:
    """Each record of a plan: its offset, its key, and what it has then."""
    rows = zip(plan.keys, plan.values, plan.creators, strict=True)
    for offset, (key, value, creator) in enumerate(rows, plan.base_offset):
        yield offset, key, None if value is None else Entry(value, offset, creator)


def _in_words(revision: int) -> str:
    return "none" if revision == NO_REVISION else str(revision)
