"""What a fetch on the data plane finds: checks its sender, waits for records, builds the answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from jetstream_protocol.errors import JetstreamError
from jetstream_protocol.frames import Kind
from jetstream_protocol.generated import dataplane_pb2 as pb
from jetstream_protocol.record_filter import RecordFilter
from jetstream_server.log.commit_log import LogSlice
from jetstream_server.replication.core.lake_bounds import start_offset
from jetstream_server.replication.replica import Replica
from jetstream_server.replication.replica_manager import ReplicaManager
from jetstream_server.security.identity import Identity
from jetstream_server.security.requirements import Requirement
from jetstream_server.serving.dataplane.guard import admit
from jetstream_server.serving.decryption import (
    DECRYPTED_BYTES_MAX,
    may_be_encrypted,
    read_plain,
)
from jetstream_server.serving.filtered_fetch import Filtered, FilteredFetches
from jetstream_server.serving.long_poll import FetchPosition, FetchTimes, LongPoll, Poll, Refuse
from jetstream_server.serving.stream_access import StreamAccess


@dataclass(slots=True)
class Found:
    """The answer to a fetch: its head, and its batches. replica: has them. decrypt: reads the
    slices, and returns the bytes to send in their place; blocks. None: the slices are sent from
    their files.

    is_filtered: some batches may have been left out: the head says how far the fetch has come.

    encoded, tail: the head's bytes, and those of short slices, once they are needed: an answer may
    be shared by several fetches."""

    head: pb.DataFetchResponse
    slices: Sequence[LogSlice]
    replica: Replica | None = None
    decrypt: Callable[[], bytes] | None = None
    is_filtered: bool = False
    encoded: bytes | None = None
    tail: bytes | bytearray | None = None

    @property
    def length(self) -> int:
        """Bytes of the slices."""
        return sum([each.length for each in self.slices])


@dataclass(slots=True)
class CheckedFetch:
    """A fetch that its sender may make. generation: of the rights, when that was checked."""

    identity: Identity
    rule: Requirement
    generation: int
    replica: Replica
    position: FetchPosition
    is_decrypted: bool


class Fetches:
    """The fetches of one node's clients, whichever connection they come by."""

    def __init__(self, replicas: ReplicaManager, long_poll: LongPoll, access: StreamAccess) -> None:
        self._replicas = replicas
        self._long_poll = long_poll
        self._filtered_fetches = FilteredFetches(long_poll)
        self._access = access

    @property
    def times(self) -> FetchTimes:
        """Counts the time that fetches take."""
        return self._long_poll.times

    @property
    def long_poll(self) -> LongPoll:
        return self._long_poll

    def unreadable(self, stream_id: int, offset: int, error: JetstreamError) -> None:
        """Have the records there inspected: they could not be read."""
        self._replicas.suspect(stream_id, offset, error)

    def begin(
        self,
        request: pb.DataFetchRequest,
        identity: Identity,
        answer: Callable[[Found], None],
        refuse: Refuse,
    ) -> Poll | None:
        """Serve a fetch without a task: see `LongPoll.begin`. None: it needs one, and `fetch`.
        Raises a JetstreamError, which becomes the answer."""
        if self._needs_task(request, identity):
            return None
        fetch = self.check(request, identity)
        if fetch.is_decrypted:
            return None
        answer_it = partial(self._answer, fetch, answer)
        return self._long_poll.begin(fetch.replica, fetch.position, identity, answer_it, refuse)

    def _needs_task(self, request: pb.DataFetchRequest, identity: Identity) -> bool:
        if request.refused or request.filter_subject or request.HasField("filter_key"):
            return True
        return self._access.control.is_paced(identity)

    def checked_follow(
        self, request: pb.DataFetchRequest, identity: Identity
    ) -> CheckedFetch | None:
        """Check a follow that goes on with that fetch. None: its answers need tasks, and `fetch`.
        Raises a JetstreamError, which ends it."""
        if self._needs_task(request, identity):
            return None
        fetch = self.check(request, identity)
        return None if fetch.is_decrypted else fetch

    def is_current(self, fetch: CheckedFetch) -> bool:
        """Whether what was checked holds still, so that its follow may `look`."""
        is_same = fetch.generation == self._access.control.generation
        return is_same and not may_be_encrypted(fetch.replica)

    def look(self, fetch: CheckedFetch, position: FetchPosition) -> Found | None:
        """What is at `position` now; None: nothing. Raises the errors of `LongPoll.look`."""
        found = self._long_poll.look(fetch.replica, position)
        return None if found is None else self._found_by(fetch, found)

    def _found_by(self, fetch: CheckedFetch, found: LogSlice) -> Found:
        return self._long_poll.share(
            found, lambda: Found(self.head(fetch.replica), [found], fetch.replica)
        )

    def _answer(
        self, fetch: CheckedFetch, answer: Callable[[Found], None], found: LogSlice | None
    ) -> None:
        self._check_again(fetch)
        if found is None:
            answer(Found(self.head(fetch.replica), []))
            return
        answer(self._found_by(fetch, found))

    async def fetch(self, request: pb.DataFetchRequest, identity: Identity) -> Found:
        """Serve one fetch. Raises a JetstreamError, which becomes the answer."""
        fetch = self.check(request, identity)
        replica, position = fetch.replica, fetch.position
        if request.refused:
            await self._replicas.healer.examined(replica, position.offset)
        slices, filtered = await self._find(request, replica, position, identity)
        length = sum(each.length for each in slices)
        await self._access.control.pace(identity, replica.stream, length)
        self._check_again(fetch)
        response = self.head(replica)
        if filtered is not None and filtered.next_offset > position.offset:
            response.next_offset = filtered.next_offset
            response.last_epoch = filtered.last_epoch
        decrypt = None
        if fetch.is_decrypted and slices:
            decrypt = partial(read_plain, replica, slices, partly=filtered is None)
        return Found(response, slices, replica, decrypt, is_filtered=filtered is not None)

    def check(self, request: pb.DataFetchRequest, identity: Identity) -> CheckedFetch:
        """Check a fetch. Raises a JetstreamError."""
        access = self._access.control
        generation = access.generation
        rule = admit(access, identity, Kind.FETCH)
        assert rule.operation is not None
        stream = self._access.resolve(identity, rule.operation, request.stream)
        replica = self._replicas.replica_of(stream)
        bytes_max = access.bytes_max(identity, request.bytes_max)
        is_decrypted = may_be_encrypted(replica) and not (identity.is_node or request.as_stored)
        if is_decrypted:
            bytes_max = min(bytes_max or DECRYPTED_BYTES_MAX, DECRYPTED_BYTES_MAX)
        position = FetchPosition.checked(
            offset=request.offset,
            last_epoch=request.last_epoch if request.HasField("last_epoch") else None,
            bytes_max=bytes_max,
            bytes_min=request.bytes_min,
            wait_ms_max=request.wait_ms_max,
        )
        return CheckedFetch(identity, rule, generation, replica, position, is_decrypted)

    def _check_again(self, fetch: CheckedFetch) -> None:
        """Raise an error if the sender has lost its right since the fetch was checked."""
        access = self._access.control
        if fetch.rule.again and access.generation != fetch.generation:
            assert fetch.rule.operation is not None
            access.check(fetch.identity, fetch.rule.operation, fetch.replica.stream)

    def head(self, replica: Replica) -> pb.DataFetchResponse:
        return pb.DataFetchResponse(
            stream_id=replica.stream.id,
            log_start_offset=start_offset(replica.stream, replica.log),
            high_watermark=replica.high_watermark,
            leader_epoch=replica.stream.leader_epoch,
            out_of_sync=self._long_poll.is_out_of_sync(replica),
            tombstones_gone_below=_tombstones_gone_below(replica),
            compacted_below=_compacted_below(replica),
        )

    async def _find(
        self,
        request: pb.DataFetchRequest,
        replica: Replica,
        position: FetchPosition,
        caller: Identity,
    ) -> tuple[Sequence[LogSlice], Filtered | None]:
        if request.filter_subject or request.HasField("filter_key"):
            key = request.filter_key if request.HasField("filter_key") else None
            wanted = RecordFilter(request.filter_subject, key)
            filtered = await self._filtered_fetches.fetch(replica, position, wanted, caller)
            return filtered.slices, filtered
        found = await self._long_poll.fetch(replica, position, caller)
        return ([] if found is None else [found]), None


def _tombstones_gone_below(replica: Replica) -> int:
    """What a differently compacted log must know before it takes records from this one."""
    return replica.log.tombstones_gone_below if replica.stream.was_compacted else 0


def _compacted_below(replica: Replica) -> int | None:
    """What a reader must read up to, to miss no key: a pass notes its end before it removes."""
    return replica.log.compacted_below if replica.stream.was_compacted else None
