"""What a node may say of its logs when it registers after a restart (docs/replication.md).

A log is *complete* when it holds everything it held when its process ended. That is so

* after a clean stop: every log was flushed, and the record of the run says so;
* after the death of the process alone: page caches live as long as the kernel, so the same boot id
  is enough, provided that the log scans clean and an fsync of it succeeds now.

After a power failure only what was flushed is there: complete for a stream that flushes before it
acknowledges (the registry knows which do), lacking for the others.

The record of the runs is a state file. It names the *sessions* (the tokens of register_node) whose
logs it speaks of: **safety** when the metadata knows this node under a session that is not among
them, the folder is not the one that session wrote (restored, copied, emptied), and no log in it is
believed, whatever its flush policy. A token is recorded before it is registered, and older ones are
kept until a registration is known to have succeeded: so a crash in between forgets nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class RunRecord:
    """What the data folder remembers of the runs up to now.

    sessions: tokens that may be the registered one, oldest first. boot_id: of the machine, in the
    last run. clean: that run ended cleanly. power_lost: since the first of `sessions` registered,
    unflushed bytes may have been lost. suspects: streams whose log failed an fsync: what it
    held then may be readable and yet not on disk, and no later fsync tells. lost_through: the
    folder that holds all streams was missing when the metadata was at that revision, so that a
    stream of it or before that has no folder has lost it.
    """

    sessions: tuple[str, ...] = ()
    boot_id: str = ""
    clean: bool = False
    power_lost: bool = False
    suspects: tuple[int, ...] = ()
    lost_through: int = 0

    def begun(self, session: str, boot_id: str) -> RunRecord:
        """A run begins, and will register as `session`. Durable before anything else is done."""
        survived = self.clean or self.boot_id == boot_id
        return RunRecord(
            sessions=(*self.sessions, session),
            boot_id=boot_id,
            clean=False,
            power_lost=self.power_lost or not survived,
            suspects=self.suspects,
            lost_through=self.lost_through,
        )

    def registered(self, session: str) -> RunRecord:
        """The metadata knows this run, and has been told of all that was lost before it."""
        return replace(self, sessions=(session,), power_lost=False)

    def suspecting(self, stream_id: int) -> RunRecord:
        """An fsync of that stream's log failed."""
        return replace(self, suspects=tuple(sorted({*self.suspects, stream_id})))

    def rebuilt(self, stream_id: int) -> RunRecord:
        """That stream's log was emptied, and is fetched again from its leader."""
        return replace(self, suspects=tuple(s for s in self.suspects if s != stream_id))

    def streams_lost(self, revision: int) -> RunRecord:
        """The folder that holds all streams is missing; the metadata is at that revision."""
        return replace(self, lost_through=max(self.lost_through, revision))

    def stopped(self) -> RunRecord:
        """The run ends cleanly: every log is flushed and closed."""
        return replace(self, clean=True)

    def to_dict(self) -> dict[str, Any]:
        return {
            "sessions": list(self.sessions),
            "boot_id": self.boot_id,
            "clean": self.clean,
            "power_lost": self.power_lost,
            "suspects": list(self.suspects),
            "lost_through": self.lost_through,
        }

    @classmethod
    def from_dict(cls, state: Mapping[str, Any] | None) -> RunRecord:
        """None, for a record that is missing or damaged, gives one that vouches for nothing."""
        if state is None:
            return cls()
        return cls(
            sessions=tuple(map(str, state.get("sessions", ()))),
            boot_id=str(state.get("boot_id", "")),
            clean=state.get("clean") is True,
            power_lost=state.get("power_lost") is not False,
            suspects=tuple(map(int, state.get("suspects", ()))),
            lost_through=int(state.get("lost_through", 0)),
        )


@dataclass(frozen=True, slots=True)
class Trust:
    """The fields of register_node: whether logs in general, and which not in any case."""

    trusted: bool
    distrusted: tuple[int, ...]


def judge(record: RunRecord, registered_session: str | None, problems: Mapping[int, str]) -> Trust:
    """What to register with.

    record: as of this run (`begun`). registered_session: the node's in the metadata, None when it
    was never registered. problems: for each stream this node replicates, why its log cannot be
    believed as recovery found it and a flush left it (damaged, or cut where something may have been
    acknowledged), "" when it can.
    """
    if registered_session is not None and registered_session not in record.sessions:
        return Trust(False, tuple(sorted(problems)))
    suspects = [stream_id for stream_id in record.suspects if stream_id in problems]
    damaged = [stream_id for stream_id, problem in problems.items() if problem]
    return Trust(not record.power_lost, tuple(sorted({*suspects, *damaged})))
