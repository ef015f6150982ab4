"""A cluster whose stream is in the lake: leaders copy to it, each replica removes what is there
from its disk, and readers find old records there, between all other faults.

The stream moves between nodes, and has observers. The store fails requests, does what it says has
failed, and is away for a while (lake_store.py). Something befalls a leader in the middle of an
upload. Disks are lost, and leaders elected whose logs end before the lake does.

**safety** What is held against it (docs/lake.md):
* A version of the table that counts holds what is committed, once and without a hole; and its
  objects are there. None is gone that is younger than `max_age` and not beyond `max_bytes`, and in
  the end none is beyond that.
* What the lake holds is never lost, and nothing else is ever committed at its offsets.
* Only what the lake holds leaves a disk, and only after the node has heard that it is there.
* A reader is shown every record, wherever it is, and nothing that its node knows to be purged. One
  that has read what an election lost is told so.
* No object goes from the store that a version of the table needs which counts, or has counted
  within the grace time.
* No loop waits for the store (lake_store.py).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import patch

from jetstream_protocol.errors import JetstreamError
from jetstream_protocol.types import NO_EPOCH, NodeId
from jetstream_server.lake import local as local_lake
from jetstream_server.lake import reader as lake_reader
from jetstream_server.lake.reader import LakeReader
from jetstream_server.lake.stores import StoreOptions
from jetstream_server.lake.tasks import Task
from jetstream_server.log.commit_log import CommitLog, LogSlice
from jetstream_server.metadata.state.command_json import decode_command
from jetstream_server.metadata.state.commands import ReassignStream
from jetstream_server.metadata.state.streams import LakeMark, StreamMetadata
from jetstream_server.node import node
from jetstream_server.replication.core import lake_bounds
from jetstream_server.replication.core.unreadable import InLakeError
from jetstream_server.replication.drivers import retention, sweeping, uploading
from jetstream_server.replication.drivers.uploading import LakeOptions, Uploading
from jetstream_server.replication.replica import Replica
from jetstream_server.serving.long_poll import FetchPosition
from tests.simulation.checker import Checker
from tests.simulation.cluster import BEGIN_US, Profile
from tests.simulation.lake_store import (
    CacheFiles,
    SimulatedLake,
    SimulatedStore,
    SimulatedWorker,
    Stored,
    Table,
    Unsettled,
    batches_in,
    running_process,
)
from tests.simulation.machine import CLUSTER_ID, WALL_CLOCK_US
from tests.simulation.process import Inline
from tests.simulation.readers import BYTES_MAX, Reader
from tests.simulation.reassigning import ReassignedCluster
from tests.simulation.scenarios import Scenario, scenario_of
from tests.simulation.scenarios.laking import (
    CommitsTooLate,
    Diverges,
    LateCommits,
    Outlives,
    SweepsAlone,
    Unheard,
)
from tests.simulation.shadows import Entry, Shadow, entry_of
from tests.simulation.watched import WatchedStream
from tests.simulation.world import Violation, World

if TYPE_CHECKING:
    from tests.simulation.process import Process

CACHE_BYTES = (5_000, 1 << 20)
"""What a node keeps of what it has read: a few objects, or all."""
ABOUT = {
    0: Outlives, 3: CommitsTooLate, 4: LateCommits, 6: Outlives, 8: SweepsAlone, 9: Unheard,
    11: Diverges,
}  # fmt: skip
"""Seeds by what is left when they are divided by twelve."""
SEGMENT_BYTES = (500, 800, 1_200)
"""Of small segments some are sealed soon."""
SIZED_SHARE = 0.3
MAX_BYTES = (3_000, 30_000)
"""How many of the seeds limit what the lake holds, and to how much at most: a few objects, or most
of them."""
GRACE_SECONDS = 8.0
"""Longer than anything is under way."""
UNSEEN_US = 2_000_000
"""Sweeps that are missed: in that time a version of the table may come and go unseen."""
UPLOAD_SECONDS = 1.5
STEP_CHANCE = 0.06
"""How often something befalls a leader at a step of an upload."""
EAGER = (
    (uploading, "ROUND_SECONDS", 0.1),
    (uploading, "RETRY_US", 300_000),
    (uploading, "TRIM_US_MIN", 300_000),
    (sweeping, "ROUND_SECONDS_MIN", 0.5),
    (sweeping, "ROUND_SECONDS_MAX", 0.5),
    (retention, "ROUND_SECONDS", 0.2),
    (lake_reader, "IN_USE_US", 300_000),
)
"""In place of the drivers' constants."""


