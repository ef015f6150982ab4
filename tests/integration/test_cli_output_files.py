"""Where commands write files: what has the name already stays what it is."""

from __future__ import annotations

import io
import os
import stat
import tarfile
import threading
from pathlib import Path

import pytest

from jetstream_client import Client
from jetstream_client.cli.context_file import Context, ContextFile
from jetstream_client.migration.whole_file import whole_file
from tests.support import command
from tests.support.server import ServerProcess

_COMMANDS = {
    "jsonl": ("export", "{stream}", "--format", "jsonl", "--output", "{file}"),
    "parquet": ("export", "{stream}", "--format", "parquet", "--output", "{file}"),
    "bundle": ("debug", "bundle", "--output", "{file}"),
    "backup": ("stream", "backup", "{stream}", "{file}"),
}


@pytest.fixture
def stream(client: Client, name: str) -> str:
    name = name.replace("[", "-").rstrip("]")[-60:]
    client.create_stream(name, name)
    client.publish(name, b"a value")
    return name


def write(server: ServerProcess, kind: str, stream: str, file: Path, code: int = 0) -> str:
    words = [word.format(stream=stream, file=file) for word in _COMMANDS[kind]]
    done = command.jetstream("--server", server.grpc, *words)
    assert done.returncode == code, done
    return done.stderr + done.stdout


def check(kind: str, written: bytes) -> None:
    match kind:
        case "jsonl":
            assert b'"value":"a value"' in written
        case "bundle":
            with tarfile.open(fileobj=io.BytesIO(written)) as archive:
                assert any(each.endswith("/cluster.json") for each in archive.getnames())
        case _:
            assert written[:4] == written[-4:] == b"PAR1"


@pytest.mark.parametrize("kind", _COMMANDS)
def test_a_link_stays_a_link_and_a_file_keeps_its_mode(
    server: ServerProcess, stream: str, tmp_path: Path, kind: str
) -> None:
    target, link = tmp_path / "folder" / "target.parquet", tmp_path / "link.parquet"
    target.parent.mkdir()
    link.symlink_to(Path("folder") / "target.parquet")  # To nothing yet.
    write(server, kind, stream, link)
    for mode in 0o640, 0o600, 0o666:
        target.chmod(mode)
        write(server, kind, stream, link)
        assert link.is_symlink()
        assert stat.S_IMODE(target.stat().st_mode) == mode
        check(kind, target.read_bytes())
    assert [each.name for each in target.parent.iterdir()] == ["target.parquet"]
    assert {each.name for each in tmp_path.iterdir()} == {"folder", "link.parquet"}


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "bundle"])
def test_a_pipe_and_a_device_are_written_to(
    server: ServerProcess, stream: str, tmp_path: Path, kind: str
) -> None:
    pipe, read = tmp_path / "pipe.parquet", list[bytes]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    write(server, kind, stream, pipe)
    reader.join(60)
    assert pipe.is_fifo()
    check(kind, read[0])
    write(server, kind, stream, Path("/dev/null"))
    assert Path("/dev/null").is_char_device()


def test_an_error_names_the_file_that_the_user_named(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "orders.jsonl"
    with pytest.raises(FileNotFoundError) as raised, whole_file(path):
        pass
    assert raised.value.filename == str(path)


def test_a_backup_must_be_a_file(server: ServerProcess, stream: str, tmp_path: Path) -> None:
    device = tmp_path / "device.parquet"
    device.symlink_to("/dev/null")
    said = write(server, "backup", stream, device, code=2)
    assert "a backup must be one, to be restored" in said
    assert device.is_symlink()


def test_the_link_to_the_file_of_contexts_stays_one(tmp_path: Path) -> None:
    target, link = tmp_path / "dotfiles.json", tmp_path / "contexts.json"
    link.symlink_to(target)
    ContextFile(link).add("one", Context("127.0.0.1:4222"))
    assert link.is_symlink()
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert ContextFile(target).current == "one"


def test_a_dash_is_standard_output(
    server: ServerProcess, stream: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for kind in ("jsonl", "bundle"):
        check(kind, write(server, kind, stream, Path("-")).encode(errors="surrogateescape"))
    assert not (tmp_path / "-").exists()
