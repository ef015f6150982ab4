"""Three clocks that move when a test says so. They are years apart, so that a mix-up shows."""

from __future__ import annotations

from jetstream_protocol.types import BootUs, MonotonicUs, WallUs
from jetstream_server.clocks import Clocks

MONOTONIC_US = MonotonicUs(1_000_000_000_000)
BOOT_US = BootUs(300_000_000_000_000)
WALL_US = WallUs(1_700_000_000_000_000)


class FakeClocks:
    """Set `wall_us` alone for a clock that is set; `advance` is time that passes."""

    def __init__(self) -> None:
        self.wall_us = WALL_US
        self.monotonic_us = MONOTONIC_US
        self.boot_us = BOOT_US

    def advance(self, us: int) -> None:
        self.wall_us = WallUs(self.wall_us + us)
        self.monotonic_us = MonotonicUs(self.monotonic_us + us)
        self.boot_us = BootUs(self.boot_us + us)

    def wall(self) -> WallUs:
        return self.wall_us

    def monotonic(self) -> MonotonicUs:
        return self.monotonic_us

    def boot(self) -> BootUs:
        return self.boot_us

    def all(self) -> Clocks:
        return Clocks(self.wall, self.monotonic, self.boot)
