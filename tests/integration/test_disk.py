"""A disk that is full, damaged, read-only or gone: one stream suffers, or none, and no record."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from jetstream_client import Client
from jetstream_protocol.errors import (
    JetstreamError,
    StorageError,
    StorageFullError,
    UnknownOutcomeError,
)
from tests.support.api import Api, RawNats, raw_nats
from tests.support.browser import browser, needs_chromium
from tests.support.server import ServerProcess
from tests.support.small_disk import SmallDisk

STORAGE_FULL = 10047
STORAGE_ERROR = 10077
SIZE_BYTES = 32 << 20
NO_RESERVE = {"JETSTREAM_LOG__DISK_RESERVE_BYTES": "0"}
PATIENCES = (1.0, 5.0, 25.0)
"""Of who tries for as long as it may: the server may not have answered in the shortest."""


def mounted(path: Path, size_bytes: int, image: Path | None = None) -> SmallDisk:
    """Skips the test where nothing can be mounted."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system takes root")
    try:
        return SmallDisk(path, size_bytes, image)
    except OSError as error:
        pytest.skip(f"nothing can be mounted here: {error}")


@pytest.fixture
def small(tmp_path: Path) -> Iterator[SmallDisk]:
    disk = mounted(tmp_path / "disk", SIZE_BYTES)
    try:
        yield disk
    finally:
        disk.close()


@contextlib.contextmanager
def started(
    data: Path, log: Path, environment: dict[str, str] | None = None
) -> Iterator[ServerProcess]:
    server = ServerProcess(data, environment=environment)
    server.log_path = log  # Not on the small disk.
    server.start()
    try:
        yield server
    finally:
        server.kill()


@contextlib.contextmanager
def opened(server: ServerProcess) -> Iterator[tuple[Api, RawNats]]:
    api = Api(server.grpc)
    with raw_nats(server.nats) as nats:
        nats.subscribe("_INBOX.disk")
        yield api, nats
    api.close()


def ask(nats: RawNats, subject: str, value: bytes) -> dict[str, object]:
    nats.publish(subject, value, "_INBOX.disk")
    answer = json.loads(nats.message()[1])
    assert isinstance(answer, dict)
    return answer


def err_code(answer: dict[str, object]) -> object:
    error = answer["error"]
    assert isinstance(error, dict)
    return error["err_code"]


def ready(server: ServerProcess) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"{server.http}/readyz", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def eventually_ready(server: ServerProcess, status: int) -> str:
    deadline = time.monotonic() + 60
    while (found := ready(server))[0] != status:
        assert time.monotonic() < deadline, found
        time.sleep(0.1)
    return found[1]


# Full.


@pytest.mark.parametrize("flush", [1, 2, 3], ids=["none", "interval", "group"])
def test_a_full_disk_refuses_records_keeps_those_it_acknowledged_and_recovers(
    small: SmallDisk, tmp_path: Path, flush: int
) -> None:
    log = tmp_path / "server.log"
    with started(small.path / "data", log, NO_RESERVE) as server, opened(server) as (api, nats):
        api.create("full", "full", flush=flush)
        api.create("other", "other", flush=flush)
        small.leave(2 << 20)
        stored: list[bytes] = []
        refused = 0
        while refused < 5:
            value = b"%d " % len(stored) + bytes(100_000)
            answer = ask(nats, "full", value)
            if "error" in answer:
                assert err_code(answer) == STORAGE_FULL, answer
                refused += 1
            else:
                assert answer["seq"] == len(stored) + 1
                stored.append(value)
        assert api.values("full") == stored
        assert api.describe("full").state == "online"
        small.empty()
        for stream in ("full", "other"):
            assert "seq" in ask(nats, stream, b"after")
        stored.append(b"after")
        assert api.values("full") == stored
        server.kill()
        server.start()
        again = Api(server.grpc)
        assert again.values("full") == stored
        assert again.values("other") == [b"after"]
        again.close()


