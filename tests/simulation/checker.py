"""The invariants, held against every replica after every event (docs/simulation.md).

1. A committed record never changes, and is in the log of every replica in sync or eligible, for as
   long as one of them has not lost what it held. What such a log lacks in front, retention removed.
2. Logs match: the same offset in the same epoch is the same batch, with the same one before it.
3. Below its high watermark every replica holds exactly what is committed.
4. One process leads an epoch; its high watermark never falls.
5. An acknowledged publish is committed at the offset it was told. No publish is committed twice,
   however often it was repeated; a producer's batches are committed in sequence, none left out.
   Only what its leader cannot know may be stored anew: what retention has removed from its log,
   and what stood in the log of a leader whose wall clock was set forward (copies made later take
   that for time that has passed; see guarantees.md).
   Who acknowledges a publish, also once more, has it in its log, or retention has removed it.
6. Who denies a publish has not stored it. Nobody takes a publish or answers one whose session the
   metadata group has ended, nor before it acts on the metadata that last said so, nor under a
   leadership that its own metadata has ended.
7. One node's damage changes no other node's committed records: a follower drops what is committed
   only where its own log was damaged, or after an election that lost records; a log start moves
   only as far as the stream's limits have it. Append timestamps never fall from batch to batch,
   whatever the clocks say.
8. The death of a process alone loses nothing of a log; what `group` flushed survives everything
   but damage (both are part of 1, through what a restart may say of itself).

What a log holds is noted here as it is appended, and read back from the files after a restart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetstream_protocol.batch import (
    HEADER_BYTES,
    Batch,
    BatchHeader,
    EncodedBatch,
    decode_header,
)
from jetstream_protocol.types import NO_NODE, NodeId, StreamId
from jetstream_server.log.commit_log import CommitLog, LogSlice
from jetstream_server.metadata.state.streams import StreamMetadata
from jetstream_server.replication.replica import Replica
from tests.simulation.log_reading import batches_of, entries_of, pread
from tests.simulation.shadows import Entry, Origin, Shadow, entry_of
from tests.simulation.world import Violation, World

if TYPE_CHECKING:
    from tests.simulation.process import Process


class Checker:
    """Told of everything about one stream; raises Violation."""

    def __init__(self, world: World, nodes: int) -> None:
        self.stream_id = StreamId(-1)
        self._world = world
        self._shadows = [Shadow() for _ in range(nodes)]
        self._origins: dict[tuple[int, int], Origin] = {}
        self._leaders: dict[int, Process] = {}
        self._high_watermarks: dict[int, int] = {}
        self.committed: list[Entry] = []
        self._offsets: dict[int, int] = {}
        """Where each publish is committed."""
        self._appended_by: dict[int, Process] = {}
        self._denied: dict[int, int] = {}
        """The leader epoch of who last denied each publish, of those whose successor, if they had
        asked any to stand by, was called off."""
        self._eligible: dict[int, None] = {}
        """Who could hold everything committed, by the rules: kept apart from the registry's ELR."""
        self._sequences: dict[int, tuple[int, int] | None] = {}
        """Of each producer's last batch that is committed, sequence and offset; None: a lossy
        election lost some."""
        self._lossy_epoch = 0
        """Of the last leader elected uncleanly: what older ones commit after that may be lost."""
        self._kept_min: int | None = None
        """How many records the tightest limit keeps that the stream has had; None: no limit."""
        self._removed_below = 0
        """Where the log begins of which retention has removed most, or that won a lossy
        election."""
        self._purged_below = 0
        self._removed: set[tuple[int, int]] = set()
        """Publishes and offsets they had before they were stored anew."""
        self._aged_below = 0
        """Where the log of a leader ended when its wall clock was set forward, at most."""
        self._commits: list[tuple[int, int]] = []
        """How far the log was committed, and in which leader epoch; both rise."""
        self._session_ended_at: dict[int, int] = {}
        """By node: the metadata revision of its last registration or fencing."""
        self.acked: dict[int, int] = {}
        self.lost: dict[int, int] = {}
        """Publishes that were acknowledged, and that a lossy election lost since then."""
        self._given_up: list[list[Entry]] = []
        """What each lossy election lost."""
        self.has_disk_failed = False
        """Whether a disk has lost what was flushed, or failed to do something."""
        self.asks_all_replicas = False
        """Whether unclean elections do: not below a certain feature level."""
        self.keeps_eligible = False
        """Whether a new minimum does, if the ISR does not reach it: likewise."""
        self._asked_all_replicas = False
        """Whether the last one did: the level may have risen since."""
        self._chosen = NO_NODE
        """By the last lossy election, whose outcome is not settled yet."""
        self._begun_at = 0
        """Log start of the winner of the last lossy election: it may have lost what is in
        front, also what was not committed."""
        self._flushed_from = 0
        """All that is committed from there on was flushed before it counted."""
        self._lost_at_epoch = -1
        """Of the last leadership that began with a loss: what earlier ones say is not true now."""

    # What is true.

    @property
    def committed_end(self) -> int:
        return max(self.committed[-1].next_offset if self.committed else 0, self._begun_at)

    def suspect(self, node_id: int) -> None:
        """The node's disk may have lost something."""
        self._shadows[node_id].suspect = True
        self._world.is_changed = True

    def erased(self, node_id: int) -> None:
        """The node has another disk, and no log any more."""
        self._shadows[node_id].is_erased = True

    def registered(self, node_id: int) -> None:
        """The metadata group has heard what the node's run says of its logs."""
        self._shadows[node_id].suspect = False
        self._world.is_changed = True

    def session_ended(self, node_id: int, revision: int) -> None:
        """That metadata revision ended whatever the node did until then."""
        self._session_ended_at[node_id] = revision

    @property
    def _is_unsettled(self) -> bool:
        """Whether there was a lossy election, and it is not known yet what its winner holds."""
        return self._chosen != NO_NODE

    def check(self, stream: StreamMetadata) -> None:
        """After every event that has changed what a log holds, or what is held against it."""
        if not self.committed:
            return
        last = self.committed[-1]
        for members in (stream.isr, stream.elr):
            for node_id in members:
                shadow = self._shadows[node_id]
                if shadow.suspect or (node_id == self._chosen and shadow.is_unread):
                    continue  # Nobody knows yet what it holds.
                if not self._outlives(last, shadow):
                    raise Violation(
                        f"node {node_id} is in ISR {stream.isr} or ELR {stream.elr}, but its log "
                        f"lacks {last}, which is committed"
                    )
                if shadow.is_marked and not stream.is_alone(node_id):
                    raise Violation(
                        f"node {node_id} is in ISR {stream.isr} or ELR {stream.elr}, although it "
                        "knew when it registered that its disk has lost records"
                    )
                self._check_front(node_id, stream)

    def _check_front(self, node_id: int, stream: StreamMetadata) -> None:
        """What a replica in sync lacks in front, retention has removed, or the winner of a lossy
        election lacked."""
        start = self._shadows[node_id].start_offset
        if start > self._removed_below and not self._is_unsettled:
            raise Violation(
                f"node {node_id} is in ISR {stream.isr} or ELR {stream.elr}, but its log begins at "
                f"{start}; nothing was removed from {self._removed_below} on"
            )

    # Logs.

    def not_opened(self, node_id: int) -> None:
        """A new process could not open the log: what its files hold is there."""
        self._shadows[node_id].is_unread = True

    def begun_anew(self, node_id: int) -> None:
        """A log that could not be opened was emptied: what its files held is gone."""
        self._shadows[node_id].is_unread = False

    def reopened(self, node_id: int, log: CommitLog) -> None:
        """A new process recovered the log."""
        shadow = self._shadows[node_id]
        entries = entries_of(log)
        shadow.opened(log)
        is_damaged = shadow.suspect or bool(log.offline_reason)
        if not is_damaged and shadow.entries and shadow.end_offset > log.log_end_offset:
            raise Violation(
                f"node {node_id} lost [{log.log_end_offset}, {shadow.end_offset}) "
                "although only its process died"
            )
        self._check_start(node_id, log)
        self._world.is_changed = True
        shadow.begin(log, entries)
        before: Entry | None = None
        for entry in entries:
            self._match(node_id, before, entry)
            shadow.append(entry)
            before = entry

    def _check_start(self, node_id: int, log: CommitLog) -> None:
        """What is missing in front was removed by retention, or the winner of a lossy election
        lacked it, or the log says that it lacks it."""
        start, removed = log.log_start_offset, self._removed_below
        says_so = bool(log.offline_reason or log.incomplete_reason)
        if start > removed and not says_so and not self._is_unsettled:
            raise Violation(
                f"node {node_id} begins at {start}; nothing was removed from {removed} on"
            )

    def removed(self, node_id: int, log: CommitLog, log_start_offset: int) -> None:
        """Retention has moved a log's start: as far as the tightest limit there was has it, or a
        purge, or the files begin there for want of others."""
        if log_start_offset <= self._purged_below:
            self._removed_below = max(self._removed_below, log_start_offset)
            return
        kept = log.log_end_offset - log_start_offset
        if self._kept_min is None or kept < self._kept_min:
            raise Violation(
                f"node {node_id} removes all below {log_start_offset} and keeps {kept} records; "
                f"its stream keeps {self._kept_min}"
            )
        self._removed_below = max(self._removed_below, log_start_offset)

    def ends_of(self, node_id: int) -> list[int]:
        """Of the batches that the node's log holds."""
        return list(self._shadows[node_id].ends)

    def purged(self, offset: int) -> None:
        """Somebody has asked for the removal of all below that; the metadata says so from now."""
        self._purged_below = max(self._purged_below, offset)

    def leader_appended(
        self, process: Process, replica: Replica, base_offset: int, batch: EncodedBatch
    ) -> None:
        entry = entry_of(decode_header(batch.header), batch.body)
        shadow = self._shadows[process.node_id]
        before = shadow.entries[-1] if shadow.entries else None
        decoded = Batch.decode(batch.to_bytes())
        ids = self._numbers_of(decoded)
        producer = decoded.header.producer_id, decoded.header.producer_sequence
        key = entry.leader_epoch, entry.base_offset
        if key in self._origins:
            raise Violation(f"{entry} was appended twice in its epoch")
        timestamp = decoded.header.append_timestamp
        self._origins[key] = Origin(entry, before, ids, producer, timestamp)
        if before is not None:
            known = self._origins[before.leader_epoch, before.base_offset].timestamp
            if timestamp < known:
                raise Violation(f"{entry} was appended at {timestamp}, after one of {known}")
        self._appended_by.update(dict.fromkeys(ids, process))
        shadow.append(entry)

    def _numbers_of(self, batch: Batch) -> tuple[int, ...]:
        """Which publishes a batch holds."""
        return tuple(map(self._number_of, batch.values()))

    def _number_of(self, value: bytes | None) -> int:
        return int(value or b"")

    def dropped(self, node_id: int, log: CommitLog, leader_epoch: int) -> None:
        """A follower with a sound log was told to drop records, by the leader of that epoch: none
        of those that were committed then. A later leader may have committed what an earlier one
        lacked; whoever hears the earlier one only now was not counted on for that, and fetches it
        again. After a lossy election its leader's log may begin anywhere; an older leader's says
        nothing."""
        if self._is_unsettled or leader_epoch < self._lossy_epoch:
            return
        is_empty = log.log_start_offset == log.log_end_offset
        for entry in reversed(self._shadows[node_id].entries):
            if not is_empty and entry.next_offset <= log.log_end_offset:
                break
            is_kept = entry.base_offset >= self._removed_below
            if is_kept and self._committed_before(entry.next_offset) == entry:
                if self._epoch_of_commit(entry.next_offset) > leader_epoch:
                    self._world.count("dropped what was committed later")
                    continue
                raise Violation(f"node {node_id} is made to drop {entry}, which is committed")

    def follow(self, node_id: int, log: CommitLog) -> None:
        """Note what a follower dropped and appended since it was last looked at."""
        self.truncated(node_id, log)
        self._world.is_changed = True
        shadow = self._shadows[node_id]
        known = shadow.end_offset
        if log.log_end_offset == known:
            return
        for entry in entries_of(log, known):
            self._match(node_id, shadow.entries[-1] if shadow.entries else None, entry)
            shadow.append(entry)

    def truncated(self, node_id: int, log: CommitLog) -> None:
        """Note what a follower dropped, also when it died of it."""
        self._world.is_changed = True
        shadow = self._shadows[node_id]
        if log.log_start_offset == log.log_end_offset:
            shadow.clear(log.log_start_offset)
        elif log.log_end_offset < shadow.end_offset:
            shadow.cut(log.log_end_offset)

    def begins(self, node_id: int, replica: Replica) -> None:
        """A follower has begun its log anew, where its leader said."""

    def emptied(self, node_id: int) -> None:
        """The node's log was about to be begun anew: whatever it held is to go."""
        self._world.is_changed = True
        self._shadows[node_id].clear(0)

    def clock_set_forward(self, node_id: int) -> None:
        """The wall clock of a node that leads. Later copies of its log take the step for time that
        has passed, and forget the ids of what was in the log before."""
        self._aged_below = max(self._aged_below, self._shadows[node_id].end_offset)

    def _match(self, node_id: int, before: Entry | None, entry: Entry) -> None:
        origin = self._origins.get((entry.leader_epoch, entry.base_offset))
        if origin is None or origin.entry != entry:
            raise Violation(f"node {node_id} holds {entry}, which no leader appended")
        if before is not None and origin.before is not None and before != origin.before:
            raise Violation(
                f"node {node_id} holds {entry} after {before}; its leader had it after "
                f"{origin.before}"
            )

    # Leaders, and what they commit.

    def leads(self, process: Process, replica: Replica) -> None:
        epoch = replica.stream.leader_epoch
        if self._leaders.setdefault(epoch, process) is not process:
            raise Violation(f"epoch {epoch} is led by node {process.node_id} and another process")
        if 0 < self._lossy_epoch <= epoch and replica.high_watermark > self.committed_end:
            # It rose under an earlier epoch, when the process had not heard of the election.
            self.high_watermark_rose(process, replica)

    def high_watermark_rose(self, process: Process, replica: Replica) -> None:
        high_watermark = replica.high_watermark
        epoch = replica.stream.leader_epoch
        if replica.leadership is None:
            self.follow(process.node_id, replica.log)
            if epoch < self._lost_at_epoch:
                return
        else:
            if high_watermark < self._high_watermarks.get(epoch, 0):
                raise Violation(f"the high watermark of epoch {epoch} fell to {high_watermark}")
            self._high_watermarks[epoch] = high_watermark
            if epoch < self._lossy_epoch:
                # It has not heard of the election yet, nor may it tell publishers.
                self._world.count("committed after a lossy election")
                return
            self._commit(process.node_id, high_watermark, replica.log.log_start_offset)
            if not replica.counts_flushed or replica.stream.unflushed:
                self._flushed_from = max(self._flushed_from, self.committed_end)
            if not self._commits or self._commits[-1][0] < high_watermark:
                self._commits.append((high_watermark, epoch))
        if replica.stream.leader_epoch >= self._lossy_epoch:
            self._agree(process.node_id, high_watermark)

    def _commit(self, node_id: int, high_watermark: int, log_start: int) -> None:
        end = self.committed_end
        if high_watermark <= end:
            return
        self._world.is_changed = True
        for entry in self._between(node_id, end, high_watermark):
            self.committed.append(entry)
            origin = self._origins[entry.leader_epoch, entry.base_offset]
            self._follow_producer(*origin.producer, entry.base_offset, log_start)
            for offset, number in enumerate(origin.ids, entry.base_offset):
                before = self._offsets.get(number)
                if before is not None:
                    if not self._is_forgotten(node_id, before, log_start):
                        raise Violation(
                            f"publish {number} is committed at two offsets, {before} and {offset}"
                        )
                    self._world.count("stored anew what was forgotten")
                    self._removed.add((number, before))
                self._offsets[number] = offset
        if self.committed_end != high_watermark:
            raise Violation(
                f"node {node_id} says [{end}, {high_watermark}) is committed; it does not hold that"
            )

    def _is_forgotten(self, node_id: int, offset: int, log_start: int) -> bool:
        """Whether the leader's log cannot tell any more that a publish is there."""
        return offset < log_start or offset < self._aged_below

    def _follow_producer(
        self, producer_id: int, sequence: int, base_offset: int, log_start: int
    ) -> None:
        if producer_id < 0:
            return
        # A log that was elected uncleanly may have lost its beginning, and a producer's with it.
        began_unseen = self._lossy_epoch > 0 and log_start > 0
        last = self._sequences.get(producer_id, None if began_unseen else (-1, log_start))
        if last is not None and last[1] < self._begun_at:
            last = None
        if last is not None and sequence != last[0] + 1 and (sequence or last[1] >= log_start):
            raise Violation(
                f"batch {sequence} of producer {producer_id} is committed after {last[0]}"
            )
        self._sequences[producer_id] = sequence, base_offset

    def _agree(self, node_id: int, high_watermark: int) -> None:
        shadow = self._shadows[node_id]
        if high_watermark > self.committed_end:
            raise Violation(f"node {node_id} takes {high_watermark} for committed; it is not")
        if high_watermark <= self._begun_at:
            return
        held = shadow.ends.get(high_watermark)
        known = self._committed_before(high_watermark)
        if held != known and held is not None:
            raise Violation(f"node {node_id} holds {held} where {known} is committed")
        if held is None and shadow.entries and shadow.entries[0].base_offset < high_watermark:
            raise Violation(f"node {node_id} holds no batch that ends at {high_watermark}")

    def _epoch_of_commit(self, offset: int) -> int:
        """In which leader epoch the log was committed up to there; -1: not by a rise that was
        seen."""
        return next((epoch for end, epoch in self._commits if end >= offset), -1)

    def _committed_before(self, offset: int) -> Entry | None:
        for entry in reversed(self.committed):
            if entry.next_offset == offset:
                return entry
        return None

    def committed_at(self, offset: int) -> Entry | None:
        """The batch with that offset."""
        holding = (e for e in reversed(self.committed) if e.base_offset <= offset < e.next_offset)
        return next(holding, None)

    def _between(self, node_id: int, start: int, end: int) -> list[Entry]:
        found = []
        for entry in reversed(self._shadows[node_id].entries):
            if entry.base_offset < start:
                break
            if entry.next_offset <= end:
                found.append(entry)
        return found[::-1]

    # Publishers.

    def acts(self, process: Process) -> None:
        """The process takes something from a publisher, or says something to one."""
        if self._world.now >= process.cluster.doubted_until:
            self._check_session(process)
        replica = process.replica_of(self.stream_id)
        if replica is None or replica.leadership is None:
            raise Violation(f"node {process.node_id} acts although it does not lead")

    def _check_session(self, process: Process) -> None:
        truth = process.cluster.metadata.now
        node = truth.nodes[NodeId(process.node_id)]
        if node.fenced or node.session != process.session:
            raise Violation(f"node {process.node_id} acts although its session was ended")
        if process.view.revision < self._session_ended_at[process.node_id]:
            raise Violation(f"node {process.node_id} acts and does not know that it was fenced")

    def acknowledged(self, number: int, offset: int) -> None:
        if self._offsets.get(number) != offset and (number, offset) not in self._removed:
            raise Violation(
                f"publish {number} was acknowledged at offset {offset}; "
                f"committed: {self._offsets.get(number)}"
            )
        self.acked[number] = offset

    def says_it_has(self, node_id: int, offset: int) -> None:
        """A process acknowledges what is stored there: its log holds that, or retention has removed
        it."""
        begins_at = self._shadows[node_id].start_offset
        if self._removed_below <= offset < begins_at:
            raise Violation(
                f"node {node_id} acknowledges offset {offset}; its log begins at {begins_at}, and "
                f"nothing was removed from {self._removed_below} on"
            )

    def refused(self, process: Process, number: int) -> None:
        """The publisher was told that nothing was stored."""
        if process.peers is None or not process.peers.has_asked_to_stand_by(self.stream_id):
            replica = process.replica_of(self.stream_id)
            assert replica is not None
            epoch = replica.stream.leader_epoch
            self._denied[number] = max(epoch, self._denied.get(number, epoch))
        if self._appended_by.get(number) is process:
            raise Violation(f"node {process.node_id} denies having appended publish {number}")

    def stored_by_stand_by(self, process: Process, number: int) -> None:
        """A process has begun to lead, and has stored what it had kept until then: nothing that the
        leader before it denied. An earlier one that leads no more, and has not heard so, may deny
        what its successors store, as any leader just deposed: see guarantees.md."""
        stream = process.cluster.metadata.registry.streams[self.stream_id]
        replica = process.replica_of(self.stream_id)
        assert replica is not None
        if replica.stream.leader_epoch < stream.leader_epoch:
            return
        is_denied = self._denied.get(number, -1) >= replica.stream.leader_epoch - 1
        if is_denied and self._appended_by.get(number) is process:
            raise Violation(f"publish {number} was denied, and node {process.node_id} stores it")

    # Readers.

    def read(
        self, node_id: int, replica: Replica, slice_: LogSlice, position: int
    ) -> list[BatchHeader]:
        """A reader at that position is shown these batches: what is committed, and all of it."""
        data, at = pread(replica.log, slice_), 0
        headers = []
        while at < len(data):
            header = decode_header(data, at)
            entry = entry_of(header, data[at + HEADER_BYTES : at + header.length])
            self.shows(node_id, entry)
            self.follows_on(position, entry)
            position, at = header.next_offset, at + header.length
            headers.append(header)
        return headers

    def shows(self, node_id: int, entry: Entry) -> None:
        """A reader is shown a batch at this moment: it is committed."""
        known = self._committed_before(entry.next_offset)
        if known is None or not self._is_shown(known, entry):
            raise Violation(f"node {node_id} shows {entry}; committed there: {known}")

    def follows_on(self, position: int, entry: Entry) -> None:
        """A reader at that position is shown a batch next: none is left out, none comes again."""
        if self._is_gap(position, entry):
            raise Violation(f"a reader at {position} is shown {entry}")

    def _is_shown(self, known: Entry, shown: Entry) -> bool:
        return known == shown

    def _is_gap(self, position: int, shown: Entry) -> bool:
        return shown.base_offset > position or shown.next_offset <= position

    def skips(self, node_id: int, replica: Replica) -> None:
        """A reader is told to go on where the stream begins."""
        self._check_start(node_id, replica.log)

    # Elections that may lose something.

    def stream_changed(self, before: StreamMetadata, after: StreamMetadata) -> None:
        """In truth. While the ISR is below its minimum nothing is committed, so whoever leaves it
        then stays eligible; before NEW_MINIMUM_LEVEL a new minimum begins anew."""
        if after.lossy_elections != before.lossy_elections:
            self._elected_uncleanly(after)
        elif after.leader != NO_NODE and after.leader == self._chosen:
            self._settle(after)
        limit = after.config.max_messages
        if limit:
            self._kept_min = limit if self._kept_min is None else min(limit, self._kept_min)
        minimum = after.config.min_insync_replicas
        altered = minimum != before.config.min_insync_replicas
        begins_anew = altered and after.isr and not self.keeps_eligible
        if len(after.isr) >= minimum or begins_anew:
            self._eligible = dict.fromkeys(after.isr)
        else:
            self._eligible.update(dict.fromkeys((*before.isr, *after.isr)))

    def _elected_uncleanly(self, after: StreamMetadata) -> None:
        """All that were trusted are gone; what is lost may be lost only if they all lost it."""
        self._lossy_epoch = after.leader_epoch
        self._chosen = after.leader
        self._asked_all_replicas = self.asks_all_replicas
        self._shadows[after.leader].marked = None  # It may be the best there is.
        self._settle(after)

    def _settle(self, after: StreamMetadata) -> None:
        """What the chosen one lacks is lost. One that may have lost something since it said what it
        has must register before it leads: if it is believed then, it leads again, and it counts. Of
        one that no start could read since, nobody knows what it lacks."""
        chosen = self._shadows[after.leader]
        if chosen.suspect or chosen.is_unread:
            return
        self._chosen = NO_NODE
        self._begun_at = chosen.entries[0].base_offset if chosen.entries else chosen.start_offset
        self._removed_below = max(self._removed_below, self._begun_at, chosen.start_offset)
        last = self.committed[-1] if self.committed else None
        if last is None or self._outlives(last, chosen):
            self._find_again(chosen)
            return
        self._world.count("lossy election with loss")
        self._lost_at_epoch = after.leader_epoch
        if chosen.is_erased and self._asked_all_replicas:
            self._check_nobody_has_more(after, last)
        for node_id in self._eligible:
            if self._begun_at >= last.next_offset:
                break  # Its log ends last, but its disk has lost the beginning with all committed.
            shadow = self._shadows[node_id]
            # One that has lost all but where it ends begins after everything, and holds nothing.
            if not shadow.suspect and shadow.entries and shadow.holds(last):
                raise Violation(
                    f"node {after.leader} was elected and lacks {last}, which node {node_id} holds"
                )
        lost: list[Entry] = []
        while self.committed and not self._outlives(self.committed[-1], chosen):
            lost.insert(0, self.committed.pop())
            self._forget(lost[0])
        self._given_up.append(lost)
        self._find_again(chosen)

    def _outlives(self, entry: Entry, chosen: Shadow) -> bool:
        """Whether an election that may lose records does not lose that one."""
        return chosen.holds(entry)

    def _find_again(self, chosen: Shadow) -> None:
        """What earlier elections lost is committed again, as far as the chosen one holds it."""
        for lost in reversed(self._given_up):
            for entry in chosen.held_of(lost):
                if entry.base_offset >= self.committed_end:
                    self._count_again(entry)

    def _count_again(self, entry: Entry) -> None:
        self._world.count("found what an election lost")
        self.committed.append(entry)
        ids = self._origins[entry.leader_epoch, entry.base_offset].ids
        for offset, number in enumerate(ids, entry.base_offset):
            self._offsets[number] = offset
            if self.lost.pop(number, None) is not None:
                self.acked[number] = offset

    def _check_nobody_has_more(self, after: StreamMetadata, last: Entry) -> None:
        """The disk of the chosen one was replaced, so nobody who was heard has anything: then every
        replica is waited for, also one that was not in sync by the rules."""
        for node_id in after.replicas:
            shadow = self._shadows[node_id]
            is_readable = not shadow.suspect and not shadow.is_unread
            if is_readable and shadow.entries and shadow.holds(last):
                raise Violation(
                    f"node {after.leader} was elected and holds nothing; "
                    f"node {node_id} holds {last}"
                )

    def _forget(self, entry: Entry) -> None:
        """Only a disk that has lost what was flushed can take what is committed under `group`."""
        if entry.base_offset >= self._flushed_from and not self.has_disk_failed:
            raise Violation(f"{entry} was flushed wherever it counted, and is lost")
        origin = self._origins[entry.leader_epoch, entry.base_offset]
        self._sequences[origin.producer[0]] = None
        for number in origin.ids:
            self._offsets.pop(number, None)
            if number in self.acked:
                self.lost[number] = self.acked.pop(number)

    # The end.

    def check_at_rest(self, node_id: int, replica: Replica) -> None:
        """Every acknowledged publish is where it was said to be, byte for byte."""
        log = replica.log
        self._check_start(node_id, log)
        found: dict[int, list[int]] = {}
        for batch in batches_of(log):
            for offset, value in zip(batch.offsets(), batch.values(), strict=True):
                found.setdefault(self._number_of(value), []).append(offset)
        for number, offset in self.acked.items():
            if offset >= log.log_start_offset and offset not in found.get(number, ()):
                raise Violation(
                    f"publish {number} was acknowledged at {offset}; on node {node_id} it is at "
                    f"{found.get(number)}"
                )
