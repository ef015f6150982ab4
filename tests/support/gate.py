"""A gate on the way to a TCP port: open, shut, or silent."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

import yaml

from tests.support.nats_server import NatsServer
from tests.support.server import ServerProcess, free_port_base


class Gate:
    """Carries connections to `port` while it is open. `with` ends it.

    Shut, it refuses connections and ends those that there are; its port may become another's
    meanwhile. Closed, it keeps the port, and ends each connection as soon as it is there. Silent,
    it takes connections and bytes, and passes nothing on until it is opened again.
    """

    def __init__(self, port: int) -> None:
        self.port = free_port_base(1)
        self.connections = 0
        """How many were begun."""
        self._to = port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._carrying: set[asyncio.Task[None]] = set()
        self._passes = asyncio.Event()
        self._hangs_up = False

    def __enter__(self) -> Self:
        self._thread.start()
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.shut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def open(self) -> None:
        self._do(self._open())

    def shut(self) -> None:
        self._do(self._shut())

    def close(self) -> None:
        self._do(self._close())

    def fall_silent(self) -> None:
        self._do(self._fall_silent())

    def _do(self, work: object) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()  # type: ignore[arg-type]

    async def _open(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._accepted, "127.0.0.1", self.port)
        self._hangs_up = False
        self._passes.set()

    async def _close(self) -> None:
        self._hangs_up = True
        for writer in list(self._writers):
            writer.transport.abort()

    async def _fall_silent(self) -> None:
        self._passes.clear()

    async def _shut(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        for task in list(self._carrying):
            task.cancel()
        await asyncio.gather(*self._carrying, return_exceptions=True)
        if server is not None:
            await server.wait_closed()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self._hangs_up:
            writer.transport.abort()
            return
        self._writers.add(writer)
        task = asyncio.ensure_future(self._carry(reader, writer))
        self._carrying.add(task)
        task.add_done_callback(self._carrying.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = [writer]
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._to)
            self._writers.add(back)
            ends.append(back)
            await asyncio.gather(self._pass(reader, back), self._pass(there, writer))
        except OSError:
            pass
        finally:
            for each in ends:
                self._writers.discard(each)
                each.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            await self._passes.wait()
            writer.write(data)
            with suppress(ConnectionError):
                await writer.drain()
        writer.transport.abort()


class GatedNode(ServerProcess):
    """A node whose data plane and NATS server clients reach through gates. The node itself speaks
    to NATS past the gate."""

    def __init__(self, folder: Path, nats: NatsServer, nats_gate: Gate) -> None:
        super().__init__(folder / "data")
        self.nats_gate = nats_gate
        self.data_gate = Gate(self.port_base + 1)
        self._config = folder / "node.yaml"
        self._nats = nats.url

    def command(self) -> list[str]:
        host, base = "127.0.0.1", self.port_base
        data = {"listen": f"{host}:{base + 1}", "advertise": f"{host}:{self.data_gate.port}"}
        node = {
            "id": 0,
            "grpc": f"{host}:{base}",
            "data": data,
            "raft": f"{host}:{base + 2}",
            "http": f"{host}:{base + 3}",
        }
        nats = {"servers": [self._nats], "advertise": [f"nats://{host}:{self.nats_gate.port}"]}
        config = {"cluster": "gated", "insecure": True, "nodes": [node], "nats": nats}
        self._config.write_text(yaml.safe_dump(config))
        command = super().command()
        at = command.index("--dev")
        return [
            *command[:at], "--config", str(self._config), "--node-id", "0",
            "--data", str(self.data),
        ]  # fmt: skip


@contextmanager
def gated_node(folder: Path) -> Iterator[GatedNode]:
    with NatsServer() as nats, Gate(int(nats.url.rpartition(":")[2])) as nats_gate:
        node = GatedNode(folder, nats, nats_gate)
        with node.data_gate:
            try:
                node.start()
                yield node
            finally:
                node.kill()
