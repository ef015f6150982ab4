"""Records over HTTP: formats, positions, following, errors, rights, and a leader that is killed."""

from __future__ import annotations

import csv
import io
import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from http.client import HTTPConnection, IncompleteRead
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote, urlencode, urlsplit

import pyarrow as pa
import pytest

from jetstream_client import Client
from jetstream_protocol import typed_json
from tests.support.cluster import running_cluster
from tests.support.command import jetstream
from tests.support.patient_server import PatientCluster
from tests.support.secured import secured_server
from tests.support.server import ServerProcess

RECORDS = 1_200


@pytest.fixture
def stream(client: Client, name: str) -> Iterator[str]:
    client.create_stream(name, f"{name}.>")
    yield name
    client.delete_stream(name)


@contextmanager
def answer(http: str, stream: str, accept: str = "*/*", **more: Any) -> Iterator[Any]:
    """more: parameters; `headers` are headers."""
    headers = {"Accept": accept} | more.pop("headers", {})
    query = urlencode({name.rstrip("_"): value for name, value in more.items()})
    address = f"{http}/v1/streams/{quote(stream, safe='')}/records?{query}"
    with urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=60) as it:
        yield it


def rows(http: str, stream: str, **more: Any) -> list[dict[str, Any]]:
    with answer(http, stream, **more) as response:
        return [json.loads(line) for line in response]


def refused(http: str, stream: str, **more: Any) -> tuple[int, str]:
    with pytest.raises(urllib.error.HTTPError) as refusal, answer(http, stream, **more):
        pass
    error = json.load(refusal.value)["error"]
    return refusal.value.code, f"{error['code']}: {error['message']}"


def test_lines_of_json_are_those_of_jetstream_fetch(
    server: ServerProcess, client: Client, stream: str
) -> None:
    client.publish(f"{stream}.a", b'{"n": 1}', key=b"k", headers={"Trace": "t-1"})
    client.publish(f"{stream}.b", b"\xff\x00")
    client.publish(f"{stream}.a", None, key=b"k", headers=[("a", "1"), ("a", "2")])
    with answer(server.http, stream) as response:
        assert response.headers["Content-Type"] == "application/x-ndjson; charset=utf-8"
        lines = [json.loads(line) for line in response]
    printed = jetstream("--server", server.grpc, "fetch", stream, "--json").stdout
    assert lines == [json.loads(line) for line in printed.splitlines()]
    assert (lines[1]["value"], lines[1]["value_encoding"]) == ("/wA=", "base64")


def test_an_answer_begins_and_ends_where_it_is_told(
    server: ServerProcess, client: Client, stream: str
) -> None:
    with client.publisher(f"{stream}.a") as publisher:
        publisher.publish_many([b"%d" % number for number in range(RECORDS)])
    client.publish(f"{stream}.b", b"last")

    def found(**more: Any) -> list[int]:
        return [row["offset"] for row in rows(server.http, stream, **more)]

    everything = list(range(RECORDS + 1))
    middle = rows(server.http, stream, from_=RECORDS, limit=1)[0]["timestamp"]
    assert found() == everything
    assert found(from_="earliest", limit=7) == everything[:7]
    assert found(from_=1_100) == everything[1_100:]
    assert found(from_=-3) == everything[-3:]
    assert found(from_="latest") == []
    assert found(from_=RECORDS + 1) == []
    assert found(from_=middle)[-1:] == [RECORDS]
    assert found(filter=f"{stream}.b") == [RECORDS]
    assert found(filter=f"{stream}.*", limit=2) == [0, 1]
    assert found(from_="2001-01-01", limit=1) == [0]
    client.publish(f"{stream}.b", b"with a key", key=b"k")
    assert found(key="k") == found(key="k", filter=f"{stream}.b") == [RECORDS + 1]
    assert found(key="k", filter=f"{stream}.a") == found(key="x") == []


