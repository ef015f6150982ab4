"""Decides what a node may report of its logs when it registers after a restart
(docs/replication.md, "Restart trust").

A log is *complete* if it holds everything it held when its process ended. That is so

* after a clean stop: every log was flushed, and the run record says so;
* if only the process died: the page cache lives as long as the kernel, so the same boot id is
  enough, if the log scans clean and can be synced now.

After a power failure only flushed records remain. That is complete for a stream that flushes before
it acknowledges (the registry knows which do), and incomplete for the others.

The run record is a state file. It names the tokens of register_node (`sessions`) that the folder
belongs to. **safety** If the metadata knows this node under another token, this is not the folder
of that run (it was restored, copied or emptied), and no log in it is trusted, whatever its flush
policy. A token is recorded before it is registered, and older tokens are kept until a registration
has succeeded, so a crash in between loses nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class RunRecord:
    """The record of the runs of a data folder.

    sessions: tokens that may be the registered one, oldest first. boot_id: of the machine, in the
    last run. clean: that run ended cleanly. power_lost: since the first of `sessions` registered,
    unflushed bytes may have been lost. suspects: streams whose log failed an fsync; its content may
    be readable but not on disk, and a later fsync does not show that. lost_through: the metadata's
    revision when the folder of all streams was found missing: a stream of that revision or an
    earlier one that has no folder has lost its log. replaced_through: the metadata's revision when
    this was found not to be the folder of the node's last run: an empty log of a stream of that
    revision or an earlier one may have had records there.
    """

    sessions: tuple[str, ...] = ()
    boot_id: str = ""
    clean: bool = False
    power_lost: bool = False
    suspects: tuple[int, ...] = ()
    lost_through: int = 0
    replaced_through: int = 0

    @property
    def is_registered(self) -> bool:
        """Whether the metadata knows of this run which logs are not trusted."""
        return len(self.sessions) == 1 and not self.power_lost

    def of_new_run(self, session: str, boot_id: str) -> RunRecord:
        """The record of a new run that will register as `session`. Make it durable first."""
        survived = self.clean or self.boot_id == boot_id
        return replace(
            self,
            sessions=(*self.sessions, session),
            boot_id=boot_id,
            clean=False,
            power_lost=self.power_lost or not survived,
        )

    def of_registered_run(self, session: str) -> RunRecord:
        """The record once the metadata knows this run and everything lost before it."""
        return replace(self, sessions=(session,), power_lost=False)

    def suspecting(self, stream_id: int) -> RunRecord:
        """The record once an fsync of that stream's log has failed."""
        return replace(self, suspects=tuple(sorted({*self.suspects, stream_id})))

    def rebuilt(self, stream_id: int) -> RunRecord:
        """The record once that stream's log was emptied and is fetched from its leader."""
        return replace(self, suspects=tuple(s for s in self.suspects if s != stream_id))

    def streams_lost(self, revision: int) -> RunRecord:
        """The record if the folder of all streams is missing. revision: the metadata's."""
        return replace(self, lost_through=max(self.lost_through, revision))

    def folder_replaced(self, revision: int) -> RunRecord:
        """The record if the folder is not that of the node's last run. revision: the metadata's."""
        return replace(self, replaced_through=max(self.replaced_through, revision))

    def of_clean_end(self) -> RunRecord:
        """The record of a run that ends cleanly: every log is flushed and closed."""
        return replace(self, clean=True)

    def to_dict(self) -> dict[str, Any]:
        return {
            "sessions": list(self.sessions),
            "boot_id": self.boot_id,
            "clean": self.clean,
            "power_lost": self.power_lost,
            "suspects": list(self.suspects),
            "lost_through": self.lost_through,
            "replaced_through": self.replaced_through,
        }

    @classmethod
    def from_dict(cls, state: Mapping[str, Any] | None) -> RunRecord:
        """Read a record. None (missing or damaged) gives a record under which no log is trusted."""
        if state is None:
            return cls()
        return cls(
            sessions=tuple(map(str, state.get("sessions", ()))),
            boot_id=str(state.get("boot_id", "")),
            clean=state.get("clean") is True,
            power_lost=state.get("power_lost") is not False,
            suspects=tuple(map(int, state.get("suspects", ()))),
            lost_through=int(state.get("lost_through", 0)),
            replaced_through=int(state.get("replaced_through", 0)),
        )


@dataclass(frozen=True, slots=True)
class Trust:
    """The fields of register_node: whether logs are trusted in general, and which are not."""

    trusted: bool
    distrusted: tuple[int, ...]


def judge(record: RunRecord, registered_session: str | None, problems: Mapping[int, str]) -> Trust:
    """Decide what to register.

    record: of this run (`of_new_run`). registered_session: the node's in the metadata; None: it was
    never registered. problems: for each stream of this node, why its log is not trusted after
    recovery and a flush (damaged, or cut where records may have been acknowledged); "": it is.
    """
    if registered_session is not None and registered_session not in record.sessions:
        return Trust(False, tuple(sorted(problems)))
    suspects = [stream_id for stream_id in record.suspects if stream_id in problems]
    damaged = [stream_id for stream_id, problem in problems.items() if problem]
    return Trust(not record.power_lost, tuple(sorted({*suspects, *damaged})))
