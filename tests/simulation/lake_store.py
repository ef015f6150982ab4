"""The store of the lake: one more node of the simulation, which every node reaches by requests.

A request takes a while, may fail before or after it took effect, and its answer may never come. A
listing may lack what was written a moment ago. What stands here for the packages of the extra
`lake` is the process that copies (lake/worker.py), the table (lake/table.py) and what is found in
it (lake/object_finder.py): an object is the batches as the log held them, a table a text that names
its objects. Everything that decides (drivers/uploading.py, sweeping.py, retention.py,
core/lake_bounds.py, lake/reader.py and sweep.py, the metadata, serving/long_poll.py) is what ships.
"""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from jetstream_protocol.batch import BatchHeader, decode_header
from jetstream_protocol.errors import CorruptBatchError, UnavailableError
from jetstream_protocol.logfiles.scan import check_body
from jetstream_server.lake import table as lake_table
from jetstream_server.lake.access import Group
from jetstream_server.lake.local import LocalLake
from jetstream_server.lake.stores import (
    Listed,
    Store,
    StoreAwayError,
    StoreExistsError,
    StoreMissingError,
)
from jetstream_server.lake.table import COMMITTED, StreamTable
from jetstream_server.lake.tasks import MarkTask, Task, TrimTask
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster
    from tests.simulation.disk import SimulatedDisk
    from tests.simulation.process import Process
    from tests.simulation.world import World

LATE_US = 700_000
"""For so long at most a listing lacks what was written."""


class Unsettled(NamedTuple):
    """How often requests fail: before they have an effect, after it, or without any answer."""

    before: float = 0.0
    after: float = 0.0
    silent: float = 0.0


class SimulatedStore:
    """The objects, each written once. Its methods are those of lake/stores.py: at one instant, and
    without fail."""

    url = "file:///lake"

    def __init__(self, world: World) -> None:
        self._world = world
        self.objects: dict[str, bytes] = {}
        self._listed_from: dict[str, int] = {}
        self.unsettled = Unsettled()
        self.away_until = 0
        self.notes_nothing_until = 0
        """Of commits."""
        self.delay_us = 2_000
        self.deletes: Callable[[str], None] = lambda name: None
        """Is told of each object that goes."""

    def put(self, name: str, data: bytes) -> None:
        if name in self.objects:
            raise StoreExistsError(f"there is {name} already")
        world = self._world
        if f"/{COMMITTED}/" in name and world.now < self.notes_nothing_until:
            raise StoreAwayError("the store failed")
        self.objects[name] = data
        late_us = world.between(0, LATE_US) if world.chance(0.3) else 0
        self._listed_from[name] = world.now + late_us

    def get(self, name: str, position: int = 0, length: int = -1) -> bytes:
        data = self.objects.get(name)
        if data is None:
            raise StoreMissingError(f"there is no {name}")
        return data[position:] if length < 0 else data[position : position + length]

    def list(self, prefix: str) -> Iterable[Listed]:
        now = self._world.now
        return [
            Listed(name, len(data))
            for name, data in sorted(self.objects.items())
            if name.startswith(prefix) and self._listed_from[name] <= now
        ]

    def folders(self, prefix: str) -> Iterable[str]:
        names = {name.removeprefix(prefix).partition("/")[0] for name in self.objects}
        return sorted(names)

    def delete(self, name: str) -> None:
        if name not in self.objects:
            return
        self.deletes(name)
        del self.objects[name]
        self._world.count("object of the lake deleted")

    def answer(self, request: Callable[[], Any]) -> Any:
        """To a request over the network. Raises StoreAwayError, whatever it has done."""
        world, unsettled = self._world, self.unsettled
        if world.now < self.away_until or world.chance(unsettled.before):
            world.count("request to the store failed")
            raise StoreAwayError("the store is away")
        answer = request()
        if world.chance(unsettled.after):
            world.count("request to the store failed after it was done")
            raise StoreAwayError("the store failed")
        return answer

    async def ask(self, request: Callable[[], Any]) -> Any:
        """The same by a process that copies: it takes a while, and may never end."""
        world = self._world
        await asyncio.sleep(world.between(200, self.delay_us) / 1e6)
        answer = self.answer(request)
        if world.chance(self.unsettled.silent):
            world.count("answer of the store lost")
            await asyncio.get_running_loop().create_future()
        await asyncio.sleep(world.between(200, self.delay_us) / 1e6)
        return answer


