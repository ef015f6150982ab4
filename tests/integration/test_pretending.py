"""The program named `nats-server` that suites of others start."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from tests.suites.pretending import Pretender
from tests.support.loops import eventually, on_loop
from tests.support.server import free_port_base


@on_loop
async def test_a_program_that_a_suite_leaves_behind_ends_with_the_suite() -> None:
    with tempfile.TemporaryDirectory() as name:  # The path of a socket is short.
        folder = Path(name)
        config = folder / "nats.conf"
        config.write_text(f"port: {free_port_base()}\n")
        with Pretender(folder):
            program = await asyncio.create_subprocess_exec(
                folder / "nats-server", "-c", str(config)
            )
            ready = folder / f"asked.{program.pid}.ready"
            await eventually(ready.exists)
        async with asyncio.timeout(60):
            assert await program.wait() == 0