@pytest.mark.parametrize("form", ["ndjson", "events", "csv", "arrow"])
def test_headers_alone_are_an_answer_after_which_the_next_one_comes(
    server: ServerProcess, client: Client, stream: str, form: str
) -> None:
    client.publish(f"{stream}.a", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    with closing(HTTPConnection(urlsplit(server.http).netloc, timeout=60)) as connection:
        for method in ("HEAD", "GET"):
            follow = "" if method == "HEAD" else "&follow=false"
            connection.request(method, f"/v1/streams/{stream}/records?format={form}{follow}")
            answer = connection.getresponse()
            assert (answer.status, bool(answer.read())) == (200, method == "GET")


def test_csv_has_the_same_fields(server: ServerProcess, client: Client, stream: str) -> None:
    client.publish(f"{stream}.a", 'with "quotes", and\nlines', headers={"H": "v"})
    with answer(server.http, stream, "text/csv") as response:
        (row,) = csv.DictReader(io.StringIO(response.read().decode(), newline=""))
    assert (row["offset"], row["value"]) == ("0", 'with "quotes", and\nlines')
    assert json.loads(row["headers"])["H"] == "v"


def test_arrow_has_the_columns_of_the_sdk(
    server: ServerProcess, client: Client, stream: str
) -> None:
    with client.publisher(f"{stream}.a") as publisher:
        publisher.publish_many([b"%d" % number for number in range(RECORDS)])
    client.publish(f"{stream}.b", b"\xff", key=b"k", headers={"H": "v"})
    client.publish(f"{stream}.b", None, key=b"k")
    columns = ["offset", "timestamp", "subject", "key", "value", "headers"]
    known = client.fetch(stream, 0).to_arrow(columns)
    for more in ({"accept": "application/vnd.apache.arrow.stream"}, {"format": "arrow"}):
        with answer(server.http, stream, **more) as response:
            assert response.headers["Content-Type"] == "application/vnd.apache.arrow.stream"
            found = pa.ipc.open_stream(response).read_all()
        assert found.schema == known.schema
        assert found.equals(known)
    with answer(server.http, stream, format="arrow", filter="nobody") as response:
        assert pa.ipc.open_stream(response).read_all().num_rows == 0


def _event(response: IO[bytes]) -> dict[str, str]:
    """The next one with data: a browser tells programs of no other."""
    fields: dict[str, str] = {}
    while (line := response.readline().decode().rstrip("\n")) or "data" not in fields:
        name, _, value = line.partition(": ")
        fields = fields | {name: value} if name else {}
    return fields


def test_events_follow_the_stream_and_go_on_where_they_ended(
    server: ServerProcess, client: Client, stream: str
) -> None:
    client.publish(f"{stream}.a", b"0")
    with answer(server.http, stream, "text/event-stream") as response:
        assert json.loads(_event(response)["data"])["value"] == "0"
        client.publish(f"{stream}.a", b"1")
        assert _event(response)["id"] == "1"
    client.publish(f"{stream}.a", b"2")
    resumed = {"Last-Event-ID": "1"}
    with answer(server.http, stream, "text/event-stream", headers=resumed) as response:
        assert json.loads(_event(response)["data"])["value"] == "2"
    with answer(server.http, stream, "text/event-stream", follow="false") as response:
        assert response.read().count(b"data: ") == 3


def test_events_say_how_far_a_filter_has_looked(
    server: ServerProcess, client: Client, stream: str
) -> None:
    client.publish(f"{stream}.a", b"0")
    with client.publisher(f"{stream}.b") as publisher:
        publisher.publish_many([b"no"] * RECORDS)

    def ids(**more: Any) -> list[str]:
        with answer(server.http, stream, "text/event-stream", follow="false", **more) as response:
            lines = response.read().decode().splitlines()
        return [line for line in lines if line.startswith("id: ")]

    first, last = "id: -1", f"id: {RECORDS}"
    assert ids(filter=f"{stream}.a") == [first, "id: 0", last]
    assert ids(filter=f"{stream}.a", limit=1) == [first, "id: 0"]
    assert ids(filter="nobody") == [first, last]
    assert ids(limit=3) == [first, "id: 0", "id: 1", "id: 2"]
    assert ids(from_=-1) == [f"id: {RECORDS - 1}", last]
    assert ids(from_="latest") == [last], "who comes again misses nothing that came meanwhile"
    assert ids(headers={"Last-Event-ID": "-1"}, limit=1) == [first, "id: 0"]


def test_long_records_are_cut_and_say_how_long_they_are(
    server: ServerProcess, client: Client, stream: str
) -> None:
    client.publish(f"{stream}.a", "aä€".encode(), key=b"12345", headers={"H": "v" * 99})
    client.publish(f"{stream}.a", b"\xff" * 9)
    client.publish(f"{stream}.a", None, key=b"k")
    whole = rows(server.http, stream)
    cut, binary, tombstone = rows(server.http, stream, bytes_max=4)
    assert (cut["value"], cut["value_encoding"], cut["value_size"]) == ("aä", "utf8", 6)
    assert (cut["key"], cut["key_size"], cut["headers_size"] > 99) == ("1234", 5, True)
    assert (binary["value"], binary["value_encoding"], binary["value_size"]) == (
        "/////w==",
        "base64",
        9,
    )
    assert (tombstone["value"], tombstone["value_size"], tombstone["key_size"]) == (None, None, 1)
    sizes = {"key_size": 5, "value_size": 6, "headers_size": cut["headers_size"]}
    assert rows(server.http, stream, bytes_max=10**6)[0] == whole[0] | sizes
    assert "bytes_max" in refused(server.http, stream, format="csv", bytes_max=4)[1]


AVRO = "id bigint, at timestamp, tags list<string>, big bigint, note string using avro (7) <id "
AVRO += "long, at timestamp_millis, tags array<string>, big long, note string>"


@pytest.mark.skipif(typed_json.compiled is None, reason="only compiled code reads Avro")
def test_records_have_the_fields_of_their_schema(
    server: ServerProcess, client: Client, stream: str
) -> None:
    assert "no schema" in refused(server.http, stream, typed="true")[1]
    client.set_schema(stream, AVRO)
    whole = bytes.fromhex("0000000007 02 8084f6b78267 020261 00 fcffffffffffffffff01 0668c3b3")
    client.publish(f"{stream}.a", whole)
    client.publish(f"{stream}.a", b"{}")
    client.publish(f"{stream}.a", None, key=b"k")
    good, bad, tombstone = (row["fields"] for row in rows(server.http, stream, typed="true"))
    assert good == {
        "id": 1, "at": "2026-01-31T10:00:00.000000Z", "tags": ["a"],
        "big": str(2**63 - 2), "note": "hó", "_error": None,
    }  # fmt: skip
    nothing = dict.fromkeys(good)
    assert bad == nothing | {"_error": "the value begins with no schema id known"}
    assert tombstone == nothing
    cut, *_ = rows(server.http, stream, typed="true", bytes_max=40)
    assert cut["fields"] == good | {"big": "9…"}
    for form in ("csv", "arrow"):
        assert "typed is not for" in refused(server.http, stream, format=form, typed="true")[1]


def test_what_cannot_be_meant_is_refused_with_what_to_say(
    server: ServerProcess, client: Client, stream: str
) -> None:
    client.publish(f"{stream}.a", b"0")
    http = server.http
    assert refused(http, "nobody")[0] == 404
    assert refused(http, stream, from_="yesterday") == (
        400,
        "invalid_request: invalid from='yesterday': say earliest, latest, an offset, -10 (the last "
        "ten), 1h (ago) or a time like 2026-01-31T12:00:00Z",
    )
    assert "at least 1" in refused(http, stream, limit=0)[1]
    assert "true or false" in refused(http, stream, follow="yes")[1]
    assert "unknown parameter 'form'" in refused(http, stream, form="csv")[1]
    for more in ({"accept": "image/png"}, {"format": "png"}):
        code, said = refused(http, stream, **more)
        assert (code, "text/csv (csv)" in said) == (406, True)
    assert refused(http, stream, filter="a..b")[0] == 400
    assert refused(http, stream, from_=10**17)[1].startswith("offset_out_of_range")
    events = {"Last-Event-ID": "abc"}
    assert refused(http, stream, accept="text/event-stream", headers=events)[0] == 400


def test_a_stream_that_is_deleted_ends_its_followers_with_an_error(
    server: ServerProcess, client: Client, name: str
) -> None:
    client.create_stream(name, f"{name}.>")
    client.publish(f"{name}.a", b"0")
    with answer(server.http, name, follow="true") as lines:
        assert json.loads(lines.readline())["offset"] == 0
        with answer(server.http, name, "text/csv", follow="true") as table:
            assert table.readline().startswith(b"offset,")
            assert table.readline().startswith(b"0,")
            client.delete_stream(name)
            client.create_stream(name, f"{name}.>")
            client.publish(f"{name}.a", b"of another stream")
            assert json.loads(lines.readline())["error"]["code"] == "stream_not_found"
            assert lines.readline() == b""
            with pytest.raises((IncompleteRead, ConnectionError)):
                table.read()
    client.delete_stream(name)


def test_readers_that_read_nothing_hold_nobody_up(
    server: ServerProcess, client: Client, stream: str
) -> None:
    with client.publisher(f"{stream}.a") as publisher:
        publisher.publish_many([bytes(64 * 1024)] * 400)
    port = int(server.http.rpartition(":")[2])
    asked = f"GET /v1/streams/{stream}/records HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
    with ExitStack() as stack:
        for _ in range(12):  # More than there is room for.
            silent = stack.enter_context(socket.socket())
            silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            silent.connect(("127.0.0.1", port))
            silent.sendall(asked)
        assert len(rows(server.http, stream)) == 400


def post(http: str, stream: str, body: bytes, kind: str, **more: Any) -> dict[str, Any]:
    headers = {"Content-Type": kind} | more.pop("headers", {})
    address = f"{http}/v1/streams/{quote(stream, safe='')}/records?{urlencode(more)}"
    request = urllib.request.Request(address, data=body, headers=headers)
    with urllib.request.urlopen(request, timeout=60) as response:
        found: dict[str, Any] = json.load(response)
    return found


def not_stored(http: str, stream: str, body: bytes, kind: str, **more: Any) -> tuple[int, str]:
    with pytest.raises(urllib.error.HTTPError) as refusal:
        post(http, stream, body, kind, **more)
    return refusal.value.code, json.load(refusal.value)["error"]["message"]


def test_what_was_read_is_written_back_as_it_was(
    server: ServerProcess, client: Client, stream: str
) -> None:
    subject = f"{stream}.a"
    with client.publisher(subject) as publisher:
        publisher.send(b"text", key=b"k", headers=[("a", "1"), ("a", "2"), ("b", "3")])
        publisher.send(b"\xff\x00")
        publisher.send(None, key=b"\xfe")
    with answer(server.http, stream) as response:
        body = response.read()
    stored = post(server.http, stream, body, "application/x-ndjson", subject=subject)
    assert stored == {"offset": 3, "count": 3, "duplicate": False}
    first, second = (
        [(m.subject, m.key, m.value, m.header_block) for m in client.fetch(stream, at, stop=at + 3)]
        for at in (0, 3)
    )
    assert first == second


def test_a_body_that_is_not_json_is_one_value(
    server: ServerProcess, client: Client, name: str
) -> None:
    client.create_stream(name, name)  # Its only subject need not be said.
    once = {"Idempotency-Key": "order-\xff"}  # No text in UTF-8.
    for is_repeated in (False, True):
        stored = post(server.http, name, b"one", "text/plain", key="k", headers=once)
        assert stored == {"offset": 0, "count": 1, "duplicate": is_repeated}
    code, message = not_stored(server.http, name, b"two", "text/plain", headers=once)
    assert (code, "another batch" in message) == (400, True)
    assert post(server.http, name, b"two", "text/plain", ack="leader")["offset"] == 1
    assert [(m.key, m.value) for m in client.fetch(name, 0, stop=1)] == [(b"k", b"one")]
    # The leader has it; committed it may be later.
    assert [(m.key, m.value) for m in client.fetch(name, 1, max_wait=60)] == [(None, b"two")]
    client.delete_stream(name)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "1 to 10000 records"),
        (b'{"value": "a"}\n{"value": 1}', "line 2: value is text"),
        (b'{"value": "a"}\n\nnonsense', "line 3 is not JSON"),
        (b"[1]", 'not an object with a "value"'),
        (b'{"value": "a", "x": 1}', "unknown field 'x'"),
        (b'{"value": "a", "subject": "elsewhere"}', "another subject"),
        (b'{"value": "?", "value_encoding": "base64"}', "value"),
        (b'{"value": "a", "headers": {"a b": "c"}}', "header"),
        (b'{"value": "a", "headers": {"a": "b\\r\\nc"}}', "header"),
        (b'{"value": "\\ud800"}', "surrogates"),
        (b"[" * 100_000, "not JSON"),
        (b'{"value": "a"}\n' * 10_001, "1 to 10000 records"),
    ],
    ids=lambda each: each[:24].decode() if isinstance(each, bytes) else "",
)
def test_a_body_that_cannot_be_meant_stores_nothing(
    server: ServerProcess, client: Client, stream: str, body: bytes, says: str
) -> None:
    kind = "application/json"
    code, message = not_stored(server.http, stream, body, kind, subject=f"{stream}.a")
    assert (code, says in message) == (400, True), message
    assert len(client.fetch(stream, 0)) == 0


