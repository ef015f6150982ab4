"""A server with TLS for tests that speak plainly: tunnels begin TLS on their behalf."""

from __future__ import annotations

import asyncio
import ssl
import threading
from contextlib import suppress
from pathlib import Path

from examples.certificates.authority import Authority
from tests.support.server import READY_SECONDS, ServerProcess, free_port_base
from tests.support.tls import HOSTS, tls_variables

PORTS = (0, 1, 3)
"""gRPC, data, HTTP, as steps from the port base."""


class TunnelledServer(ServerProcess):
    """`grpc`, `data_address` and `http` are the plain ends of tunnels. The ports from `port_base`
    on are the server's own, and speak TLS. It requires no client certificate."""

    def __init__(self, data: Path) -> None:
        authority = Authority(data.parent / "certificates")
        files = authority.issue("server", hosts=HOSTS, serves=True)
        super().__init__(data, environment=tls_variables(authority, files, "none"))
        self.context = ssl.create_default_context(cafile=authority.certificate_file)
        self.context.set_alpn_protocols(["h2"])
        self._tunnels = free_port_base()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    @property
    def grpc(self) -> str:
        return f"127.0.0.1:{self._tunnels}"

    @property
    def data_address(self) -> tuple[str, int]:
        return "127.0.0.1", self._tunnels + 1

    @property
    def http(self) -> str:
        return f"http://127.0.0.1:{self._tunnels + 3}"

    def start(self, ready_seconds: float = READY_SECONDS) -> ServerProcess:
        super().start(ready_seconds)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        return self

    async def _listen(self) -> None:
        for port in PORTS:
            await asyncio.start_server(
                lambda reader, writer, port=port: self._carry(reader, writer, port),  # type: ignore[misc]
                "127.0.0.1",
                self._tunnels + port,
            )

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int
    ) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(
                "127.0.0.1", self.port_base + port, ssl=self.context
            )
        except OSError:
            writer.transport.abort()
            return
        pumps = {
            asyncio.ensure_future(_pump(reader, far_writer)),
            asyncio.ensure_future(_pump(far_reader, writer)),
        }
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        writer.transport.abort()
        far_writer.transport.abort()
        await asyncio.wait(pumps)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
