"""Backups that are repeated, refused or interrupted: what was complete can always be restored."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from jetstream_client import Client
from jetstream_client.cli.commands import backup as backup_command
from jetstream_client.cli.commands import importing as importing_command
from jetstream_client.migration import parquet
from jetstream_client.migration.backup import MANIFEST, FolderBackup, back_up
from jetstream_client.migration.restore import restore
from jetstream_client.reading.batches import FetchedBatches
from jetstream_client.values.types import ClusterInfo
from jetstream_protocol.batch import BatchHeader, decode_header, encode
from jetstream_protocol.errors import PreconditionFailedError
from jetstream_protocol.restored_batch import RESTORE_BYTES_MAX
from jetstream_protocol.types import WallUs
from tests.support import command
from tests.support.fork_server import fork_server
from tests.support.nats_server import NatsServer
from tests.support.overtaking import COMPACTED_SECONDS
from tests.support.server import ServerProcess, running_server

RUN_CODE = [sys.executable, "-m", "tests.support.run_code"]
_KILLED = """
import os, signal, sys
from pathlib import Path
from jetstream_client import Client
from jetstream_client.cli.commands import backup as backup_command
from jetstream_client.cli.commands import importing as importing_command
from jetstream_client.migration.backup import back_up

server, stream, folder, most = sys.argv[1:]
steps = 0

def advance(offsets):
    global steps
    steps += offsets > 0
    if steps > int(most):
        os.kill(os.getpid(), signal.SIGKILL)

with Client(server) as client:
    back_up(client, stream, Path(folder), advance)
"""
_WAITING = """
import sys
from pathlib import Path
from jetstream_client import Client
from jetstream_client.cli.commands import backup as backup_command
from jetstream_client.cli.commands import importing as importing_command
from jetstream_client.migration.backup import back_up

server, stream, folder = sys.argv[1:]

def advance(offsets):
    if offsets:
        print("copied", flush=True)
        sys.stdin.readline()

with Client(server) as client:
    back_up(client, stream, Path(folder), advance)
"""
_LISTENED = """
import os, signal, sys
from contextlib import nullcontext
from pathlib import Path
from jetstream_client import Client
from jetstream_client.cli.commands import backup as backup_command
from jetstream_client.cli.commands import importing as importing_command
from jetstream_client.migration.restore import restore

server, folder, name = sys.argv[1:]

class Killed(Client):
    def alter_stream(self, *arguments, **options):
        super().alter_stream(*arguments, **options)
        os.kill(os.getpid(), signal.SIGKILL)

with Killed(server) as client:
    restore(client, Path(folder), name, lambda _, what: nullcontext(print), subject=name)
