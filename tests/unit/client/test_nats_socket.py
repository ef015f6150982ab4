"""What the connection to NATS leaves in a user's terminal."""

from __future__ import annotations

import asyncio
import ssl
from types import SimpleNamespace
from typing import Any

import pytest

from jetstream_client.transport.nats_socket import NatsSocket
from tests.support.loops import on_loop


@on_loop
async def test_nats_may_hang_up_over_tls_without_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """asyncio warns of each protocol that would keep its half of the connection open."""
    protocols = list[asyncio.StreamReaderProtocol]()

    async def start_tls(_transport: object, protocol: Any, *_: object, **__: object) -> Any:
        protocols.append(protocol)
        return SimpleNamespace(get_extra_info=lambda *_: None, is_closing=lambda: True)

    monkeypatch.setattr(asyncio.get_running_loop(), "start_tls", start_tls)
    socket = NatsSocket()
    plain: Any = SimpleNamespace(transport=SimpleNamespace())
    socket._io_writer = plain
    await socket.connect_tls("nats.example.org", ssl.create_default_context(), 1024, 1)
    assert socket._io_reader is not None
    assert not protocols[0].eof_received()
    assert socket._io_reader.at_eof()
