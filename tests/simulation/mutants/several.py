"""What readers are shown, and leases on machines that are suspended."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from jetstream_server.clocks import Clocks
from jetstream_server.log.commit_log import LogSlice
from jetstream_server.replication.core.leader import LeaderState
from jetstream_server.replication.drivers.membership import Membership
from jetstream_server.replication.replica import Replica
from tests.simulation.mutants.installing import Patches, mutant
from tests.simulation.runner import SEVERAL
from tests.simulation.scenarios import UnawareLeaders


@mutant(kind=SEVERAL)
def shows_what_is_not_committed(patches: Patches) -> None:
    """A reader is shown the log up to its end."""
    read = Replica._read

    def beyond(self: Replica, offset: int, bytes_max: int, limit_offset: int) -> LogSlice | None:
        return read(self, offset, bytes_max, self.log.log_end_offset)

    patches.set(Replica, "_read", beyond)


@mutant(UnawareLeaders)
def knows_all_histories_at_once(patches: Patches) -> None:
    """A leader takes its log for the only one before every member of the ISR follows it."""
    patches.set(LeaderState, "is_followed", True)


@mutant(kind=SEVERAL)
def holds_leases_through_a_suspension(patches: Patches) -> None:
    """Leases are taken by a clock that stands still while the machine is suspended."""
    init = Membership.__init__

    def by_monotonic(self: Membership, *arguments: Any, clocks: Clocks, **rest: Any) -> None:
        init(self, *arguments, clocks=replace(clocks, boot=clocks.monotonic), **rest)

    patches.set(Membership, "__init__", by_monotonic)