class LakedChecker(Checker):
    """Also of what the lake holds."""

    def __init__(self, world: World, nodes: int, store: SimulatedStore, grace_us: int) -> None:
        super().__init__(world, nodes)
        self.grace_us = grace_us
        self._store = store
        store.deletes = self.deleted
        self._needed: frozenset[str] = frozenset()
        """By the table that counts: it, and its objects."""
        self._needed_until: dict[str, int] = {}
        """When it last needed others."""
        self.lake_end = 0
        self._stream_start = 0
        self._verified: dict[str, None] = {}
        self._max_age_us: int | None = None
        self._max_bytes: int | None = None
        """The least of all."""
        self._lost_below = 0
        """Winners of lossy elections have lost what is in front, and the lake may not have it."""

    def stream_changed(self, before: StreamMetadata, after: StreamMetadata) -> None:
        age_us = after.config.max_age_us
        if age_us:
            self._max_age_us = min(age_us, self._max_age_us or age_us)
        bytes_max = after.config.max_bytes
        if bytes_max:
            self._max_bytes = min(bytes_max, self._max_bytes or bytes_max)
        self.purged(after.purged_offset)
        if after.lake != before.lake:
            self.lake_end = after.lake.end
            self._removed_below = max(self._removed_below, self.lake_end)
            self._check_lake(before, after)
            if after.lake.location != before.lake.location:
                self._note_needed(after.lake.location)
            if after.lake.holds_records or after.lake.version:
                self._stream_start = max(self._stream_start, after.lake.start)
        super().stream_changed(before, after)

    def _settle(self, after: StreamMetadata) -> None:
        super()._settle(after)
        self._lost_below = max(self._lost_below, self._begun_at)
        chosen = self._shadows[after.leader]
        if not self._is_unsettled and self._begins_after_lake(chosen, after.lake):
            self._begun_at = after.lake.end  # And it knows no producers.

    def _begins_after_lake(self, chosen: Shadow, lake: LakeMark) -> bool:
        """Whether its log is not the lake's, and begins anew at its end. If all of that was purged,
        a log that reaches there goes on: what it has there is from before the purge, too."""
        if chosen.start_offset >= lake.end:
            return False
        if lake.holds_records:
            held = chosen.ends.get(lake.end)
            return held is None or held != self._committed_before(lake.end)
        at = next((each for each in chosen.entries if each.next_offset >= lake.end), None)
        return at is None or at.leader_epoch < lake.last_epoch

    def _outlives(self, entry: Entry, chosen: Shadow) -> bool:
        """The lake holds it. What was purged there may be lost."""
        is_held = self._stream_start < entry.next_offset <= self.lake_end
        return is_held or super()._outlives(entry, chosen)

    # What counts.

    def _check_lake(self, before: StreamMetadata, after: StreamMetadata) -> None:
        lake = after.lake
        if lake.end < before.lake.end or lake.start < before.lake.start:
            raise Violation(f"the lake's mark falls from {before.lake} to {lake}")
        if not lake.holds_records:
            return
        if lake.end > self.committed_end:
            raise Violation(f"the lake holds {lake}; committed up to {self.committed_end}")
        objects = self.objects(lake.location)
        at = lake.start
        for name, begin, end in objects:
            if end <= lake.start:
                continue
            if begin > at or (begin < at and at != lake.start):
                raise Violation(f"the lake holds {objects}: a hole, or an offset twice, at {at}")
            at = end
            if name not in self._verified:
                self._verified[name] = None
                self._check_object(name, begin, end)
        if at != lake.end and lake.end > self._purged_below:
            raise Violation(f"the lake's mark is {lake}; its objects end at {at}")
        if lake.start > max(before.lake.start, self._purged_below) and before.lake.version:
            # What the log has lost after the lake's end was never in it.
            begin, end = before.lake.start, min(lake.start, before.lake.end)
            self._check_aged(max(begin, self._beyond_size(before.lake, end)), end)

    def _note_needed(self, location: str) -> None:
        needed = frozenset((location, *(each.name for each in self.objects(location))))
        left = dict.fromkeys(sorted(self._needed - needed), self._world.now)
        self._needed, self._needed_until = needed, self._needed_until | left

    def deleted(self, name: str) -> None:
        """An object is about to go from the store."""
        now, until = self._world.now, self._needed_until.get(name)
        is_read = until is not None and now < until + self.grace_us - UNSEEN_US
        if name in self._needed or is_read:
            raise Violation(f"{name} is deleted; the table needs it, or did until {until}")
        if not name.startswith(f"{CLUSTER_ID}/{self.stream_id}-0/"):
            raise Violation(f"{name} is deleted, which is not of this stream")

    def objects(self, location: str) -> tuple[Stored, ...]:
        if location not in self._store.objects:
            raise Violation(f"the lake's table {location} is not there")
        return Table.decode(self._store.get(location)).objects

    def _check_object(self, name: str, begin: int, end: int) -> None:
        """It has what is committed there, batch by batch."""
        data = self._store.objects.get(name)
        if data is None:
            raise Violation(f"the lake's object {name} is not there")
        at = begin
        for header, position in batches_in(data):
            entry = entry_of(header, data[position + 88 : position + header.length])
            if self._committed_before(entry.next_offset) != entry or entry.base_offset != at:
                known = self._committed_before(entry.next_offset)
                raise Violation(f"the lake holds {entry} at {at}; committed there: {known}")
            at = entry.next_offset
        if at != end:
            raise Violation(f"the lake's object {name} ends at {at}")

    def _beyond_size(self, lake: LakeMark, end: int) -> int:
        """Where the objects end that are below `end` and may have left the lake for `max_bytes`:
        those after them have so many."""
        beyond = 0
        for each, left in self.sizes(lake.location):
            if self._max_bytes is not None and left >= self._max_bytes and each.end <= end:
                beyond = each.end
        return beyond

    def sizes(self, location: str) -> list[tuple[Stored, int]]:
        """The objects of a table, each with how many bytes those after it have."""
        objects = self.objects(location) if location else ()
        lengths = [len(self._store.get(each.name)) for each in objects]
        return [(each, sum(lengths[at:])) for at, each in enumerate(objects, 1)]

    def _check_aged(self, begin: int, end: int) -> None:
        """Nothing younger than the stream's shortest limit leaves the lake."""
        limit_us = self._max_age_us
        for entry in self.committed:
            if begin <= entry.base_offset and entry.next_offset <= end:
                origin = self._origins[entry.leader_epoch, entry.base_offset]
                age_us = WALL_CLOCK_US + self._world.now - origin.timestamp
                if limit_us is None or age_us < limit_us - 100_000:
                    raise Violation(
                        f"{entry} leaves the lake; it is {age_us} µs old, and stays for "
                        f"{limit_us}, or while less than {self._max_bytes} bytes are after it"
                    )

    def copies(self, process: Process, task: Task) -> None:
        """A leader has those batches copied."""
        replica = process.replica_of(self.stream_id)
        if replica is None or replica.leadership is None:
            return
        if task.end > replica.log.flushed_offset:
            raise Violation(
                f"node {process.node_id} copies [{task.begin}, {task.end}); its log is flushed up "
                f"to {replica.log.flushed_offset}"
            )

    # What leaves a disk.

    def removed(self, node_id: int, log: CommitLog, log_start_offset: int) -> None:
        if log_start_offset > max(self.lake_end, self._purged_below):
            raise Violation(
                f"node {node_id} removes all below {log_start_offset}; the lake holds what is "
                f"below {self.lake_end}"
            )
        self._removed_below = max(self._removed_below, log_start_offset)

    def begins(self, node_id: int, replica: Replica) -> None:
        """A follower has begun its log anew."""
        start, known = replica.log.log_start_offset, replica.stream.lake.end
        if start > max(known, self._purged_below, self._lost_below):
            raise Violation(
                f"node {node_id} begins at {start}, and has heard only that the lake holds what is "
                f"below {known}"
            )

    # Readers.

    def skips(self, node_id: int, replica: Replica) -> None:
        start = lake_bounds.start_offset(replica.stream, replica.log)
        if start > max(self._stream_start, self._purged_below, self._lost_below):
            raise Violation(
                f"a reader is told by node {node_id} that the stream begins at {start}; it begins "
                f"at {self._stream_start}"
            )

    def check_at_rest(self, node_id: int, replica: Replica) -> None:
        super().check_at_rest(node_id, replica)
        lake, start = replica.stream.lake, replica.log.log_start_offset
        if not lake.holds_records:
            return
        if start > max(lake.end, self._purged_below, self._lost_below):
            raise Violation(f"node {node_id} begins at {start}; the lake ends at {lake.end}")
        held: dict[int, tuple[int, ...]] = {}
        for name, begin, end in self.objects(lake.location):
            self._check_object(name, begin, end)
            for header, _ in batches_in(self._store.get(name)):
                origin = self._origins[header.leader_epoch, header.base_offset]
                held[header.base_offset] = origin.ids
        found = {
            offset: number for base, ids in held.items() for offset, number in enumerate(ids, base)
        }
        for number, offset in self.acked.items():
            if lake.start <= offset < min(start, lake.end) and found.get(offset) != number:
                raise Violation(f"publish {number} was acknowledged at {offset}; it is nowhere")

    def excess(self, stream: StreamMetadata) -> str:
        """What should have left the lake for `max_bytes`; "": nothing."""
        bytes_max, lake = stream.config.max_bytes, stream.lake
        if not bytes_max or not lake.holds_records:
            return ""
        left = next(iter(self.sizes(lake.location)), (None, 0))[1]
        return f"the lake holds {left} bytes without its oldest object" * (left >= bytes_max)


