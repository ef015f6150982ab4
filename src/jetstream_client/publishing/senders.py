"""The sending ends of a batched publisher: one, or one for each stream of a keyed group.

A key's records all go through one sender, which keeps their order. Records without a key stay with
one sender until its batch is full or sent, and then go to the next, like with Kafka's sticky
partitioner: full batches are worth more than an even distribution of single records.

A group may grow while its publisher lives. A sender that looks for its stream sees how many there
are, and senders are made for the new ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from jetstream_client.publishing.partitioner import partition_of
from jetstream_client.publishing.plain_publisher import PlainPublisher
from jetstream_client.publishing.record_accumulator import RECORD_BYTES
from jetstream_client.publishing.sender import PublisherOptions, Sender
from jetstream_client.publishing.subject_routes import (
    Place,
    SubjectRoute,
    SubjectRoutes,
    check_acks_of_group,
)
from jetstream_client.transport.data_plane import DataPlane
from jetstream_protocol.errors import InvalidRequestError, JetstreamError, NoStreamError


class Senders:
    """Belongs to the event loop that creates it; any thread may call `of`. all: by partition."""

    def __init__(
        self,
        plain: PlainPublisher,
        routes: SubjectRoutes,
        subject: str,
        options: PublisherOptions,
        route: SubjectRoute,
        max_payload: int,
        data_plane: DataPlane | None = None,
    ) -> None:
        """route: from the registry's last answer, found good by `check`. max_payload,
        data_plane: see Sender."""
        self.is_keyed = route.group is not None
        self.all: tuple[Sender, ...] = ()
        self._made = (plain, routes, subject)
        self._subject = subject
        self._options = options
        self._max_payload = max_payload
        self._sticky = 0
        self._stopped: JetstreamError | None = None
        self._data_plane = data_plane
        if options.via != "direct":
            plain.limits.add(self._limit)
        if self.is_keyed:
            self._grow(route)
        else:
            place = Place(subject, route)
            self.all = (Sender(*self._made, options, place, max_payload, data_plane=data_plane),)

    @staticmethod
    def check(route: SubjectRoute, subject: str, options: PublisherOptions) -> None:
        """Raise unless batches can be published there with these options."""
        if route.group is None:
            route.wanted_of_batches(subject, options.acks)
            return
        if options.producer_id is not None:
            raise InvalidRequestError(
                f"{subject!r} belongs to a keyed group, whose streams each have a sequence of "
                "their own: publish to it without producer_id"
            )
        check_acks_of_group(subject, options.acks)
        for place in route.places(subject):
            place.route.wanted_of_batches(subject, options.acks)

    def _grow(self, route: SubjectRoute) -> None:
        """Make the senders that are missing."""
        count = route.partitions
        share = max(self._options.buffer_bytes // count, self._options.max_bytes)
        options = replace(self._options, buffer_bytes=share)
        made = [
            Sender(
                *self._made,
                options,
                route.place(self._subject, number),
                self._max_payload,
                self._finder(number),
                self._data_plane,
            )
            for number in range(len(self.all), count)
        ]
        self.all += tuple(made)

    def _finder(self, number: int) -> Callable[[SubjectRoute], Place]:
        def find(route: SubjectRoute) -> Place:
            if route.group is None or number >= route.partitions:
                raise NoStreamError(f"the keyed group of {self._subject!r} has no stream {number}")
            if self._stopped is None:
                self._grow(route)
            return route.place(self._subject, number)

        return find

    def _limit(self, max_payload: int) -> None:
        self._max_payload = max_payload
        for sender in self.all:
            sender.limit(max_payload)

    def of(self, record: tuple[bytes | None, bytes | None, bytes]) -> Sender:
        """Where a record (value, key, header block) is to be added."""
        if not self.is_keyed:
            return self.all[0]
        value, key, block = record
        if key is None:
            return self.without_key(len(value or b"") + len(block) + RECORD_BYTES)
        every = self.all
        return every[partition_of(key, len(every))]

    def without_key(self, size: int) -> Sender:
        """Where the next record without a key is to be added; it takes `size` bytes."""
        every = self.all
        current = every[self._sticky % len(every)]
        if current.buffer.fits(size):
            return current
        start = self._sticky + 1
        turns = range(start, start + len(every))
        self._sticky = next((turn for turn in turns if every[turn % len(every)].is_well), start)
        return every[self._sticky % len(every)]

    @property
    def buffered(self) -> int:
        """Bytes that wait or are in flight."""
        return sum(sender.buffer.buffered for sender in self.all)

    async def stop(self, error: JetstreamError) -> None:
        """See Sender.stop."""
        self._stopped = error
        self._made[0].limits.discard(self._limit)
        await asyncio.gather(*(sender.stop(error) for sender in self.all))