class Stored(NamedTuple):
    """An object with the records of [begin, end)."""

    name: str
    begin: int
    end: int


class Table(NamedTuple):
    """The table at a location. before: the location of the version before. start: it begins
    there."""

    objects: tuple[Stored, ...]
    before: str = ""
    start: int = 0

    def encode(self) -> bytes:
        return json.dumps(self).encode()

    @classmethod
    def decode(cls, data: bytes) -> Table:
        objects, before, start = json.loads(data)
        return cls(tuple(Stored(*each) for each in objects), before, start)


class SimulatedTable(StreamTable):
    """Its tables are those of this module; which versions were committed it notes as ever."""

    def check_is_ours(self, location: str) -> None:
        if not location.startswith(f"{self.folder}/"):
            raise ValueError(f"the table at {location} is of another stream")

    def reached(self, location: str) -> set[str]:
        """The table of before is reached, too: somebody may be reading it."""
        table = self._read(location)
        return {location, *(each.name for each in table.objects), *filter(None, [table.before])}

    def objects(self, location: str, known: Any = None) -> Any:
        return list(self._read(location).objects)

    def start(self, location: str) -> int:
        return self._read(location).start

    def _read(self, location: str) -> Table:
        return Table.decode(self.store.get(location))


def batches_in(data: bytes) -> list[tuple[BatchHeader, int]]:
    """The headers of sound batches, and where each begins. Raises CorruptBatchError."""
    found, at = [], 0
    while at < len(data):
        header = decode_header(data, at)
        check_body(data, at, header, at)
        found.append((header, at))
        at += header.length
    return found


class SimulatedWorker:
    """The process that copies, of one node."""

    def __init__(self, process: Process, store: SimulatedStore) -> None:
        self._process, self._world, self._store = process, process.world, store

    async def work(self, task: Task | TrimTask | MarkTask) -> dict[str, Any]:
        try:
            if isinstance(task, MarkTask):
                table = SimulatedTable(self._store, self._store.url, task.folder, {})
                await self.ask(lambda: table.mark(task.location, task.before))
                return {}
            if isinstance(task, TrimTask):
                return await self._trim(task)
            return await self._copy(task)
        except (ValueError, CorruptBatchError) as error:
            raise EOFError(str(error)) from error

    async def _copy(self, task: Task) -> dict[str, Any]:
        world, store = self._world, self._store
        await asyncio.sleep(world.between(200, 20_000) / 1e6)
        data = self._read(task)
        batches = batches_in(data)
        if len(batches) > 1 and world.chance(0.2):  # An object ends at midnight, for example.
            batches = batches[: world.between(1, len(batches) - 1)]
        first, last = batches[0][0], batches[-1][0]
        if not first.base_offset <= task.begin < last.next_offset <= task.end:
            raise ValueError("these are not the batches that were to be copied")
        data = data[: batches[-1][1] + last.length]
        begin, end = first.base_offset, last.next_offset
        name = f"{task.folder}/data/{begin:020}-{end:020}-{task.attempt}.parquet"
        await self.ask(lambda: store.put(name, data))
        if await self.ask(lambda: store.get(name)) != data:
            raise ValueError("the store has something else")
        objects: tuple[Stored, ...] = ()
        if task.location:
            objects = Table.decode(await self.ask(lambda: store.get(task.location))).objects
        if objects and task.start < objects[-1].end != begin:
            raise ValueError(f"the table ends at {objects[-1].end}, not at {begin}")
        kept = [each for each in objects if each.end > task.start]
        table = Table((*kept, Stored(name, begin, end)), task.location, task.start)
        location = await self._write(task, table, end)
        return {
            "location": location, "end": end, "last_epoch": last.leader_epoch,
            "length": len(data), "stored": len(data),
        }  # fmt: skip

    async def ask(self, request: Callable[[], Any]) -> Any:
        return await self._store.ask(request)

    def _read(self, task: Task) -> bytes:
        data = self._process.disk.read_file(task.path)
        return data[task.position : task.position + task.length]

    async def _trim(self, task: TrimTask) -> dict[str, Any]:
        store, start = self._store, task.start
        table = Table.decode(await self.ask(lambda: store.get(task.location)))
        listed = [
            lake_table.ListedObject(
                *each, len(store.get(each.name)),
                batches_in(store.get(each.name))[-1][0].append_timestamp,
            )
            for each in table.objects
        ]  # fmt: skip
        gone = lake_table.count_leaving(listed, start, task.oldest_us, task.bytes_max)
        if not gone:
            return {"location": task.location, "start": start}
        start = max(start, listed[gone - 1].end)
        left = Table(table.objects[gone:], task.location, start)
        end = table.objects[-1].end
        self._world.count("lake trimmed")
        return {"location": await self._write(task, left, end), "start": start}

    async def _write(self, task: Task | TrimTask, table: Table, end: int) -> str:
        attempt = self._world.random.randbytes(6).hex()
        location = f"{task.folder}/metadata/{end:020}-{attempt}.metadata.json"
        await self.ask(lambda: self._store.put(location, table.encode()))
        return location