class ThroughReader(Reader):
    """Reads the log, and the lake through whichever replica it asks. After an election that lost
    records it goes on where it is at times, and is told."""

    def __init__(self, stream: LakedStream) -> None:
        super().__init__(stream)
        self._dice = Random(f"reader of the lake of {stream.world.seed}")

    def begins_anew(self) -> bool:
        return self._dice.random() < 0.5

    def _ask(self, process: Process, replica: Replica) -> None:
        if self._dice.random() < 0.05:
            self._begin_at(max(self.position - self._dice.randint(1, 60), 0))
        super()._ask(process, replica)

    def _find(self, process: Process, replica: Replica, *, is_leader: bool) -> LogSlice | None:
        position = FetchPosition(self.position, self._last_epoch, BYTES_MAX, 1, 0)
        fetches = process.node.fetches
        try:
            found = fetches.look(replica, position)
        except InLakeError as error:
            stream, lake = replica.stream, fetches.lake
            assert lake is not None
            load = lake.load_epoch if error.is_epoch else lake.load
            process.loop.enter(load, stream.id, stream.lake.location, error.offset, self._loaded)
            raise
        if found is not None:
            self._check_history(process, replica)
        if found is not None and found.last_epoch is not None:
            self._world.count("read: from the lake")
            if found.next_offset <= replica.stream.purged_offset:
                raise Violation(
                    f"node {process.node_id} shows {found}, and knows that all below "
                    f"{replica.stream.purged_offset} is purged"
                )
        return found

    def _loaded(self, error: JetstreamError | None) -> None:
        self._world.count("lake read" if error is None else "lake not read")

    def _check_history(self, process: Process, replica: Replica) -> None:
        """Who has read what is not there any more is told so, and shown nothing."""
        before = self._stream.checker.committed_at(self.position - 1)
        if before is None or self._last_epoch in (NO_EPOCH, before.leader_epoch):
            return
        if self.position > lake_bounds.start_offset(replica.stream, replica.log):
            raise Violation(
                f"a reader who has read up to {self.position}, in epoch {self._last_epoch}, is "
                f"shown more by node {process.node_id}; {before} is committed"
            )


