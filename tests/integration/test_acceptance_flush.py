"""Flush policies and what waits for them, seen from outside a real server.

The server's fsyncs are counted, held up and made to fail (gated_server.py): what survives a power
failure cannot be tried here, but that no ack leaves before its fsync can.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from jetstream_protocol.errors import CODES, StorageError, UnknownOutcomeError
from jetstream_protocol.generated import api_pb2 as pb
from tests.support.api import Api, RawNats, answer_of, raw_nats
from tests.support.server import ServerProcess

GATED = "tests.integration.gated_server"
WAIT_SECONDS = 60.0
QUIET_SECONDS = 0.3
"""Long enough for an ack that should not come: one takes about a millisecond."""


class GatedServer(ServerProcess):
    """A server whose segments' fsyncs can be counted, held and failed."""

    def __init__(self, folder: Path, **environment: str) -> None:
        super().__init__(folder / "data", environment=environment)
        self.gate = folder

    def command(self) -> list[str]:
        return [sys.executable, "-m", GATED, str(self.gate), *super().command()[3:]]

    def hold(self, *, after: int = 0) -> None:
        """Let only the first `after` fsyncs of the process end."""
        temporary = self.gate / "hold.tmp"
        temporary.write_text(str(after))
        temporary.rename(self.gate / "hold")

    def release(self) -> None:
        (self.gate / "hold").unlink()

    def fail(self) -> None:
        (self.gate / "fail").touch()

    @property
    def fsyncs(self) -> int:
        counted = self.gate / "fsyncs"
        return len(counted.read_text().splitlines()) if counted.exists() else 0


@pytest.fixture
def gated(tmp_path: Path) -> Iterator[GatedServer]:
    yield from _running(GatedServer(tmp_path))


@pytest.fixture
def narrow(tmp_path: Path) -> Iterator[GatedServer]:
    """A server that lets few acks and few bytes wait."""
    bounds = {
        "JETSTREAM_INGEST__PENDING_ACKS_MAX": "10",
        "JETSTREAM_INGEST__UNCOMMITTED_BYTES_MAX": "64KiB",
    }
    yield from _running(GatedServer(tmp_path, **bounds))


def _running(server: GatedServer) -> Iterator[GatedServer]:
    server.start()
    try:
        yield server
    finally:
        server.kill()


@pytest.fixture
def api(request: pytest.FixtureRequest) -> Iterator[Api]:
    name = "narrow" if "narrow" in request.fixturenames else "gated"
    api = Api(request.getfixturevalue(name).grpc)
    yield api
    api.close()


@pytest.fixture
def publisher(request: pytest.FixtureRequest) -> Iterator[RawNats]:
    name = "narrow" if "narrow" in request.fixturenames else "gated"
    with raw_nats(request.getfixturevalue(name).nats) as client:
        client.subscribe("_INBOX.mine")
        yield client


def answer(client: RawNats) -> dict[str, object]:
    text = client.message()[1]
    assert b"/data" not in text, "publishers are told nothing of our files"
    return answer_of(text)


def expect_silence(client: RawNats) -> None:
    """Nothing comes for a while."""
    client.sock.settimeout(QUIET_SECONDS)
    with pytest.raises(TimeoutError):
        client.sock.recv(1, socket.MSG_PEEK)  # What comes stays where it is.
    client.sock.settimeout(WAIT_SECONDS)