def test_a_request_that_cannot_be_meant_stores_nothing(
    server: ServerProcess, client: Client, stream: str
) -> None:
    http, subject = server.http, f"{stream}.a"
    form = "application/x-www-form-urlencoded"
    assert "curl -d needs -H" in not_stored(http, stream, b"a", form, subject=subject)[1]
    assert "?subject=" in not_stored(http, stream, b"a", "text/plain")[1]
    assert not_stored(http, stream, b"a", "text/plain", subject="other")[0] == 400
    assert not_stored(http, stream, b"a", "text/plain", subject=f"{stream}.*")[0] == 400
    assert not_stored(http, "nobody", b"a", "text/plain", subject="nobody.a")[0] == 404
    assert not_stored(http, stream, bytes(2**20 + 1), "text/plain", subject=subject)[0] == 400
    assert (
        "not UTF-8" in not_stored(http, stream, b"a", "text/plain", subject=subject, key=b"\xff")[1]
    )
    packed = not_stored(http, stream, b"a", "text/plain", subject=subject,
                        headers={"Content-Encoding": "gzip"})  # fmt: skip
    assert (packed[0], "without Content-Encoding" in packed[1]) == (400, True)
    evil = {"Origin": "http://evil.example"}
    assert not_stored(http, stream, b"a", "text/plain", subject=subject, headers=evil)[0] == 403
    assert len(client.fetch(stream, 0)) == 0