def test_below_the_reserve_nothing_is_taken_and_readyz_says_why(
    small: SmallDisk, tmp_path: Path
) -> None:
    reserve = {"JETSTREAM_LOG__DISK_RESERVE_BYTES": str(8 << 20)}
    log = tmp_path / "server.log"
    with started(small.path / "data", log, reserve) as server, opened(server) as (api, nats):
        api.create("kept", "kept")
        assert ask(nats, "kept", b"before")["seq"] == 1
        small.leave(4 << 20)
        eventually_ready(server, 503)
        why = re.compile(
            r"no appends are taken, because the disk has (3\.[0-9]|4) MiB free, "
            r"below the reserve of 8 MiB\s*"
        )
        deadline = time.monotonic() + 60
        while not why.fullmatch(ready(server)[1]):  # It may have looked while the disk was filled.
            assert time.monotonic() < deadline, ready(server)
            time.sleep(0.1)
        answer = ask(nats, "kept", b"refused")
        assert err_code(answer) == STORAGE_FULL
        assert api.describe("kept").state.startswith("offline: no appends are taken")
        with pytest.raises(StorageFullError):
            api.create("another", "another")
        assert api.values("kept") == [b"before"]
        small.empty()
        eventually_ready(server, 200)
        assert ask(nats, "kept", b"after")["seq"] == 2
        assert api.describe("kept").state == "online"
        api.create("another", "another")
        events = [json.loads(line)["event"] for line in log.read_text().splitlines()]
        assert [e for e in events if e.startswith("disk_")] == ["disk_full", "disk_has_room"]


def test_a_burst_leaves_at_least_half_of_the_reserve(tmp_path: Path) -> None:
    reserve = {"JETSTREAM_LOG__DISK_RESERVE_BYTES": str(64 << 20)}
    with (
        contextlib.closing(mounted(tmp_path / "disk", 160 << 20)) as disk,
        started(disk.path / "data", tmp_path / "server.log", reserve) as server,
        opened(server) as (api, nats),
    ):
        api.create("burst", "burst", flush=1)
        for _ in range(20):
            for _ in range(20):
                nats.publish("burst", bytes(500_000))
            # More than 64 MB on their way, and the nats-server may drop the node.
            answer = ask(nats, "burst", b"the last")
        assert err_code(answer) == STORAGE_FULL
        assert shutil.disk_usage(disk.path).free >= 32 << 20


@needs_chromium
def test_the_console_shows_a_node_with_a_full_disk_in_red_and_why(
    small: SmallDisk, tmp_path: Path
) -> None:
    reserve = {"JETSTREAM_LOG__DISK_RESERVE_BYTES": str(8 << 20)}

    async def walk(server: ServerProcess) -> None:
        async with browser(tmp_path / "browser") as page:
            await page.open(f"{server.http}/")
            card = "document.querySelector('.cards .good')"
            await page.until(f"{card} && {card}.innerText == '1 of 1'")
            small.leave(4 << 20)
            card = "document.querySelector('.cards .bad')"
            await page.until(f"{card} && {card}.innerText == '0 of 1'")
            state = "document.querySelector('td[data-label=State] .bad').innerText"
            assert "no appends are taken, because the disk has" in await page.value(state)
            meter = "document.querySelector('meter')"
            await page.until(f"{meter}.value > {meter}.high && {meter}.optimum < {meter}.low")
            badge = "document.getElementById('health').innerText"
            await page.until(f"{badge}.includes('node 0: no appends are taken')")
            assert page.problems == []

    with started(small.path / "data", tmp_path / "server.log", reserve) as server:
        asyncio.run(walk(server))