def eventually(api: Api, name: str, **fields: int) -> pb.StreamDescription:
    """`describe`, once the fields have these values."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        description = api.describe(name)
        if all(getattr(description, field) == value for field, value in fields.items()):
            return description
        assert time.monotonic() < deadline, (fields, description)
        time.sleep(0.01)


def test_under_group_no_ack_and_no_reader_comes_before_the_fsync(
    gated: GatedServer, api: Api, publisher: RawNats
) -> None:
    api.create("careful", "careful", flush=pb.FLUSH_GROUP)
    gated.hold()
    publisher.publish("careful", b"x", "_INBOX.mine")
    held = eventually(api, "careful", log_end_offset=1)
    assert (held.high_watermark, held.flushed_offset) == (0, 0)
    assert api.fetch("careful").batches == b""
    expect_silence(publisher)
    gated.release()
    assert answer(publisher) == {"stream": "careful", "seq": 1}
    eventually(api, "careful", high_watermark=1, flushed_offset=1)


def test_an_fsync_covers_only_what_was_appended_before_it_began(
    gated: GatedServer, api: Api, publisher: RawNats
) -> None:
    api.create("later", "later", flush=pb.FLUSH_GROUP)
    gated.hold()
    publisher.publish("later", b"before", "_INBOX.mine")
    while gated.fsyncs == 0:
        time.sleep(0.01)
    publisher.publish("later", b"during", "_INBOX.mine")
    eventually(api, "later", log_end_offset=2)
    gated.hold(after=1)
    assert answer(publisher) == {"stream": "later", "seq": 1}
    expect_silence(publisher)
    description = api.describe("later")
    assert (description.high_watermark, description.flushed_offset) == (1, 1)
    assert api.values("later") == [b"before"]
    gated.release()
    assert answer(publisher) == {"stream": "later", "seq": 2}


def test_one_fsync_serves_all_that_queued_up_after_it(
    gated: GatedServer, api: Api, publisher: RawNats
) -> None:
    api.create("crowd", "crowd", flush=pb.FLUSH_GROUP)
    gated.hold()
    publisher.publish("crowd", b"first", "_INBOX.mine")
    eventually(api, "crowd", log_end_offset=1)
    for index in range(100):
        publisher.publish("crowd", b"%d" % index, "_INBOX.mine")
        if index % 10 == 0:
            eventually(api, "crowd", log_end_offset=index + 2)  # many appends, not one
    eventually(api, "crowd", log_end_offset=101)
    gated.release()
    assert [answer(publisher)["seq"] for _ in range(101)] == list(range(1, 102))
    assert gated.fsyncs == 2


@pytest.mark.parametrize("flush", [pb.FLUSH_NONE, pb.FLUSH_INTERVAL])
def test_without_group_acks_do_not_wait_for_the_disk(
    gated: GatedServer, api: Api, publisher: RawNats, flush: int
) -> None:
    api.create("quick", "quick", flush=flush)
    gated.hold()
    publisher.publish("quick", b"x", "_INBOX.mine")
    assert answer(publisher)["seq"] == 1
    description = api.describe("quick")
    assert (description.high_watermark, description.flushed_offset) == (1, 0)
    gated.release()


def test_interval_flushes_by_itself_and_none_never_does(
    gated: GatedServer, api: Api, publisher: RawNats
) -> None:
    api.create("soon", "soon", flush=pb.FLUSH_INTERVAL)
    api.create("never", "never", flush=pb.FLUSH_NONE)
    for subject in ("soon", "never"):
        publisher.publish(subject, b"x", "_INBOX.mine")
        answer(publisher)
    eventually(api, "soon", flushed_offset=1)
    assert gated.fsyncs == 1
    assert api.describe("never").flushed_offset == 0


@pytest.mark.parametrize("flush", [pb.FLUSH_NONE, pb.FLUSH_INTERVAL, pb.FLUSH_GROUP])
def test_what_was_acknowledged_survives_kill_9_under_every_policy(
    gated: GatedServer, api: Api, publisher: RawNats, flush: int
) -> None:
    api.create("kept", "kept", flush=flush)
    for index in range(20):
        level = b"NATS/1.0\r\nJetstream-Ack: %s\r\n\r\n" % (b"leader" if index % 2 else b"all")
        publisher.publish("kept", b"%d" % index, "_INBOX.mine", headers=level)
    assert {answer(publisher)["seq"] for _ in range(20)} == set(range(1, 21))
    gated.kill()
    gated.start()
    again = Api(gated.grpc)
    assert again.values("kept") == [b"%d" % index for index in range(20)]
    again.close()


def test_a_node_is_ready_once_what_survived_a_kill_can_be_read(
    gated: GatedServer, api: Api, publisher: RawNats
) -> None:
    api.create("patient", "patient", flush=pb.FLUSH_GROUP)
    for index in range(5):
        publisher.publish("patient", b"%d" % index, "_INBOX.mine")
        assert answer(publisher)["seq"] == index + 1
    gated.hold()
    publisher.publish("patient", b"appended and not flushed", "_INBOX.mine")
    while api.describe("patient").log_end_offset < 6:
        time.sleep(0.01)
    gated.kill()
    before = gated.fsyncs
    with ThreadPoolExecutor(1) as threads:
        starting = threads.submit(gated.start)
        while gated.fsyncs == before:
            time.sleep(0.01)
        time.sleep(QUIET_SECONDS)
        assert not starting.done()
        gated.release()
        starting.result(timeout=120)
    again = Api(gated.grpc)
    flushed = [b"%d" % index for index in range(5)]
    assert again.values("patient") == [*flushed, b"appended and not flushed"]
    again.close()


def test_a_failed_fsync_is_an_unknown_outcome_and_the_log_takes_no_more(
    gated: GatedServer, api: Api, publisher: RawNats
) -> None:
    api.create("broken", "broken", flush=pb.FLUSH_GROUP)
    api.create("sound", "sound", flush=pb.FLUSH_NONE)
    gated.fail()
    publisher.publish("broken", b"x", "_INBOX.mine")
    unknown = answer(publisher)["error"]
    assert isinstance(unknown, dict)
    assert unknown["err_code"] == CODES[UnknownOutcomeError].nats_err_code
    assert api.describe("broken").state.startswith("offline")
    assert api.describe("broken").high_watermark == 0
    tried = gated.fsyncs
    (gated.gate / "fail").unlink()
    publisher.publish("broken", b"y", "_INBOX.mine")
    error = answer(publisher)["error"]
    assert isinstance(error, dict)
    assert error["err_code"] == CODES[StorageError].nats_err_code
    assert gated.fsyncs == tried, "a failed fsync is never tried again"
    publisher.publish("sound", b"z", "_INBOX.mine")
    assert answer(publisher) == {"stream": "sound", "seq": 1}
    assert "log_failed" in gated.log_text


def test_a_group_member_whose_log_failed_leaves_the_messages_to_the_others(
    gated: GatedServer, api: Api, publisher: RawNats
) -> None:
    names = ["left", "right"]
    for name in names:
        api.create(name, "shared", group="both", flush=pb.FLUSH_GROUP)
    gated.fail()
    publisher.publish("shared", b"lost to one of them", "_INBOX.mine")
    failed = str(answer(publisher)["stream"])
    (gated.gate / "fail").unlink()
    (other,) = set(names) - {failed}
    for index in range(50):
        publisher.publish("shared", b"%d" % index, "_INBOX.mine")
    assert [answer(publisher) for _ in range(50)] == [
        {"stream": other, "seq": sequence} for sequence in range(1, 51)
    ]


def test_beyond_the_bound_of_pending_acks_askers_are_nacked_and_others_stored(
    narrow: GatedServer, api: Api, publisher: RawNats
) -> None:
    api.create("busy", "busy", flush=pb.FLUSH_GROUP)
    narrow.hold()
    for index in range(10):
        publisher.publish("busy", b"%d" % index, "_INBOX.mine")
        eventually(api, "busy", log_end_offset=index + 1)
    publisher.publish("busy", b"refused", "_INBOX.mine")
    error = answer(publisher)["error"]
    assert isinstance(error, dict)
    assert error["code"] == 503
    assert "overloaded" in str(error["description"])
    publisher.publish("busy", b"asks for nothing")
    eventually(api, "busy", log_end_offset=11, nacks_sent=1)
    narrow.release()
    assert [answer(publisher)["seq"] for _ in range(10)] == list(range(1, 11))
    publisher.publish("busy", b"room again", "_INBOX.mine")
    assert answer(publisher)["seq"] == 12
    assert api.values("busy")[10:] == [b"asks for nothing", b"room again"]


def test_beyond_the_bound_of_uncommitted_bytes_askers_are_nacked(
    narrow: GatedServer, api: Api, publisher: RawNats
) -> None:
    api.create("heavy", "heavy", flush=pb.FLUSH_GROUP)
    narrow.hold()
    publisher.publish("heavy", bytes(70_000), "_INBOX.mine")
    eventually(api, "heavy", log_end_offset=1)
    publisher.publish("heavy", b"x", "_INBOX.mine")
    assert "bytes" in json.dumps(answer(publisher))
    narrow.release()
    assert answer(publisher)["seq"] == 1
    publisher.publish("heavy", b"y", "_INBOX.mine")
    assert answer(publisher)["seq"] == 2