"""
_SOME = [b"%d" % number for number in range(20)]
_LARGE = [b"%d" % number * 300_000 for number in range(10, 20)]
"""6 MB: what two requests fetch."""


def jetstream(server: ServerProcess, *arguments: str, code: int = 0) -> str:
    done = command.jetstream("--server", server.grpc, *arguments)
    assert done.returncode == code, done
    return done.stderr + done.stdout


def fill(client: Client, name: str, values: list[bytes]) -> None:
    with client.publisher(name) as publisher:
        publisher.publish_many(values)


def filled(client: Client, name: str, values: list[bytes]) -> None:
    """A new stream of that name and subject, with these values."""
    client.create_stream(name, name)
    fill(client, name, values)


def killed_backup(server: ServerProcess, name: str, folder: Path, most: int) -> None:
    """A backup that SIGKILL ends after so many steps."""
    done = fork_server.run(
        [*RUN_CODE, _KILLED, server.grpc, name, str(folder), str(most)], timeout=60
    )
    assert done.returncode == -signal.SIGKILL, done


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def values(client: Client, name: str) -> list[bytes | None]:
    return [each.value for each in client.consume(name, stop="latest", patience=60)]


def fill_segments(client: Client, name: str) -> None:
    """Some segments, of the same keys again and again."""
    with client.publisher(name, linger=0.0, max_bytes=8_192) as publisher:
        for number in range(600):
            publisher.send(b"%d" % number * 200, key=b"%d" % (number % 50))


def wait_for_gap(client: Client, name: str, offset: int) -> int:
    """Until compaction has removed the batch at the offset; where the next one begins then."""
    deadline = time.monotonic() + COMPACTED_SECONDS
    while (found := first_batch(client, name, offset).base_offset) == offset:
        assert time.monotonic() < deadline, "nothing is compacted"
        time.sleep(0.05)
    return found


def first_batch(client: Client, name: str, offset: int) -> BatchHeader:
    """The first one at or after an offset."""
    return decode_header(client.fetch_batches(name, offset).data)


def latest(client: Client, name: str) -> dict[bytes | None, bytes | None]:
    """What a reader of a compacted stream ends with."""
    found = client.consume(name, stop="latest", patience=60)
    return {each.key: each.value for each in found}


def restored(server: ServerProcess, client: Client, folder: Path, name: str) -> list[Any]:
    jetstream(server, "stream", "restore", str(folder), name, "--subject", name)
    return values(client, name)


def test_a_restore_reads_from_the_new_streams_start_whoever_is_asked_for_it(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another node may not have heard of the purge that ends the copying."""
    filled(client, "gap", [b"0"])
    client.purge_stream("gap")
    fill(client, "gap", [b"1", b"2"])
    back_up(client, "gap", tmp_path, lambda _: None)
    monkeypatch.setattr(Client, "offset_at", lambda *_: 0)

    @contextmanager
    def no_bar(total: int | None, what: str = "") -> Iterator[Any]:
        yield lambda _: None

    for _ in range(2):  # A repeated one finds what is there.
        stream, digest = restore(client, tmp_path, "gap-copy", no_bar, subject="copy.gap")
        assert (stream.name, digest.count) == ("gap-copy", 2)