def test_a_full_disk_is_what_a_batched_publisher_is_told(small: SmallDisk, tmp_path: Path) -> None:
    reserve = {"JETSTREAM_LOG__DISK_RESERVE_BYTES": str(8 << 20)}
    with started(small.path / "data", tmp_path / "server.log", reserve) as server:
        with Client(server.grpc) as client:
            client.create_stream("kept", "kept")
            small.leave(4 << 20)
            eventually_ready(server, 503)
            for seconds in PATIENCES:
                with client.publisher("kept", delivery_timeout=seconds) as publisher:
                    error = publisher.send(b"refused").exception()
                if "the disk is full" in str(error):
                    break
            # An attempt that is on its way when the time is over leaves the outcome unknown.
            assert isinstance(error, StorageFullError | UnknownOutcomeError), error
            assert "the disk is full" in str(error)
        # A client that does not ask hears of it at the end, and nobody else says a word.
        program = (
            "from jetstream_client import Client, StorageFullError, UnknownOutcomeError\n"
            f"with Client({server.grpc!r}) as client:\n"
            f"    for seconds in {PATIENCES}:\n"
            "        try:\n"
            "            with client.publisher('kept', delivery_timeout=seconds) as publisher:\n"
            "                publisher.send(b'refused')\n"
            "        except (StorageFullError, UnknownOutcomeError) as error:\n"
            "            print(error)\n"
            "            if 'full' in str(error):\n"
            "                break\n"
        )
        found = subprocess.run(
            [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True
        )
        assert (found.returncode, found.stderr) == (0, "")
        assert "the disk is full" in found.stdout


def test_deleting_streams_makes_room_below_the_reserve(small: SmallDisk, tmp_path: Path) -> None:
    reserve = {"JETSTREAM_LOG__DISK_RESERVE_BYTES": str(8 << 20)}
    log = tmp_path / "server.log"
    with started(small.path / "data", log, reserve) as server, opened(server) as (api, nats):
        api.create("large", "large")
        for _ in range(12):
            assert "seq" in ask(nats, "large", bytes(1_000_000))
        small.leave(4 << 20)
        eventually_ready(server, 503)
        api.delete("large")
        eventually_ready(server, 200)


def test_a_disk_too_full_for_metadata_stops_the_node_and_loses_nothing(
    small: SmallDisk, tmp_path: Path
) -> None:
    log = tmp_path / "server.log"
    with started(small.path / "data", log, NO_RESERVE) as server, opened(server) as (api, nats):
        api.create("kept", "kept")
        for index in range(10):
            assert "seq" in ask(nats, "kept", b"%d" % index)
        small.fill()
        created: list[str] = []
        with contextlib.suppress(grpc.RpcError, JetstreamError):
            for index in range(200):
                api.create(f"more-{index}", f"more.{index}")
                created.append(f"more-{index}")
        small.empty()
        assert server.process is not None
        if server.process.poll() is None and "metadata_failed_stopping" in log.read_text():
            assert server.process.wait(60) == 1
        server.kill()
        server.start()
        again = Api(server.grpc)
        assert again.values("kept") == [b"%d" % index for index in range(10)]
        for name in created:
            assert again.describe(name).state == "online"
        again.close()


@pytest.mark.parametrize("image", [False, True], ids=["tmpfs", "ext4"])
def test_a_disk_full_to_the_last_byte_takes_what_the_runbook_asks_for(
    tmp_path: Path, image: bool
) -> None:
    """Settings, purges and deletions, before and after a start; then there is room again."""
    log = tmp_path / "server.log"
    reserve = {"JETSTREAM_LOG__DISK_RESERVE_BYTES": str(8 << 20)}
    file = tmp_path / "image" if image else None
    with (
        contextlib.closing(mounted(tmp_path / "disk", 64 << 20, file)) as disk,
        started(disk.path / "data", log, reserve) as server,
        Client(server.grpc, timeout=60) as client,
    ):
        for name in ("large", "purged", "altered"):
            client.create_stream(name, name)
            for _ in range(4):
                client.publish(name, os.urandom(500_000))
        wait_for(lambda: (server.data / "metadata" / "reserve").exists(), "no reserve")
        disk.fill()
        eventually_ready(server, 503)
        for number in range(300):
            client.alter_stream("altered", max_bytes=(1 << 30) + number)
        server.kill()
        disk.fill()
        server.start()
        for number in range(300):
            client.alter_stream("altered", max_bytes=(1 << 31) + number)
        disk.fill()
        assert server.stop() == 0
        assert "stop_not_noted" not in server.log_text
        server.start()
        client.purge_stream("purged")
        client.delete_stream("large")
        disk.empty()
        eventually_ready(server, 200)
        assert client.describe_stream("altered").max_bytes == (1 << 31) + 299
        assert client.offset_at("purged", "earliest") == 4
        client.publish("altered", b"after")
        wait_for(lambda: (server.data / "metadata" / "reserve").stat().st_size > 1 << 20, "none")


def wait_for(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def test_a_start_on_a_full_disk_says_so_in_one_line_or_serves(
    small: SmallDisk, tmp_path: Path
) -> None:
    log = tmp_path / "server.log"
    with started(small.path / "data", log, NO_RESERVE) as server, opened(server) as (api, nats):
        api.create("kept", "kept")
        assert ask(nats, "kept", b"x")["seq"] == 1
        server.kill()
        small.fill()
        found = subprocess.run(
            server.command(), capture_output=True, text=True, timeout=120, env=server.environment
        )
        assert found.returncode == 1
        errors = [line for line in found.stderr.splitlines() if line.startswith("error: ")]
        assert len(errors) == 1
        assert "No space left on device" in errors[0]
        assert "Traceback" not in found.stderr
        small.empty()
        server.start()
        again = Api(server.grpc)
        assert again.values("kept") == [b"x"]
        again.close()


# Damaged, read-only or gone: at a start.


def restart_with(server: ServerProcess, harm: object) -> None:
    server.kill()
    assert callable(harm)
    harm()
    server.start()


@pytest.fixture
def two_streams(own_server: ServerProcess) -> Iterator[tuple[ServerProcess, Path]]:
    """A server with streams `good` and `bad` of ten batches each; the folder of `bad`."""
    own_server.start()
    with opened(own_server) as (api, nats):
        for name in ("good", "bad"):
            api.create(name, name)
            for index in range(10):
                assert "seq" in ask(nats, name, b"%d " % index + bytes(10_000))
        folder = own_server.data / "streams" / str(api.describe("bad").stream.id)
    yield own_server, folder
    own_server.kill()


def check_isolated(server: ServerProcess, *, readable: int | None) -> str:
    """`bad` is offline and says why, `good` is well. readable: records of `bad` that are left."""
    with opened(server) as (api, nats):
        assert api.describe("good").state == "online"
        assert ask(nats, "good", b"more")["seq"] == 11
        assert len(api.values("good")) == 11
        description = api.describe("bad")
        assert description.state.startswith("offline: ")
        assert err_code(ask(nats, "bad", b"refused")) == STORAGE_ERROR
        if readable is None:
            with pytest.raises(StorageError):
                api.fetch("bad")
        else:
            assert len(api.values("bad")) == readable
        assert ready(server)[0] == 200
        api.delete("bad")
        api.create("bad", "bad")
        assert ask(nats, "bad", b"anew")["seq"] == 1
        return description.state


def test_a_damaged_log_takes_its_own_stream_offline_and_is_readable_up_to_the_damage(
    two_streams: tuple[ServerProcess, Path],
) -> None:
    server, folder = two_streams

    def flip() -> None:
        (segment,) = folder.glob("*.log")
        with segment.open("r+b") as file:
            file.seek(5 * segment.stat().st_size // 10 + 300)
            byte = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte[0] ^ 1]))

    restart_with(server, flip)
    state = check_isolated(server, readable=5)
    assert ".log at byte" in state