class FromThreads:
    """The store as a node asks it, which waits for each answer: **safety** in threads of its own,
    and never on a loop, for the store may be away."""

    def __init__(self, store: SimulatedStore) -> None:
        self._store = store
        self.url = store.url

    def put(self, name: str, data: bytes) -> None:
        self._ask(lambda: self._store.put(name, data))

    def get(self, name: str, position: int = 0, length: int = -1) -> bytes:
        found: bytes = self._ask(lambda: self._store.get(name, position, length))
        return found

    def list(self, prefix: str) -> Iterable[Listed]:
        found: list[Listed] = self._ask(lambda: self._store.list(prefix))
        return found

    def folders(self, prefix: str) -> Iterable[str]:
        found: list[str] = self._ask(lambda: self._store.folders(prefix))
        return found

    def delete(self, *names: str) -> None:
        """By requests of their own: each may fail."""
        for name in names:
            self._ask(partial(self._store.delete, name))

    def _ask(self, request: Callable[[], Any]) -> Any:
        if asyncio._get_running_loop() is not None:
            raise Violation("a loop waits for the store, and all that runs on it does")
        return self._store.answer(request)


class SimulatedObjects:
    """What lake/reader.py asks of lake/object_finder.py. An object is a group."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def group(self, location: str, offset: int) -> Group:
        objects = Table.decode(self._store.get(location)).objects
        name = next((n for n, begin, end in objects if begin <= offset < end), None)
        if name is None:
            raise UnavailableError(f"no object of the lake holds offset {offset}")
        headers, positions = zip(*batches_in(self._store.get(name)), strict=True)
        length = positions[-1] + headers[-1].length
        return Group(
            name, 0, headers[0].base_offset, headers[-1].next_offset, length,
            [each.base_offset for each in headers],
            [*positions, length],
            [each.leader_epoch for each in headers],
            [each.append_timestamp for each in headers],
        )  # fmt: skip

    def read(self, name: str, at: int) -> bytes:
        return self._store.get(name)


class SimulatedLake(LocalLake):
    """A node's process that reads the lake."""

    def __init__(self, store: SimulatedStore) -> None:
        super().__init__(FromThreads(store))

    def objects_of(self, store: Store) -> Any:
        return SimulatedObjects(store)

    def table_of(self, store: Store, folder: str, properties: Any) -> StreamTable:
        return SimulatedTable(store, store.url, folder, {})


class CacheFiles:
    """The files in which nodes keep what they have read: `open` of lake/local.py, and `Path` of
    lake/reader.py. Those of a node are on its disk, in the folder that `folder_of` names."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def folder_of(self, process: Process) -> str:
        return f"/lake-{process.node_id}-{process.machine.starts}"

    @contextmanager
    def open(self, path: str, mode: str) -> Iterator[Any]:
        assert mode == "wb"
        if self._cluster.world.chance(0.01):
            raise OSError(errno.ENOSPC, "no room for what was read", path)
        yield SimpleNamespace(write=partial(self._disk_of(path).keep_aside, path))

    def path(self, path: str) -> Any:
        return SimpleNamespace(unlink=lambda missing_ok: self._disk_of(path).remove_aside(path))

    def stat(self, path: str) -> Any:
        return SimpleNamespace(st_size=len(self._disk_of(path).file(path).data))

    def _disk_of(self, path: str) -> SimulatedDisk:
        return self._cluster.machines[int(path.split("-")[1])].disk


def running_process(cluster: Cluster) -> Process:
    """The one whose loop runs."""
    loop = asyncio.get_running_loop()
    processes = (machine.process for machine in cluster.machines)
    return next(each for each in processes if each is not None and each.loop is loop)