def test_a_stream_with_lake_is_restored_where_there_is_none(
    server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    filled(client, "laked", [b"1", b"2"])
    jetstream(server, "stream", "backup", "laked", str(tmp_path))
    manifest = json.loads((tmp_path / MANIFEST).read_text())
    manifest["settings"] |= {"lake": True, "local_max_bytes": 1_000_000}
    (tmp_path / MANIFEST).write_text(json.dumps(manifest))
    restoring = ("stream", "restore", str(tmp_path), "laked-copy", "--subject", "copy.laked")
    assert "has no lake" in jetstream(server, *restoring, code=1)
    jetstream(server, *restoring, "--without-lake")
    assert values(client, "laked-copy") == [b"1", b"2"]
    assert not client.describe_stream("laked-copy").lake


def test_a_backup_that_is_refused_leaves_the_one_before_as_it_was(
    server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    folder = tmp_path / "refused"
    backup = ("stream", "backup", "refused", str(folder))
    filled(client, "refused", _SOME)
    jetstream(server, *backup)
    before = contents(folder)

    client.publish("refused", b"gone")
    client.purge_stream("refused")
    client.publish("refused", b"new")
    assert "begin another backup" in jetstream(server, *backup, code=1)
    assert contents(folder) == before
    client.create_stream("another", "another")
    said = jetstream(server, "stream", "backup", "another", str(folder), code=2)
    assert "a backup of another stream" in said
    assert contents(folder) == before
    client.delete_stream("refused")
    jetstream(server, *backup, code=3)
    assert contents(folder) == before
    client.create_stream("refused", "refused")
    said = jetstream(server, *backup, code=2)
    assert "holds a backup of an earlier stream of this name (id " in said
    assert contents(folder) == before
    assert restored(server, client, folder, "refused-again") == _SOME


class Trimming(Client):
    """Retention removes the first records of a stream once a backup has looked at it."""

    trimmed = ""
    times = 1

    def describe_cluster(self) -> ClusterInfo:
        self._trim()
        return super().describe_cluster()

    def fetch_batches(self, *arguments: Any, **options: Any) -> FetchedBatches:
        self._trim()
        return super().fetch_batches(*arguments, **options)

    def _trim(self) -> None:
        if self.times:
            self.times -= 1
            self.purge_stream(self.trimmed, self.offset_at(self.trimmed, "earliest") + 5)


def filled_singly(client: Client, name: str) -> None:
    """A new stream with each value in a batch of its own: any number of them can be removed."""
    client.create_stream(name, name)
    for value in _SOME:
        client.publish(name, value)


def batch_files(folder: Path) -> list[Path]:
    return [folder / name for name in FolderBackup(folder).names()]


@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_first_backup_begins_after_what_retention_removes_at_that_moment(
    server: ServerProcess, client: Client, tmp_path: Path, times: int
) -> None:
    folder, file = tmp_path / "trimmed", tmp_path / "trimmed.parquet"
    name = f"trimmed-{times}"
    filled_singly(client, name)
    with Trimming(server.grpc) as trimming:
        trimming.trimmed, trimming.times = name, times
        back_up(trimming, name, folder, lambda _: None)
    assert restored(server, client, folder, f"{name}-again") == _SOME[5 * times :]

    filled_singly(client, f"{name}-file")
    with Trimming(server.grpc) as trimming:
        trimming.trimmed, trimming.times = f"{name}-file", times
        parquet.back_up(trimming, f"{name}-file", file, lambda _: None)
    assert restored(server, client, file, f"{name}-file-again") == _SOME[5 * times :]


def test_a_backup_that_has_copied_nothing_yet_begins_after_what_was_removed(
    server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    folder = tmp_path / "begun"
    filled_singly(client, "begun")
    killed_backup(server, "begun", folder, 0)
    for path in batch_files(folder):
        path.unlink()
    client.purge_stream("begun", 5)
    assert "no backup into" in jetstream(server, "stream", "restore", str(folder), code=1)
    jetstream(server, "stream", "backup", "begun", str(folder))
    assert restored(server, client, folder, "begun-again") == _SOME[5:]


def test_a_backup_that_retention_overtakes_says_what_to_do(
    server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    filled(client, "overtaken", _LARGE)

    def purge(offsets: int) -> None:
        if offsets:
            client.purge_stream("overtaken")
            fill(client, "overtaken", _SOME)

    with pytest.raises(PreconditionFailedError, match="is gone; begin another backup in another"):
        back_up(client, "overtaken", tmp_path / "overtaken", purge)


def test_what_was_complete_is_restored_after_a_later_backup_was_killed(
    server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    folder = tmp_path / "killed"
    filled(client, "killed", _SOME)
    jetstream(server, "stream", "backup", "killed", str(folder))
    before = contents(folder)
    fill(client, "killed", _LARGE)
    killed_backup(server, "killed", folder, 2)  # What is there, and the first fetch.
    (left,) = contents(folder).keys() - before.keys()
    assert {**before, left: (folder / left).read_bytes()} == contents(folder)
    with (folder / left).open("r+b") as file:
        file.truncate((folder / left).stat().st_size - 10)  # In the middle of a batch.

    said = jetstream(server, "stream", "restore", str(folder), "old", "--subject", "old")
    assert "has not ended: this restores the one before, offsets 0 to 19\n" in said
    assert values(client, "old") == _SOME

    jetstream(server, "stream", "backup", "killed", str(folder))
    assert left in contents(folder), "it goes on after what was copied"
    assert restored(server, client, folder, "newer") == _SOME + _LARGE


def test_a_backup_that_was_killed_goes_on_and_is_restored_once_it_has_ended(
    server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    folder = tmp_path / "first"
    filled(client, "first", _LARGE)
    killed_backup(server, "first", folder, 0)
    assert batch_files(folder)
    said = jetstream(server, "stream", "restore", str(folder), "too-early", code=1)
    assert "has ended yet" in said
    jetstream(server, "stream", "backup", "first", str(folder))
    assert restored(server, client, folder, "first-again") == _LARGE


def test_two_runs_into_one_folder_do_not_go_on_at_once(
    server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    folder = tmp_path / "twice"
    filled(client, "twice", _LARGE)
    run = [sys.executable, "-c", _WAITING, server.grpc, "twice", str(folder)]
    with subprocess.Popen(run, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "copied\n"
        before = contents(folder)
        said = jetstream(server, "stream", "backup", "twice", str(folder), code=1)
        assert "is under way" in said
        assert contents(folder) == before
        first.communicate("\n" * 10, timeout=60)
    assert first.returncode == 0
    assert restored(server, client, folder, "twice-again") == _LARGE


def test_what_an_earlier_release_calls_incomplete_is_restored_if_a_run_had_ended(
    server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    folder = tmp_path / "earlier"
    filled(client, "earlier", _SOME)
    jetstream(server, "stream", "backup", "earlier", str(folder))
    manifest = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps({**manifest, "is_complete": False}))
    assert restored(server, client, folder, "earlier-again") == _SOME


@pytest.mark.timeout(900)
def test_a_backup_of_a_compacted_stream_goes_on_whatever_gaps_its_files_begin_after(
    server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    folder = tmp_path / "gaps"
    backup = ("stream", "backup", "gaps", str(folder))
    client.create_stream("gaps", "gaps", segment_bytes=65_536, compact=True, flush="none")
    fill_segments(client, "gaps")
    gap = first_batch(
        client, "gaps", 0
    ).next_offset  # Compaction keeps the first batch of an epoch.
    begins = wait_for_gap(client, "gaps", gap)
    client.purge_stream("gaps", gap)
    jetstream(server, *backup)
    jetstream(server, *backup)
    end = client.offset_at("gaps", "latest")
    fill_segments(client, "gaps")
    wait_for_gap(client, "gaps", end)
    jetstream(server, *backup)
    jetstream(server, *backup)
    files = batch_files(folder)
    assert len(files) == 2
    # Compaction may go on meanwhile: the files begin after the gaps, or further after them.
    assert begins <= int(files[0].stem) < end < int(files[1].stem)
    killed = tmp_path / "killed"
    killed_backup(server, "gaps", killed, 0)
    assert batch_files(killed)
    jetstream(server, "stream", "backup", "gaps", str(killed))
    for each in folder, killed:
        restored(server, client, each, f"{each.name}-again")
        assert latest(client, f"{each.name}-again") == latest(client, "gaps")


def test_a_file_that_does_not_continue_a_backup_is_refused(
    server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    folder = tmp_path / "continued"
    backup = ("stream", "backup", "continued", str(folder))
    filled(client, "continued", _SOME)
    jetstream(server, *backup)
    for offset, after_gap, code in (22, False, 2), (4, True, 2), (22, True, 0):
        encoded = encode([b"value"], b"continued", after_gap=after_gap)
        encoded.stamp(offset, 1, WallUs(1))
        file = folder / f"{offset:020}.log"
        file.write_bytes(encoded.to_bytes())
        said = jetstream(server, *backup, code=code)
        assert ("does not continue the file before it" in said) == (code != 0)
        if code:
            file.unlink()


def test_a_later_backup_says_what_is_new(
    server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    backup = ("stream", "backup", "later", str(tmp_path / "later"))
    client.create_stream("later", "later")
    fill(client, "later", _SOME)
    assert "20 records of later, offsets 0 to 19, record digest" in jetstream(server, *backup)
    assert "offsets 0 to 19, nothing new, record digest" in jetstream(server, *backup)
    fill(client, "later", _SOME)
    said = jetstream(server, *backup)
    assert "40 records of later, offsets 0 to 39, new from offset 20, record digest" in said
    row = json.loads(jetstream(server, *backup, "--json"))
    assert (row["end_offset"], row["new_from"]) == (40, 40)

    copy = ("later-copy", "--subject", "copy.later")
    restored = jetstream(server, "stream", "restore", backup[-1], *copy)
    assert f"record digest {row['record_digest']}" in restored


def test_a_parquet_file_replaces_only_what_it_has_itself(
    server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    file = tmp_path / "parquet.parquet"
    backup = ("stream", "backup", "parquet", str(file))
    client.create_stream("parquet", "parquet")
    assert "0 records of parquet (empty), record digest" in jetstream(server, *backup)
    fill(client, "parquet", _SOME)
    assert "20 records of parquet, offsets 0 to 19, record digest" in jetstream(server, *backup)
    before = contents(tmp_path)
    assert before.keys() == {file.name}

    client.create_stream("beside", "beside")
    said = jetstream(server, "stream", "backup", "beside", str(file), code=2)
    assert "a backup of another stream" in said
    client.publish("parquet", b"new")
    client.purge_stream("parquet", len(_SOME))
    assert "would lose records; say another file" in jetstream(server, *backup, code=1)
    client.delete_stream("parquet")
    client.create_stream("parquet", "parquet")
    assert "an earlier stream of this name (id " in jetstream(server, *backup, code=2)
    assert contents(tmp_path) == before
    assert restored(server, client, file, "parquet-again") == _SOME

    jetstream(server, "export", "parquet-again", "--output", str(file), "--format", "parquet")
    exported = contents(tmp_path)
    assert "is no backup" in jetstream(server, *backup, code=2)
    assert contents(tmp_path) == exported


def test_two_runs_to_one_parquet_file_do_not_write_into_each_other(
    server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    file = tmp_path / "both.parquet"
    filled(client, "both", _SOME)
    others = 0

    def advance(_: int) -> None:
        nonlocal others
        if not others:
            jetstream(server, "stream", "backup", "both", str(file))
        others += 1

    parquet.back_up(client, "both", file, advance)
    assert others
    assert contents(tmp_path).keys() == {file.name}
    assert restored(server, client, file, "both-again") == _SOME


@pytest.mark.parametrize("damage", ["flipped", "cut"])
def test_a_damaged_backup_is_not_gone_on_with_and_not_changed(
    server: ServerProcess, client: Client, tmp_path: Path, damage: str
) -> None:
    name, folder = f"damaged-{damage}", tmp_path / "damaged"
    filled(client, name, _SOME)
    jetstream(server, "stream", "backup", name, str(folder))
    (file,) = batch_files(folder)
    data = bytearray(file.read_bytes())
    data[-5] ^= 1
    file.write_bytes(data if damage == "flipped" else data[:-5])
    before = contents(folder)
    client.publish(name, b"more")
    said = jetstream(server, "stream", "backup", name, str(folder), code=1)
    assert "not as it was written" in said
    assert contents(folder) == before
    said = jetstream(server, "stream", "restore", str(folder), "whole", code=1)
    assert "not as it was written" in said
    assert "whole" not in [each.name for each in client.list_streams()], "nothing is left of it"


def test_of_a_damaged_parquet_file_it_says_what_to_delete(
    server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    file = tmp_path / "rotten.parquet"
    filled(client, "rotten", _SOME)
    jetstream(server, "stream", "backup", "rotten", str(file))
    data = bytearray(file.read_bytes())
    data[4:200] = bytes(196)
    file.write_bytes(data)
    again = ("stream", "restore", str(file), "again", "--subject", "again")
    said = jetstream(server, *again, code=1)
    assert f"{file} is damaged: " in said
    assert "jetstream stream delete 'again@again' --yes" in said
    jetstream(server, "stream", "delete", "again@again", "--yes")


def test_a_restore_into_a_stream_that_exists_says_what_to_do(
    server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    folder = tmp_path / "exists"
    filled(client, "exists", _SOME)
    jetstream(server, "stream", "backup", "exists", str(folder))
    restore = ("stream", "restore", str(folder))
    for options in (), ("exists", "--subject", "elsewhere"):
        said = jetstream(server, *restore, *options, code=1)
        assert "stream exists@exists exists already" in said
        assert "give the new stream another NAME" in said
    client.create_stream("under-way", "under-way", restoring=True, duplicate_window=7)
    said = jetstream(server, *restore, "under-way", "--subject", "under-way", code=1)
    assert "duplicate_window is 7" in said
    assert "go on with the same settings, or delete it" in said


def test_records_that_cannot_be_restored_are_refused_when_they_are_backed_up(
    tmp_path: Path,
) -> None:
    folder, file = tmp_path / "large", tmp_path / "large.parquet"
    with (
        NatsServer("max_payload: 8MB") as nats,
        running_server(tmp_path / "data", "--nats", nats.url) as server,
        Client(server.grpc, timeout=60) as client,
    ):
        client.create_stream("large", "large")
        client.publish("large", b"before")
        client.publish("large", bytes(RESTORE_BYTES_MAX - 1_200))
        for to in folder, file:
            jetstream(server, "stream", "backup", "large", str(to))
            name = f"fits-{to.name.replace('.', '-')}"
            jetstream(server, "stream", "restore", str(to), name, "--subject", name)
        before = contents(folder), file.read_bytes()
        client.publish("large", bytes(RESTORE_BYTES_MAX))
        for to in folder, file:
            said = jetstream(server, "stream", "backup", "large", str(to), code=2)
            assert "the record at offset 2 is too large: a restore takes records of up to " in said
        said = jetstream(server, "stream", "restore", str(folder), "old", "--subject", "old")
        assert "restores the one before, offsets 0 to 1" not in said, "nothing is left of it"
        assert (contents(folder), file.read_bytes()) == before


def test_a_restore_that_was_killed_after_its_last_step_is_repeated_without_an_error(
    server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    folder, file = tmp_path / "step", tmp_path / "step.parquet"
    filled(client, "step", _SOME)
    client.alter_stream("step", max_age=3_600)
    for to in folder, file:
        jetstream(server, "stream", "backup", "step", str(to))
    done = fork_server.run([*RUN_CODE, _LISTENED, server.grpc, str(folder), "stepped"], timeout=60)
    assert done.returncode == -signal.SIGKILL, done
    again = ("stepped", "--subject", "stepped")
    for each in folder, file:
        assert "restored stepped: 20 rec" in jetstream(
            server, "stream", "restore", str(each), *again
        )
    client.publish("stepped", b"since then")
    assert "restored stepped: 20 rec" in jetstream(server, "stream", "restore", str(folder), *again)
    client.purge_stream("stepped")
    said = jetstream(server, "stream", "restore", str(folder), *again, code=1)
    assert "exists already" in said, "it does not hold the backup"


@pytest.mark.parametrize("step", ["copying", "comparing"])
def test_of_two_runs_of_a_restore_or_import_both_end_well(
    server: ServerProcess,
    client: Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
) -> None:
    """The second one completes the stream while the first one is at that step, and somebody
    publishes to it."""
    source, folder = f"both-{step}", tmp_path / "both"
    filled(client, source, _SOME)
    files = [folder, tmp_path / "both.parquet", tmp_path / "both.jsonl"]
    for to in files[:2]:
        jetstream(server, "stream", "backup", source, str(to))
    jetstream(server, "export", source, "--output", str(files[2]))
    for number, file in enumerate(files):
        name = f"{source}-{number}"
        words = ["stream", "restore", str(file), name, "--subject", name]
        if file.suffix == ".jsonl":
            words = ["import", name, "--from", str(file), "--subject", name]
        overtaken: list[str] = []

        @contextmanager
        def bar(
            total: int | None,
            what: str = "",
            words: list[str] = words,
            overtaken: list[str] = overtaken,
        ) -> Iterator[Any]:
            if what == step and not overtaken:
                overtaken.append(step)
                overtaken.append(jetstream(server, *words))
                client.publish(words[1 if words[0] == "import" else 3], b"since then")
            yield lambda _: None

        for module in backup_command, importing_command:
            monkeypatch.setattr(module, "progress_bar", bar)
        assert jetstream(server, *words) == overtaken[1]
        assert values(client, name) == [*_SOME, b"since then"]
