"""A streaming query's questions to the cluster: where to begin, and where the streams end.

Owns the client on the driver as long as the query runs. A batch can be repeated without any state
kept here: the returned offsets contain everything, and Spark keeps them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypeVar

from jetstream_client import (
    AsyncClient,
    DivergedError,
    JetstreamError,
    OffsetOutOfRangeError,
    Stream,
    StreamNotFoundError,
)
from pyspark_jetstream import planning
from pyspark_jetstream.admission import Limits, Pace, admitted, is_delayed
from pyspark_jetstream.checkpoint import Mark, Offsets
from pyspark_jetstream.errors import START_ANEW, DataLossError, OptionError, log, naming
from pyspark_jetstream.losses import is_selected, losses
from pyspark_jetstream.options import ReadOptions
from pyspark_jetstream.planning import Held

_T = TypeVar("_T")

IDLE_SECONDS = 1.0
"""How long an idle query waits for records before it tells Spark that there is nothing new."""

LISTING_SECONDS = 3.0
"""Greatest age of a list of streams chosen by pattern: new streams are read after that time at
most. Streams chosen by name are looked up when one of them is gone, and from then on this often
until another stream has its name."""

LONG_POLLS_MAX = 32
"""Streams watched while idle. With more, changes in the others are seen after `MANY_SECONDS`."""

MANY_SECONDS = 0.2
"""Pause between checks of more streams than can be watched."""

SHOWN_BY = "spark"
"""Metadata stored with the cursor."""

SHOWING_SECONDS = 3.0
"""How long a batch waits until the cursor shows the one before."""

EPOCHS_AT_A_TIME = 32
"""Concurrent fetches of the epochs of last records."""


class Follower:
    """Belongs to one event loop. Raises the errors of the SDK, OptionError and DataLossError."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._client = AsyncClient.from_config(options.config)
        self._cluster = ""
        self._listed: list[Stream] = []
        self._streams: dict[int, Stream] = {}
        self._full_names: dict[int, str] = {}
        self._is_complete = False
        self._is_checked = False
        self._listed_at = float("-inf")
        self._last_batch_at = float("-inf")
        self._pace = Pace()
        self._compacted: set[int] = set()
        self._leader_epochs: dict[int, int] = {}
        self.latest: dict[int, int] = {}
        self.names: dict[int, str] = {}
        """As last seen, for the progress report."""

    async def initial(self) -> Offsets:
        """The offsets at which a new query begins."""
        return await self._settled(self._initial)

    async def _initial(self) -> Offsets:
        await self._list(0.0)
        planning.check_names(self._listed, self._options.selection)
        planning.warn_of_subjects(self._listed, self._options.selection)
        self._is_checked = True
        known = await planning.held(self._client, self._streams)
        starts = await planning.resolve(
            self._client, self._streams, self._options.starting, known, self._options
        )
        marks = {n: Mark(s.full_name, starts[n]) for n, s in self._streams.items()}
        return Offsets(await self._cluster_id(), marks, initial=True)

    async def targets(self) -> dict[int, int]:
        """The current end of every stream."""
        await self._settled(self._seen)
        return self.latest

    async def next_offsets(
        self, start: Offsets | None, limits: Limits, targets: Mapping[int, int] | None
    ) -> Offsets:
        """The end of the next batch; `start` itself if there is nothing to read. start: None if
        Spark does not give it (before 4.2, after a restart). targets: do not go beyond these, and
        do not wait.
        """
        self._pace.asked(time.monotonic())

        async def look() -> Offsets:
            return await self._look(start, limits, targets)

        found = await self._settled(look)
        if found is start and targets is None and self._pace.is_pressing:
            await self._wait()
            found = await self._settled(look)
        self._pace.answered(time.monotonic(), is_idle=found is start)
        return found

    async def _look(
        self, start: Offsets | None, limits: Limits, targets: Mapping[int, int] | None
    ) -> Offsets:
        marks = dict(start.streams) if start else {}
        await self._look_for(marks)
        known = await self._seen()
        self._check_names(start)
        latest = self.latest
        if targets is not None:
            # The node that was asked for them may have left out a stream that the query has read.
            ends_max = {n: mark.offset for n, mark in marks.items()} | dict(targets)
            latest = {n: min(end, ends_max[n]) for n, end in latest.items() if n in ends_max}
        latest = await self._not_below(marks, latest)
        starts = {n: marks[n].offset if n in marks else known[n].earliest for n in latest}
        if start is None or start.initial:
            # Spark runs the first batch in any case, and its start should be recorded as early as
            # possible.
            self._last_batch_at = time.monotonic()
            return await self._marked(start, starts, admitted(starts, latest, limits.offsets_max))
        if is_delayed(starts, latest, limits, time.monotonic() - self._last_batch_at):
            return start
        ends = admitted(starts, latest, limits.offsets_max)
        if ends == {number: mark.offset for number, mark in marks.items()}:
            return start
        end = await self._marked(start, starts, ends)
        self.check_losses(start, end, {number: held.earliest for number, held in known.items()})
        self._last_batch_at = time.monotonic()
        return end

    def _check_names(self, start: Offsets | None) -> None:
        """Once in a run, raise OptionError if there is no stream of a name. Later that means that
        the stream was deleted, and so it does at the beginning of a run if the query has read it. A
        query that goes on without its lost records cannot tell: its marks forget deleted streams.
        """
        if self._is_checked:
            return
        planning.warn_of_subjects(self._listed, self._options.selection)
        self._warn_of_left_out(start)
        known = planning.names_of(mark.name for mark in start.streams.values()) if start else set()
        for name in planning.missing(self._listed, self._options.selection):
            if name in known:
                continue
            wrong = planning.not_found(name, self._listed)
            if self._options.fail_on_data_loss:
                raise OptionError(wrong)
            log.warning("%s; going on because failOnDataLoss is false", wrong)
        self._is_checked = True

    def _warn_of_left_out(self, start: Offsets | None) -> None:
        """The checkpoint forgets streams that the options do not name any more."""
        marks = start.streams.values() if start else ()
        for mark in marks:
            if not is_selected(mark.name, self._options.selection):
                log.warning(
                    "the query has read stream %s up to offset %d, and its options do not name it "
                    "any more: it is left out from here on, and begins anew if it is named again",
                    mark.name,
                    mark.offset,
                )

    async def _not_below(
        self, marks: Mapping[int, Mark], latest: Mapping[int, int]
    ) -> dict[int, int]:
        """The ends, none of them below what was read before, unless the log was cut back there.
        **safety** Else the query would read records again."""
        found = dict(latest)
        for number, mark in marks.items():
            is_behind = number in found and found[number] < mark.offset
            if is_behind and not await self._is_cut_back(number, mark):
                found[number] = mark.offset
        return found

    async def _is_cut_back(self, number: int, mark: Mark) -> bool:
        """Whether the record before the mark certainly is not in the log any more."""
        try:
            await self._client.fetch(number, mark.offset, last_epoch=mark.epoch, max_messages=1)
        except (DivergedError, OffsetOutOfRangeError):
            return True
        return False

    async def show(self, cursor: str, end: Offsets) -> None:
        """Commit the end of a batch as a cursor's positions, so that tools can show the lag. Only
        Spark's checkpoint decides where the query continues, so a failure here is just a warning.
        """

        async def commit(number: int, mark: Mark) -> None:
            try:
                async with asyncio.timeout(SHOWING_SECONDS):
                    await self._client.commit_cursor(
                        cursor, number, mark.offset, last_epoch=mark.epoch, metadata=SHOWN_BY
                    )
            except (JetstreamError, TimeoutError) as error:
                log.warning(
                    "cursor %r does not show the progress in %s: %s",
                    cursor,
                    mark.name,
                    error.message if isinstance(error, JetstreamError) else "no answer in time",
                )

        await asyncio.gather(*(commit(number, mark) for number, mark in end.streams.items()))

    def check_losses(
        self, start: Offsets, end: Offsets, earliest: Mapping[int, int] | None = None
    ) -> None:
        """Raise DataLossError, or log a warning if failOnDataLoss is false."""
        lost = list(losses(start, end, earliest or {}, self._options.selection))
        if lost and self._options.fail_on_data_loss:
            raise DataLossError(f"{'; '.join(lost)}: {START_ANEW}")
        for each in lost:
            log.warning("%s; going on because failOnDataLoss is false", each)

    async def _marked(
        self, start: Offsets | None, starts: Mapping[int, int], ends: Mapping[int, int]
    ) -> Offsets:
        marks = start.streams if start else {}
        moved = [n for n, end in ends.items() if n not in marks or marks[n].offset != end]
        cluster = await self._cluster_id()
        known = marks if start and start.cluster == cluster else {}
        epochs = {n: known[n].epoch for n in moved if n in known and self._has_led(n, known[n])}
        epochs |= await self._epochs({n: ends[n] for n in moved if n not in epochs})
        streams = {
            number: Mark(self._streams[number].full_name, end, epochs[number])
            if number in epochs
            else marks[number]
            for number, end in ends.items()
        }
        # Before 4.2 it is unknown here which streams are new after a restart. `start_of` then
        # returns None, and the reader asks where they begin.
        began = {n: starts[n] for n in ends if start.initial or n not in marks} if start else {}
        return Offsets(cluster, streams, began)

    def _has_led(self, number: int, mark: Mark) -> bool:
        """Whether the leader of the record before the mark leads still. All records since have its
        epoch then, and no node need be asked for it."""
        return mark.epoch != -1 and mark.epoch == self._leader_epochs.get(number)

    async def _epochs(self, ends: Mapping[int, int]) -> dict[int, int]:
        """The leader epoch of the record before each end; -1 if compaction removed the record."""
        turn = asyncio.Semaphore(EPOCHS_AT_A_TIME)

        async def ask(number: int, end: int) -> int:
            if end == 0:
                return -1
            async with turn:
                try:
                    found = await self._client.fetch(number, end - 1, max_messages=1)
                except JetstreamError as error:
                    if error.retriable or isinstance(error, StreamNotFoundError):
                        raise
                    return -1  # Retention has removed it.
            return found.last_epoch if len(found) and found[0].offset == end - 1 else -1

        epochs = await asyncio.gather(*(ask(number, end) for number, end in ends.items()))
        return dict(zip(ends, epochs, strict=True))

    async def earliest(self, numbers: Iterable[int]) -> dict[int, int]:
        """Where the streams begin; without the deleted ones, if failOnDataLoss is false."""
        asked = list(numbers)
        try:
            known = await planning.settled(
                lambda: planning.held(self._client, asked), planning.BEHIND_SECONDS
            )
        except StreamNotFoundError as error:
            there = {stream.id for stream in await self._client.list_streams()}
            left = [number for number in asked if number in there]
            if self._options.fail_on_data_loss or left == asked:
                raise
            log.warning("%s; going on because failOnDataLoss is false", error.message)
            return await self.earliest(left)
        return {number: held.earliest for number, held in known.items()}

    async def _seen(self) -> dict[int, Held]:
        """What the streams hold, noted for the progress report."""
        known = await self._held()
        self.latest = {number: held.latest for number, held in known.items()}
        self._leader_epochs = {number: held.leader_epoch for number, held in known.items()}
        self.names = {number: self._streams[number].full_name for number in known}
        return known

    async def _settled(self, ask: Callable[[], Awaitable[_T]]) -> _T:
        async def asked() -> _T:
            try:
                with naming(self._full_names):
                    return await ask()
            except StreamNotFoundError:
                self._listed_at = float("-inf")
                raise

        return await planning.settled(asked, self._options.config.timeout)

    async def _look_for(self, marks: Mapping[int, Mark]) -> None:
        """List the streams again for a while if one is missing that the query has read. **safety**
        Else the mark would be forgotten, and the stream read anew when the node knows it."""
        await self._list_now_and_then()
        until = time.monotonic() + planning.BEHIND_SECONDS
        while any(
            number not in self._streams and is_selected(mark.name, self._options.selection)
            for number, mark in marks.items()
        ):
            if time.monotonic() >= until:
                return
            await asyncio.sleep(planning.RETRY_SECONDS)
            await self._list(0.0)

    async def _held(self) -> dict[int, Held]:
        await self._list_now_and_then()
        return await planning.held(self._client, self._streams)

    async def _list_now_and_then(self) -> None:
        await self._list(float("inf") if self._is_complete else LISTING_SECONDS)

    async def _list(self, age_max: float) -> None:
        if time.monotonic() - self._listed_at < age_max:
            return
        self._listed = await self._client.list_streams()
        self._full_names |= {stream.id: stream.full_name for stream in self._listed}
        selection = self._options.selection
        self._streams = planning.select(self._listed, selection)
        self._is_complete = bool(selection.names) and not planning.missing(self._listed, selection)
        self._listed_at = time.monotonic()
        for number, stream in self._streams.items():
            if stream.compact and number not in self._compacted:
                self._compacted.add(number)
                log.warning(
                    "stream %s is compacted: a batch that is run again may have fewer records",
                    stream.full_name,
                )

    async def _cluster_id(self) -> str:
        if not self._cluster:
            self._cluster = (await self._client.describe_cluster()).cluster_id
        return self._cluster

    async def _wait(self) -> None:
        """Wait until a record arrives, at most `IDLE_SECONDS`."""
        watched = list(self.latest.items())[:LONG_POLLS_MAX]
        patience = IDLE_SECONDS if len(self.latest) <= LONG_POLLS_MAX else MANY_SECONDS
        polls = [
            asyncio.ensure_future(
                self._client.fetch(number, offset, max_messages=1, max_wait=patience)
            )
            for number, offset in watched
        ]
        polls_or_time_up = [*polls, asyncio.ensure_future(asyncio.sleep(patience))]
        try:
            await asyncio.wait(polls_or_time_up, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in polls_or_time_up:
                each.cancel()
            # A failed poll does not matter here: the next request raises the reason.
            await asyncio.gather(*polls_or_time_up, return_exceptions=True)

    async def close(self) -> None:
        await self._client.aclose()
