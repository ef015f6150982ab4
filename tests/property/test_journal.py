"""The journal against a model: a list of entries, a vote, a snapshot; reopened at any point."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetstream_protocol.errors import StorageError
from jetstream_protocol.logfiles.metadata_records import Entry, Snapshot, encode_entry
from jetstream_server.metadata.raft.journal import Journal
from tests.support.examples import scaled

steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.binary(max_size=40)),
        st.tuples(st.just("truncate"), st.integers(0, 12)),
        st.tuples(st.just("vote"), st.integers(0, 5)),
        st.tuples(st.just("compact"), st.integers(0, 12)),
        st.tuples(st.just("reopen"), st.none()),
    ),
    max_size=30,
)


class Model:
    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.vote = (0, "")
        self.compacted = 0

    def run(self, journal: Journal, step: str, argument: Any) -> None:
        if step == "append":
            entry = Entry(argument, journal.last_index + 1, self.vote[0])
            journal.append(entry)
            self.entries.append(entry)
        elif step == "truncate":
            journal.truncate(max(argument, self.compacted + 1))
            self.entries = [e for e in self.entries if e.index < max(argument, self.compacted + 1)]
        elif step == "vote":
            journal.save_vote(argument, f"node-{argument}")
            self.vote = (argument, f"node-{argument}")
        elif step == "compact" and any(e.index == argument > self.compacted for e in self.entries):
            [last] = [entry for entry in self.entries if entry.index == argument]
            snapshot = Snapshot(last.index, last.term, b"state", (last,))
            journal.install(snapshot, keep_from=last.index)
            self.entries = [entry for entry in self.entries if entry.index >= last.index]
            self.compacted = last.index

    def check(self, journal: Journal) -> None:
        assert journal.entries(0) == self.entries
        assert (journal.term, journal.voted_for) == self.vote
        assert journal.snapshot_index == self.compacted


@settings(max_examples=scaled(60))
@given(steps=steps)
def test_a_journal_reopened_holds_what_was_synced(steps: list[tuple[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        model = Model()
        journal = Journal.open(directory)
        for step, argument in [*steps, ("reopen", None)]:
            if step == "reopen":
                journal.sync()
                journal.close()
                journal = Journal.open(directory)
            model.run(journal, step, argument)
            model.check(journal)
        journal.close()


@settings(max_examples=scaled(60))
@given(sizes=st.lists(st.integers(0, 60), min_size=1, max_size=8), data=st.data())
def test_a_damaged_byte_of_what_was_synced_is_refused(
    sizes: list[int], data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        journal = Journal.open(directory)
        entries = [Entry(bytes(size), number, 1) for number, size in enumerate(sizes, start=1)]
        for entry in entries:
            journal.append(entry)
        journal.sync()
        journal.close()
        path = Path(directory) / "journal"
        damaged = bytearray(path.read_bytes())
        position = data.draw(st.integers(0, len(damaged) - 1))
        damaged[position] ^= data.draw(st.integers(1, 255))
        path.write_bytes(damaged)
        with pytest.raises(StorageError):
            Journal.open(directory)


@settings(max_examples=scaled(60))
@given(sizes=st.lists(st.integers(0, 60), min_size=1, max_size=8), data=st.data())
def test_a_write_that_was_never_synced_is_kept_whole_or_cut_off_whatever_is_there_of_it(
    sizes: list[int], data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        journal = Journal.open(directory)
        journal.append(Entry(b"promised", 1, 1))
        journal.sync()
        journal.failure = "the power has failed"
        journal.close()
        entries = [Entry(bytes(size), number, 1) for number, size in enumerate(sizes, start=2)]
        written = bytearray(b"".join(map(encode_entry, entries)))
        for _ in range(data.draw(st.integers(0, 3))):
            start = data.draw(st.integers(0, len(written) - 1))
            end = data.draw(st.integers(start, len(written)))
            written[start:end] = bytes(end - start)
        with (Path(directory) / "journal").open("ab") as file:
            file.write(written[: data.draw(st.integers(0, len(written)))])
        journal = Journal.open(directory)
        journal.close()
        assert journal.lost == ""
        held = journal.entries(0)
        assert held == [Entry(b"promised", 1, 1), *entries][: len(held)]