def test_rights_are_those_of_the_token(tmp_path: Path) -> None:
    with secured_server(tmp_path) as server, server.client() as admin:
        admin.create_stream("orders", "orders.>")
        admin.create_stream("pay", "pay.>")
        writer = admin.create_token("user:writer").text
        admin.add_acl("user:writer", "write", stream="orders", subject="orders.eu")
        theirs = {"Authorization": f"Bearer {writer}"}
        orders = f"{server.http}", "orders", b"1", "text/plain"
        assert post(*orders, subject="orders.eu", headers=theirs)["offset"] == 0
        assert not_stored(*orders, subject="orders.us", headers=theirs)[0] == 403
        assert not_stored(*orders, subject="orders.eu")[0] == 401
        token = admin.create_token("user:reader").text
        rule = admin.add_acl("user:reader", "read", stream="orders", subject="orders.>")
        mine = {"Authorization": f"Bearer {token}"}
        assert refused(server.http, "orders")[0] == 401
        assert refused(server.http, "pay", headers=mine)[0] == 403
        with answer(server.http, "orders", from_="latest", follow="true", headers=mine) as response:
            admin.remove_acl(rule.id)
            error = json.loads(response.readline())["error"]
        assert error["code"] == "permission_denied"


def test_a_follower_outlives_the_leader(tmp_path: Path) -> None:
    with (
        running_cluster(tmp_path, kind=PatientCluster) as cluster,
        Client(cluster.servers, timeout=60) as client,
    ):
        client.create_stream("orders", "orders.>", replicas=3)
        leader = client.describe_stream("orders").leader
        nodes = cluster.cluster.config["nodes"]
        (other, *_) = [each for each in nodes if each["id"] != leader]
        sent = 0

        def publish(count: int) -> None:
            nonlocal sent
            for _ in range(count):
                client.publish("orders.a", b"%d" % sent, msg_id=f"m{sent}")
                sent += 1

        by_http = post(f"http://{other['http']}", "orders", b"0", "text/plain", subject="orders.a")
        assert by_http["offset"] == 0
        sent = 1
        publish(19)
        with answer(f"http://{other['http']}", "orders", follow="true") as response:
            found = [json.loads(response.readline())["value"] for _ in range(20)]
            killing = threading.Thread(target=cluster.kill, args=(leader,))
            killing.start()
            killing.join()
            deadline = time.monotonic() + 60
            while sent < 40 and time.monotonic() < deadline:
                publish(1)
            found += [json.loads(response.readline())["value"] for _ in range(20)]
        assert found == [str(number) for number in range(40)]