def test_a_log_that_cannot_be_opened_takes_its_own_stream_offline(
    two_streams: tuple[ServerProcess, Path], tmp_path: Path
) -> None:
    server, folder = two_streams

    def replace() -> None:
        folder.rename(tmp_path / "elsewhere")
        folder.mkdir()
        (folder / f"{0:020d}.log").mkdir()  # A folder where a segment should be.

    restart_with(server, replace)
    state = check_isolated(server, readable=None)
    assert str(folder) in state


def test_a_missing_log_takes_its_own_stream_offline_rather_than_being_taken_for_empty(
    two_streams: tuple[ServerProcess, Path],
) -> None:
    """Its checkpoint says how far it was flushed."""
    server, folder = two_streams
    assert server.stop() == 0

    def remove() -> None:
        for segment in folder.glob("*.log"):
            segment.unlink()

    restart_with(server, remove)
    with opened(server) as (api, nats):
        assert "missing" in api.describe("bad").state
        assert err_code(ask(nats, "bad", b"refused")) == STORAGE_ERROR
        assert "seq" in ask(nats, "good", b"more")


def test_a_read_only_folder_takes_its_own_stream_offline(
    two_streams: tuple[ServerProcess, Path],
) -> None:
    server, folder = two_streams
    if os.geteuid() != 0:
        pytest.skip("a read-only mount takes root")
    server.kill()
    mounted = subprocess.run(["mount", "--bind", folder, folder], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"nothing can be mounted here: {mounted.stderr.strip()}")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", folder], check=True)
        server.start()
        with opened(server) as (api, nats):
            assert "read-only" in api.describe("bad").state
            assert err_code(ask(nats, "bad", b"refused")) == STORAGE_ERROR
            assert "seq" in ask(nats, "good", b"more")
        server.kill()
    finally:
        subprocess.run(["umount", "-l", folder], check=True)
    server.start()
    with opened(server) as (api, nats):
        assert len(api.values("bad")) == 10
        assert ask(nats, "bad", b"writable again")["seq"] == 11


def test_folders_of_unknown_streams_are_set_aside_and_keep_nobody_from_starting(
    two_streams: tuple[ServerProcess, Path],
) -> None:
    server, _ = two_streams

    def strangers() -> None:
        (server.data / "streams" / "999999").mkdir()
        (server.data / "streams" / "999999" / "keep").write_bytes(b"me")
        (server.data / "streams" / "no number").mkdir()

    restart_with(server, strangers)
    (aside,) = (server.data / "quarantine").iterdir()
    assert aside.name.startswith("999999.")
    assert (aside / "keep").read_bytes() == b"me"
    with opened(server) as (api, _):
        assert len(api.values("bad")) == 10