class LakedStream(WatchedStream):
    """One that is in the lake."""

    def __init__(self, cluster: LakedCluster) -> None:
        nodes = cluster.profile.nodes
        checker = LakedChecker(cluster.world, nodes, cluster.store, cluster.grace_us)
        super().__init__(cluster, "orders", 0, checker)
        self.reader = ThroughReader(self)


class LakedCluster(ReassignedCluster):
    """See the module."""

    damage = 3.0
    clocks_agree = True
    idle_setting = "lake_lag_us"
    read_share = 0.6

    def __init__(self, seed: int, *, tracing: bool = False) -> None:
        self._chances = Random(f"lake of {seed}")
        self.moves = self._chances.random() < 0.4
        self._sizes = Random(f"max_bytes of {seed}")
        self._is_sized = self._sizes.random() < SIZED_SHARE
        super().__init__(seed, tracing=tracing)

    def draw_profile(self, world: World) -> Profile:
        profile = super().draw_profile(world)
        self.store = SimulatedStore(world)
        self.files = CacheFiles(self)
        is_about_sweeps = self.scenario() is SweepsAlone
        grace = SweepsAlone.grace_seconds if is_about_sweeps else GRACE_SECONDS
        self.grace_us = round(grace * 1e6)
        cache_bytes = self._chances.choice(CACHE_BYTES)
        self.lake = LakeOptions(
            StoreOptions("file:///lake"), 1 << 30, UPLOAD_SECONDS, cache_bytes, grace
        )
        replicas = max(profile.replicas, 2) if self._chances.random() < 0.9 else 1
        minimum = min(profile.min_insync_replicas, replicas)
        if replicas > 1 and self._chances.random() < 0.4:
            minimum = 1
        return replace(
            profile,
            replicas=replicas,
            min_insync_replicas=minimum,
            segment_bytes=self._chances.choice(SEGMENT_BYTES),
            lazy_node=self._chances.choice((-1, *range(profile.nodes))),
        )

    def make_streams(self) -> list[WatchedStream]:
        return [LakedStream(self)]

    def stream_changed(self, before: StreamMetadata, after: StreamMetadata) -> None:
        """Only the leader says what the lake holds."""
        super().stream_changed(before, after)
        epoch = decode_command(self.metadata.applying).fields.get("leader_epoch")
        if after.lake != before.lake and epoch != before.leader_epoch:
            raise Violation(f"the leader of epoch {epoch} commits {after.lake}")

    def scenario(self) -> type[Scenario]:
        """A sixth of the seeds are about logs that end before the lake does."""
        seed = self.world.seed
        return ABOUT.get(seed % 12) or scenario_of(seed)

    def create_streams(self) -> None:
        self.set_cluster()
        profile, world = self.profile, self.world
        nodes = world.random.sample(range(profile.nodes), profile.nodes)
        replicas, others = nodes[: profile.replicas], nodes[profile.replicas :]
        config: dict[str, object] = {
            "min_insync_replicas": profile.min_insync_replicas,
            "flush": profile.flush,
            "lake": True,
        }
        if self._chances.random() < 0.8 or self.scenario().fills_lake:
            most = 400 if self.scenario().fills_lake else 4_000
            config["local_max_bytes"] = self._chances.randint(1, most)
        config |= self._sized()
        observers = others[:1] if self._chances.random() < 0.3 else []
        self.focus.create(config, sorted(replicas), observers)
        for neighbour in (f"{CLUSTER_ID}/{self.stream_id}-00", f"{CLUSTER_ID}/0-0", "other/0-0"):
            self.store.put(f"{neighbour}/data/{0:020}-{9:020}-0-0.parquet", b"of others")

    def fewer(self) -> dict[str, object]:
        if self._chances.random() < 0.3:
            return {"max_age_us": self._chances.randint(1_500_000, 6_000_000)}
        return {"local_max_bytes": self._chances.randint(1, 4_000)} | self._sized()

    def _sized(self) -> dict[str, object]:
        """In some seeds. The others stay the stories they were."""
        if not self._is_sized:
            return {}
        return {"max_bytes": self._sizes.randint(1, self._sizes.choice(MAX_BYTES))}

    def _difference(self) -> str:
        checker = cast(LakedChecker, self.focus.checker)
        return super()._difference() or checker.excess(self.focus.stream)

    def run(self) -> None:
        self.world.at(BEGIN_US, None, self._harm_store)
        with with_lake(self):
            super().run()

    def _move_later(self) -> None:
        if self.moves:
            super()._move_later()

    def _move(self) -> None:
        stream = self.metadata.now.stream
        if not self.faults.healing and stream is not None and self._chances.random() < 0.3:
            others = [n for n in range(len(self.machines)) if n not in stream.replicas]
            kept = self._chances.sample(others, self._chances.randint(0, len(others)))
            self.world.count("observers changed")
            self.metadata.apply(
                ReassignStream(
                    stream_id=self.stream_id,
                    replicas=stream.target_replicas or stream.replicas,
                    observers=tuple(map(NodeId, kept)),
                )
            )
        super()._move()

    def _harm_store(self) -> None:
        """For a while it fails in some way, or is away."""
        world, store, chances = self.world, self.store, self._chances
        if self.faults.healing or self.faults.scenario.fills_lake:
            store.unsettled, store.away_until, store.delay_us = Unsettled(), 0, 2_000
            return
        rates = (0.0, 0.0, 0.05, 0.3)
        store.unsettled = Unsettled(*(chances.choice(rates) for _ in range(3)))
        store.delay_us = chances.choice((1_000, 2_000, 20_000, 100_000))
        if chances.random() < 0.15:
            store.away_until = world.now + chances.randint(0, 1_500_000)
            world.count("store away")
        world.later(chances.randint(100_000, 1_500_000), None, self._harm_store)

    def step(self, process: Process) -> None:
        """A step of an upload begins. At times something befalls who does it."""
        chances = self._chances
        faults = self.faults
        is_spared = faults.scenario.is_calm or faults.scenario.fills_lake
        if faults.healing or is_spared or chances.random() >= STEP_CHANCE:
            return
        self.world.count("struck in the middle of an upload")
        what, now = chances.random(), self.world.now
        if what < 0.3:
            process.hand_over()
        elif what < 0.6:
            process.pause(now + chances.randint(100_000, 3_000_000))
        elif what < 0.8:
            self.world.later(0, None, process.machine.crash, "killed while it uploads")
        else:
            self.world.later(0, None, process.machine.lose_power)


