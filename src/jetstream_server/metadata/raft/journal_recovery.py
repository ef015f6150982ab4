"""Reads a journal, and checks that everything promised is there.

The file `synced` (jetstream_protocol.logfiles.synced_length) says how many bytes of which journal
file were synced before anything in them was promised. So there are three cases:

* unreadable bytes *after* that length belong to an unfinished write, whatever is left of it: torn,
  zero, or in any order. They are cut off, and nothing is lost.
* unreadable or missing bytes *before* it had been promised: StorageError, and nothing is changed.
* if `synced` is missing, damaged or belongs to another journal, nothing is known: an unreadable
  tail is cut off, and `lost` says why this journal may lack something. A node that is alone cannot
  ask others: it continues with a journal that is readable to its end, and refuses any other.

Nothing here does I/O.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from jetstream_protocol.errors import StorageError
from jetstream_protocol.logfiles.metadata_records import (
    BEGINNING,
    ENTRY,
    HEADER_BYTES,
    JOURNAL_HEADER,
    MAGIC,
    STANDING,
    TRUNCATE,
    VOTE,
    WHAT_TO_DO,
    Damage,
    Entry,
    Record,
    walk,
)
from jetstream_protocol.logfiles.synced_length import SyncedLength
from jetstream_server.metadata.raft.messages import VOTERS
from jetstream_server.metadata.raft.standing import UNKNOWN_RUN, VoterState, VoterStatus
from jetstream_server.metadata.raft.voters import Voters

_A_COPY = "it is a copy of a journal that was in use"


@dataclass(slots=True)
class Recovered:
    """The content of a journal file.

    generation: grows with every journal file of the node; 0 in earlier releases. end: the number of
    readable bytes. lost: why a promise may be missing; "" when none is. is_synced: whether all of
    them were synced, for certain. alone: whether the node is the only voter.
    """

    held: list[Entry] = field(default_factory=list)
    term: int = 0
    voted_for: str = ""
    standing: VoterStatus = field(default_factory=VoterStatus)
    generation: int = 0
    end: int = HEADER_BYTES
    lost: str = ""
    is_synced: bool = False
    alone: bool = False


@dataclass(frozen=True, slots=True)
class _Promised:
    """length: bytes that must be readable; None if unknown. doubt: why there may be more."""

    length: int | None
    doubt: str = ""


def recover(
    path: str, data: bytes, synced: SyncedLength | None, identity: int, *, alone: bool
) -> Recovered:
    """Read a journal's bytes. Raises StorageError, with `path` and position; see the module."""
    if data[:HEADER_BYTES] != JOURNAL_HEADER:
        raise StorageError(
            f"{path} at byte 0: not a metadata journal this software can read; {WHAT_TO_DO}"
        )
    found = Recovered()
    damage: Damage | None = None
    for item in walk(data):
        if isinstance(item, Damage):
            damage = item
            break
        _replay(path, found, item)
        found.end = item.end
    if not found.generation and not (synced is not None and synced.generation):
        # Written by a release that recorded neither status nor runs: the node voted.
        found.standing = VoterStatus(VoterState.VOTER, (UNKNOWN_RUN,))
    found.alone = alone and not _names_others(path, found.held)
    promised = _promised_length(found.generation, synced, identity, len(data))
    _check_end(path, found, damage, promised, data, alone=found.alone)
    found.is_synced = found.end == promised.length and not promised.doubt
    return found


def _names_others(path: str, held: list[Entry]) -> bool:
    """Whether the last change of the voters names more than one. Every set of voters is looked at:
    what the log holds must be understood."""
    count = 1
    for entry in held:
        if entry.data[:1] == bytes([VOTERS]):
            try:
                count = len(Voters.decode(entry.data[1:]).ids)
            except ValueError as error:
                raise StorageError(
                    f"{path}: entry {entry.index} is {error}: written by a newer version? update "
                    "this server"
                ) from error
    return count > 1


def _promised_length(
    generation: int, synced: SyncedLength | None, identity: int, size: int
) -> _Promised:
    if generation == 0:  # From an earlier release, or its first record is gone.
        return _Promised(synced.length if synced is not None and synced.generation else None)
    if synced is None:
        return _Promised(None, "the file `synced` beside it is missing or damaged")
    if synced.generation == generation:
        is_copy = synced.identity not in (0, identity) and not synced.clean
        return _Promised(synced.length, _A_COPY if is_copy else "")
    if synced.generation == generation - 1:
        return _Promised(size)  # The file was just rewritten, and nothing was added.
    if synced.generation > generation:
        return _Promised(None, "it is older than the file `synced` beside it says")
    return _Promised(None, "the file `synced` beside it is older than it")


def _check_end(
    path: str,
    found: Recovered,
    damage: Damage | None,
    promised: _Promised,
    data: bytes,
    *,
    alone: bool,
) -> None:
    """Check whether the journal may be opened, and what it may lack."""
    # A node that is alone has only this copy.
    found.lost = "" if alone and promised.doubt == _A_COPY else promised.doubt
    if promised.length is not None:
        if found.end < promised.length:
            raise StorageError(
                f"{path} at byte {found.end}: {promised.length} bytes of it had been synced, and "
                f"from here on they are damaged or missing; {WHAT_TO_DO}"
            )
    elif damage is not None:
        if damage.resumes_at is not None:
            raise StorageError(
                f"{path} at byte {damage.position}: corrupt record with valid ones around it; "
                f"{WHAT_TO_DO}"
            )
        found.lost = "its last records cannot be read, and nothing says whether they were synced"
        if alone and (found.generation or not _is_cut_short(data[found.end :])):
            raise StorageError(f"{path} at byte {found.end}: {found.lost}; {WHAT_TO_DO}")
    elif alone and promised.doubt.startswith("it is older"):
        raise StorageError(f"{path}: {promised.doubt}: later entries are lost; {WHAT_TO_DO}")


def _is_cut_short(tail: bytes) -> bool:
    """Whether the end of the file cuts a record off, as after a kill: the rest begins like a
    record."""
    head = MAGIC[: len(tail)]
    return tail[: len(head)] == head


def _replay(path: str, found: Recovered, record: Record) -> None:
    kind, index, term, payload, end = record
    if kind == ENTRY:
        if found.held and index != found.held[-1].index + 1:
            raise StorageError(
                f"{path} before byte {end}: entry {index} follows {found.held[-1].index}; "
                f"{WHAT_TO_DO}"
            )
        found.held.append(Entry(payload, index, term))
    elif kind == TRUNCATE:
        if found.held:
            del found.held[max(0, index - found.held[0].index) :]
    elif kind == VOTE:
        found.term, found.voted_for = term, payload.decode()
    elif kind == BEGINNING:
        found.generation = index
    elif kind == STANDING:
        try:
            found.standing = VoterStatus.decode(payload, index)
        except (ValueError, KeyError, TypeError) as error:
            raise StorageError(
                f"{path} before byte {end}: an invalid standing record; {WHAT_TO_DO}"
            ) from error
    else:
        raise StorageError(
            f"{path} before byte {end}: unknown record kind {kind}; was it written by a newer "
            "version? Start that one again"
        )
