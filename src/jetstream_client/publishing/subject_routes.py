"""The streams that a subject feeds, and so the acknowledgements that a publish waits for.

A stream outside a queue group acknowledges each message. Of the streams of a group exactly one
receives a message and acknowledges it. So an expectation is a set of stream names, one of which
answers. Streams with `acks: envelope` or `off` do not answer a plain message.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from jetstream_client._closing import end_tasks, shared
from jetstream_client.publishing.keyed_group import KeyedGroup
from jetstream_client.publishing.partitioner import partition_of
from jetstream_client.values.types import Stream
from jetstream_protocol.errors import (
    InvalidRequestError,
    JetstreamError,
    NoStreamError,
    StreamPausedError,
    StreamReadonlyError,
)
from jetstream_protocol.subjects import check_literal, example_pattern, ingest_prefix

FRESH_SECONDS = 5.0
"""How long an answer of the registry is used again. A stream created meanwhile acknowledges too,
but a publish does not wait for it."""

STALE_SECONDS = 5.0
"""How much longer it is used while a new answer is fetched, so that busy publishers never wait."""

SUBJECTS_MAX = (
    100_000  # Beyond this size the cache is emptied: there may be any number of subjects.
)

Expectation = frozenset[str]


class Place(NamedTuple):
    """Where a message goes: the NATS subject that it is sent on, and who answers there."""

    target: str
    route: SubjectRoute


@dataclass(frozen=True, slots=True)
class SubjectRoute:
    """The streams of one subject: those that answer, as expectations, and all by name.

    expectations: who answers plain messages. enveloping: who answers envelopes. duplicate_window:
    seconds for which every stream recognises a message's id. services: whether a stream says by
    `acks: envelope` that others answer on the subject. refusals: why streams do not listen now, by
    name. group: the keyed group that the subject belongs to; `place` tells its streams apart.
    listening: the numbers of those of them that listen, or of all if none does. cluster: the mark
    that all answers have; "": some may have none. ids: of the streams, by name. overheard: of one
    stream of a keyed group: others hear on NATS what is published to the group.
    """

    expectations: tuple[Expectation, ...]
    names: frozenset[str]
    full_names: frozenset[str] = frozenset()
    enveloping: tuple[Expectation, ...] = ()
    duplicate_window: float = 0.0
    services: bool = False
    refusals: Mapping[str, JetstreamError] = field(default_factory=dict)
    group: KeyedGroup | None = None
    listening: tuple[int, ...] = ()
    cluster: str = ""
    ids: Mapping[str, int] = field(default_factory=dict)
    overheard: bool = False
    _places: dict[int, Place] = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, streams: Sequence[Stream], subject: str = "", cluster: str = "") -> SubjectRoute:
        """subject: to look for a keyed group; "": those of one stream of such a group."""
        group = KeyedGroup.among(streams, subject) if subject else None
        numbers = (
            tuple(n for n, each in enumerate(group.streams) if _listens(each)) if group else ()
        )
        if group and not numbers:
            numbers = tuple(range(len(group.streams)))
        everybody, streams = streams, _without_idle_members(streams)
        names = frozenset(stream.name for stream in streams)
        return cls(
            _expectations([stream for stream in streams if stream.acks == "reply"], everybody),
            names,
            frozenset(stream.full_name for stream in streams),
            _expectations([stream for stream in streams if stream.acks in ("reply", "envelope")]),
            min((stream.duplicate_window for stream in streams), default=0.0),
            any(stream.acks == "envelope" for stream in streams),
            {stream.name: _refusal_error(stream) for stream in streams if not _listens(stream)},
            group,
            numbers,
            cluster,
            {stream.name: stream.id for stream in streams},
        )

    @property
    def why_no_listener(self) -> str:
        """Why NATS has no subscriber although these streams exist. The registry does not say it:
        without a majority it goes on naming a leader that is gone."""
        one = len(self.names) == 1
        whose = f"stream {min(self.names)!r} has" if one else "its streams have"
        return f"{whose} no leader now that takes messages: see 'jetstream cluster health'"

    @property
    def partitions(self) -> int:
        """Of a keyed group. Raises InvalidRequestError, NoStreamError if it cannot be used."""
        assert self.group is not None
        if self.group.problem is not None:
            raise self.group.problem.with_traceback(None)
        return len(self.group.streams)

    def place(self, subject: str, partition: int) -> Place:
        """Where to publish for one partition of the keyed group."""
        found = self._places.get(partition)
        if found is None:
            assert self.group is not None
            stream = self.group.streams[partition]
            target = ingest_prefix(stream.group, partition) + subject
            route = SubjectRoute.of([stream], cluster=self.cluster)
            others = self.names - {each.name for each in self.group.streams}
            found = self._places[partition] = Place(target, replace(route, overheard=bool(others)))
        return found

    def places(self, subject: str) -> Sequence[Place]:
        """One place for each stream of the keyed group; without a group that of the subject."""
        if self.group is None:
            return [Place(subject, self)]
        return [self.place(subject, number) for number in range(self.partitions)]

    def place_for(self, subject: str, key: bytes | None, turn: int) -> Place:
        """Where a message with that key goes in the keyed group. turn: counts those without one."""
        count = self.partitions
        if key is None:
            return self.place(subject, self.listening[turn % len(self.listening)])
        return self.place(subject, partition_of(key, count))

    def check_listening(self, acks: str | Sequence[str]) -> None:
        """Raise StreamPausedError, or StreamReadonlyError of a group's member, where a stream that
        is to acknowledge does not listen."""
        if not self.refusals or (acks == "any" and len(self.refusals) < len(self.names)):
            return
        asked = self.names if isinstance(acks, str) else {name.partition("@")[0] for name in acks}
        for name, error in self.refusals.items():
            if name in asked:
                raise error.with_traceback(None)

    @property
    def goes_straight(self) -> bool:
        """Whether a batch that goes straight to leaders is stored where one on NATS is, and nobody
        else is meant: exactly one stream listens, and it says by its acks that no service does."""
        one = len(self.names) == len(self.enveloping) == 1
        return one and not self.services and not self.overheard

    def recognises_ids(self, seconds: float) -> bool:
        """Whether a message with an id may be published again within so many seconds. In a group
        another stream may get it, which would not recognise it.
        """
        groups = any(len(each) > 1 for each in self.expectations)
        return self.duplicate_window > seconds and not groups

    def is_covered_by(self, wanted: Sequence[Expectation]) -> bool:
        """Whether every stream of the subject is among those whose answer is waited for."""
        return self.names <= frozenset().union(*wanted)

    def wanted(self, subject: str, acks: str | Sequence[str]) -> tuple[Expectation, ...]:
        """The expectations that `acks` asks for. Raises if they can never be met."""
        self.check_listening(acks)
        if not self.expectations:
            raise InvalidRequestError(
                f"no stream on {subject!r} acknowledges plain messages: "
                "publish with ack_level='none', or create a stream with acks 'reply'"
            )
        return self._choose(self.expectations, subject, acks, "plain messages")

    def wanted_of_batches(self, subject: str, acks: str | Sequence[str]) -> tuple[Expectation, ...]:
        """The same for a batched publisher. Streams of a group cannot be used: each batch would
        reach another stream of the group, and none would see the whole sequence."""
        self.check_listening(acks)
        if any(len(each) > 1 for each in self.enveloping):
            raise InvalidRequestError(
                f"streams of a group share {subject!r}: publish() to them, message by message"
            )
        if not self.enveloping:
            raise InvalidRequestError(f"no stream on {subject!r} acknowledges: all have acks 'off'")
        return self._choose(self.enveloping, subject, acks, "batches")

    def _choose(
        self,
        expectations: tuple[Expectation, ...],
        subject: str,
        acks: str | Sequence[str],
        what: str,
    ) -> tuple[Expectation, ...]:
        if acks in ("all", "any"):
            return expectations
        if isinstance(acks, str) or not isinstance(acks, Iterable):
            raise InvalidRequestError(f"invalid acks {acks!r}: say 'all', 'any' or stream names")
        wanted: list[Expectation] = []
        for name in acks:
            bare = name.partition("@")[0]
            found = [each for each in expectations if bare in each]
            if name not in self.names | self.full_names:
                raise NoStreamError(f"no stream {name!r} listens on {subject!r}")
            if not found:
                raise InvalidRequestError(f"stream {name!r} does not acknowledge {what}")
            wanted.extend(each for each in found if each not in wanted)
        if not wanted:
            raise InvalidRequestError("acks names no stream: say 'all', 'any' or stream names")
        return tuple(wanted)


def check_acks_of_group(subject: str, acks: str | Sequence[str]) -> None:
    """Raise InvalidRequestError for the names of streams, of which the key chooses one."""
    if not isinstance(acks, str):
        raise InvalidRequestError(
            f"{subject!r} belongs to a keyed group: the key says which stream acknowledges, "
            "so acks is 'all' or 'any'"
        )


def _listens(stream: Stream) -> bool:
    """A read-only stream listens to refuse, but in a group, which it leaves to the others."""
    return not stream.paused and not (stream.readonly and stream.group)


def _without_idle_members(streams: Sequence[Stream]) -> list[Stream]:
    """The streams, without group members that do not listen while others of the group do."""
    groups = {stream.group for stream in streams if stream.group and _listens(stream)}
    return [stream for stream in streams if _listens(stream) or stream.group not in groups]


def _refusal_error(stream: Stream) -> JetstreamError:
    if stream.paused:
        return StreamPausedError(
            f"stream {stream.name!r} is paused: nothing was stored; "
            f"'jetstream stream resume {stream.name}' ends that"
        )
    return StreamReadonlyError(f"stream {stream.name!r} is read-only: nothing was stored")


def _expectations(
    streams: Sequence[Stream], everybody: Sequence[Stream] = ()
) -> tuple[Expectation, ...]:
    """Who answers, what was created first first. everybody: also members that do not listen; any of
    them may by now, and then it answers instead of another member of its group."""
    found: dict[str | int, set[str]] = {}
    for stream in sorted(streams, key=lambda stream: stream.id):
        found.setdefault(stream.group or id(stream), set()).add(stream.name)
    for stream in everybody:
        if stream.group in found and stream.acks == "reply":
            found[stream.group].add(stream.name)
    return tuple(map(frozenset, found.values()))


class SubjectRoutes:
    """A cache of routes by subject.

    streams_on: asks any node's registry. as_led: returns a stream as its leader knows it. The
    leader is asked about streams that do not listen: another node may not know yet that they do
    again. cluster: the mark of all answers, from the registry's last answer.
    """

    def __init__(
        self,
        streams_on: Callable[[str], Awaitable[Sequence[Stream]]],
        as_led: Callable[[Stream], Awaitable[Stream]],
        cluster: Callable[[], str] = lambda: "",
    ) -> None:
        self._streams_on = streams_on
        self._as_led = as_led
        self._cluster = cluster
        self._cache: dict[
            str, tuple[float, SubjectRoute]
        ] = {}  # the route, and until when it is fresh
        self._asking: dict[str, asyncio.Task[SubjectRoute]] = {}

    def known(self, subject: str) -> SubjectRoute | None:
        """The route if it is cached, without waiting."""
        entry = self._cache.get(subject)
        if entry is None:
            return None
        fresh_until, route = entry
        age = time.monotonic() - fresh_until
        if age > STALE_SECONDS:
            return None
        if age > 0:
            self._asked_for(subject)
        return route

    async def ask(self, subject: str) -> SubjectRoute:
        """The route as the registry knows it now. Raises NoStreamError when there is none.

        Publishers that ask at the same time share one call.
        """
        return await shared(self._asked_for(subject))

    def _asked_for(self, subject: str) -> asyncio.Task[SubjectRoute]:
        task = self._asking.get(subject)
        if task is None:
            check_literal(subject)
            task = asyncio.get_running_loop().create_task(self._ask(subject))
            self._asking[subject] = task
            task.add_done_callback(lambda done: self._asked(subject, done))
        return task

    def _asked(self, subject: str, task: asyncio.Task[SubjectRoute]) -> None:
        self._asking.pop(subject, None)
        if not task.cancelled():
            task.exception()  # Waiting callers have seen it; perhaps none waits any more.

    async def _ask(self, subject: str) -> SubjectRoute:
        streams = await asyncio.gather(*map(self._as_it_is, await self._streams_on(subject)))
        if not streams:
            self._cache.pop(subject, None)
            raise NoStreamError(
                f"no stream listens on {subject!r}: create one, "
                f"for example on {example_pattern(subject)}"
            )
        if len(self._cache) >= SUBJECTS_MAX:
            self._cache.clear()
        route = SubjectRoute.of(streams, subject, self._cluster())
        if route.refusals:
            self._cache.pop(subject, None)  # The next publish asks again whether that is over.
            return route
        self._cache[subject] = (time.monotonic() + FRESH_SECONDS, route)
        return route

    async def _as_it_is(self, stream: Stream) -> Stream:
        return stream if _listens(stream) else await self._as_led(stream)

    def forget(self, subject: str) -> None:
        self._cache.pop(subject, None)

    def forget_all(self) -> None:
        """After a stream was created or deleted through this client."""
        self._cache.clear()

    async def close(self) -> None:
        await end_tasks(*self._asking.values())