class _Worker(SimulatedWorker):
    """Of which the cluster hears."""

    def __init__(self, process: Process, cluster: LakedCluster) -> None:
        super().__init__(process, cluster.store)
        self._cluster = cluster

    async def work(self, task: Any) -> dict[str, Any]:
        if isinstance(task, Task):
            cast(LakedChecker, self._cluster.checker).copies(self._process, task)
        return await super().work(task)

    async def ask(self, request: Any) -> Any:
        self._cluster.step(self._process)
        return await super().ask(request)


@contextmanager
def with_lake(cluster: LakedCluster) -> Iterator[None]:
    """The nodes stand on the simulated store."""
    store, world = cluster.store, cluster.world

    def make_uploading(metadata: Any, options: LakeOptions, **clocks: Any) -> Uploading:
        work = _Worker(running_process(cluster), cluster).work
        return Uploading(metadata, options, work=work, **clocks)

    def make_reader(store: Any, _: str, cache_bytes: int, clock: Any, *__: Any) -> LakeReader:
        folder = cluster.files.folder_of(running_process(cluster))
        return LakeReader(store, folder, cache_bytes, clock)

    def nothing(*_: Any, **__: Any) -> None: ...

    cache = SimpleNamespace(makedirs=nothing, path=os.path, stat=cluster.files.stat)

    def token_hex(length: int) -> str:
        return world.random.randbytes(length).hex()

    begin = lake_bounds.begin_after_lake

    def begin_seen(stream: StreamMetadata, log: CommitLog) -> bool:
        has_begun = begin(stream, log)
        if has_begun:
            node_id = next(m.node_id for m in cluster.machines if m.disk is log._disk)
            cluster.checker.truncated(node_id, log)
            world.count("log begun anew at the lake's end")
        return has_begun

    with ExitStack() as stack:
        for module, name, value in (
            *EAGER,
            (uploading, "secrets", SimpleNamespace(token_hex=token_hex)),
            (node, "Uploading", make_uploading),
            (node, "LakeReader", make_reader),
            (node, "LakeProcess", lambda *_: SimulatedLake(store)),
            (lake_reader, "ThreadPoolExecutor", lambda *_: Inline()),
            (lake_reader, "os", cache),
            (lake_reader, "shutil", SimpleNamespace(rmtree=nothing)),
            (lake_reader, "Path", cluster.files.path),
            (local_lake, "open", cluster.files.open),
            (lake_bounds, "begin_after_lake", begin_seen),
        ):
            stack.enter_context(patch.object(module, name, value, create=name == "open"))
        yield
