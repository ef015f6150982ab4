"""Streams and cursors over HTTP: what they say, what changes them, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from jetstream_client import Client
from tests.support.command import jetstream
from tests.support.http_calls import Answer, call
from tests.support.secured import secured_server
from tests.support.server import ServerProcess

RECORDS = 10
CHANGING = ("lag_seconds", "acks_sent")
"""Between two looks."""


@pytest.fixture
def stream(client: Client, name: str) -> Iterator[str]:
    """With ten records."""
    client.create_stream(name, f"{name}.>", max_age=3600)
    with client.publisher(f"{name}.a") as publisher:
        publisher.publish_many([b"%d" % number for number in range(RECORDS)])
    yield name
    if client.list_streams(name):
        client.delete_stream(name)


def printed(server: ServerProcess, *words: str) -> list[dict[str, Any]]:
    """The JSON lines of a command."""
    lines = jetstream("--server", server.grpc, *words, "--json").stdout.splitlines()
    return [json.loads(line) for line in lines]


def steady(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in CHANGING}


def test_a_stream_is_described_as_the_command_line_describes_it(
    server: ServerProcess, stream: str
) -> None:
    (said,) = printed(server, "stream", "describe", stream)
    found = call(server.http, "GET", f"/v1/streams/{stream}")
    assert found.headers["Content-Type"] == "application/json; charset=utf-8"
    assert steady(found.data) == steady(said)
    assert (found.data["high_watermark"], found.data["max_age"]) == (RECORDS, 3600)
    full = quote(f"{stream}@{stream}.>", safe="")
    assert call(server.http, "GET", f"/v1/streams/{full}").data["id"] == said["id"]
    listed = call(server.http, "GET", f"/v1/streams?match={stream.upper()}").data
    assert (list(map(steady, listed["streams"])), listed["total"]) == ([steady(said)], 1)
    later = call(server.http, "GET", f"/v1/streams?match={stream}&start=1&limit=1").data
    assert later == {"streams": [], "total": 1}


def test_the_cluster_says_which_nodes_there_are(server: ServerProcess, client: Client) -> None:
    known = client.describe_cluster()
    found = call(server.http, "GET", "/v1/cluster").data
    assert (found["cluster_id"], found["controller"]) == (known.cluster_id, 0)
    assert [(each["id"], each["grpc"]) for each in found["nodes"]] == [(0, server.grpc)]


def test_cursors_are_listed_as_the_command_line_lists_them(
    server: ServerProcess, client: Client, stream: str
) -> None:
    client.commit_cursor(f"{stream}-billing", stream, 4, metadata="état")
    client.commit_cursor(f"{stream}-audit", stream, RECORDS)
    said = printed(server, "cursor", "list", "--stream", stream)
    found = call(server.http, "GET", f"/v1/streams/{stream}/cursors").data
    assert (list(map(steady, found["cursors"])), found["total"], found["is_all"]) == (
        list(map(steady, said)),
        2,
        True,
    )
    assert [each["lag"] for each in found["cursors"]] == [0, 6]
    assert found["cursors"][1]["lag_seconds"] > 0

    def names(query: str) -> list[str]:
        answer = call(server.http, "GET", f"/v1/cursors?{query}").data
        return [each["name"].removeprefix(stream) for each in answer["cursors"]]

    assert names(f"stream={stream}") == ["-audit", "-billing"]
    assert names(f"name={stream}-audit") == ["-audit"]
    assert names(f"match={stream}-BILL") == ["-billing"]
    assert names(f"stream={stream}&start=1&limit=1") == ["-billing"]
    client.delete_stream(stream)
    (gone, _) = call(server.http, "GET", f"/v1/cursors?match={stream}").data["cursors"]
    assert (gone["state"], gone["lag"]) == ("stream deleted", None)
    full = quote(f"{stream}@{stream}.>", safe="")
    cursor = f"/v1/streams/{full}/cursors/{stream}-audit"
    assert call(server.http, "DELETE", cursor).status == 204
    assert call(server.http, "GET", cursor).code == "not_found"


def put(server: ServerProcess, stream: str, body: Any, name: str = "billing") -> Answer:
    return call(server.http, "PUT", f"/v1/streams/{stream}/cursors/{name}", body)


def test_a_cursor_lives_from_its_first_position_to_its_end(
    server: ServerProcess, client: Client, stream: str
) -> None:
    cursor = f"/v1/streams/{stream}/cursors/billing"
    assert call(server.http, "GET", cursor).code == "not_found"
    begun = put(server, stream, {"offset": 4, "owner": "me", "metadata": "m", "last_epoch": 1})
    assert begun.status == 200
    found = call(server.http, "GET", cursor).data
    assert begun.data.items() <= found.items()
    assert (found["offset"], found["lag"], found["state"]) == (4, 6, "current")
    known = client.describe_cursor("billing", stream)
    assert (known.offset, known.owner, known.metadata, known.last_epoch) == (4, "me", "m", 1)
    late = f"{cursor}?expected_revision={known.revision}"
    put(server, stream, {"offset": 5})
    assert call(server.http, "DELETE", late).code == "precondition_failed"
    assert call(server.http, "DELETE", cursor).status == 204
    assert call(server.http, "DELETE", late).status == 404
    assert client.list_cursors(stream=stream) == []


@pytest.mark.parametrize(
    ("to", "offset"),
    [
        ("earliest", 0),
        ("latest", RECORDS),
        ("7", 7),
        ("-3", 7),
        ("-99", 0),
        ("2001-01-01", 0),
        ("2100-01-01T00:00:00+01:00", RECORDS),
    ],
)
def test_a_cursor_is_moved_to_a_place_that_the_stream_holds(
    server: ServerProcess, stream: str, to: str, offset: int
) -> None:
    assert put(server, stream, {"to": to}).data["offset"] == offset


def test_a_cursor_is_set_only_if_nobody_else_has_set_it(
    server: ServerProcess, client: Client, stream: str
) -> None:
    first = put(server, stream, {"offset": 1, "expected_revision": -1}).data
    assert put(server, stream, {"offset": 2, "expected_revision": -1}).code == "precondition_failed"
    second = put(server, stream, {"offset": 2, "expected_revision": first["revision"]}).data
    late = put(server, stream, {"to": "earliest", "expected_revision": first["revision"]})
    assert (late.status, late.code) == (400, "precondition_failed")
    assert second["revision"] > first["revision"]
    assert client.describe_cursor("billing", stream).offset == 2


def test_the_positions_of_a_group_with_members_are_theirs_alone(
    server: ServerProcess, client: Client, stream: str
) -> None:
    group = f"{stream}-workers"
    with client.consume_group(stream, group, auto_commit=False) as member:
        next(member)
        member.commit()
        cursor = f"/v1/streams/{stream}/cursors/{group}"
        assert call(server.http, "PUT", cursor, {"offset": 9}).code == "precondition_failed"
        assert call(server.http, "DELETE", cursor).code == "precondition_failed"
        assert client.describe_cursor(group, stream).offset == 1


@pytest.mark.parametrize(
    "body",
    [
        {},
        [],
        b"{",
        {"offset": -1},
        {"offset": 1.5},
        {"offset": True},
        {"offset": 2**63},
        {"offset": 1, "to": "latest"},
        {"to": 7},
        {"to": "yesterday"},
        {"to": str(RECORDS + 1)},
        {"offset": 1, "generation": 3},
        {"offset": 1, "owner": "o" * 65},
        {"offset": 1, "metadata": "m" * 1025},
        {"offset": 1, "metadata": "\ud800"},
    ],
    ids=lambda body: str(body)[:40],
)
def test_a_position_that_cannot_be_meant_sets_nothing(
    server: ServerProcess, client: Client, stream: str, body: Any
) -> None:
    assert put(server, stream, body).status == 400
    assert client.list_cursors(stream=stream) == []


def test_what_cannot_be_meant_is_refused_with_what_to_say(
    server: ServerProcess, client: Client, stream: str
) -> None:
    client.seek_cursor("known", stream, 0)  # Its log is made with the first cursor.

    def said(path: str, method: str = "GET", **more: Any) -> str:
        error = call(server.http, method, f"/v1/{path}", **more).data["error"]
        return f"{error['code']}: {error['message']}"

    one = f"streams/{stream}/cursors/billing"
    assert said("streams?macth=x") == (
        "invalid_request: unknown parameter 'macth': there are match, state, sort, start, limit"
    )
    assert said(f"streams/{stream}?x=1").endswith("unknown parameter 'x': there are none")
    assert "limit is at least 1" in said("streams?limit=0")
    assert "limit is at most 1000" in said("cursors?limit=1001")
    assert "not negative" in said("cursors?start=-1")
    assert said("streams/nobody").startswith("stream_not_found")
    assert said("streams/nobody/cursors").startswith("stream_not_found")
    assert said("streams/nobody/cursors/x", "PUT", body={"offset": 1}).startswith("stream_")
    assert said(f"streams/{stream}/cursors/a%20b", "PUT", body={"offset": 1}).startswith("invalid")
    plain = {"Content-Type": "text/plain"}
    assert "Content-Type" in said(one, "PUT", body=b"{}", headers=plain)
    assert "unknown parameter" in said(f"{one}?offset=1", "PUT", body={"offset": 1})
    evil = {"Origin": "http://evil.example"}
    assert said(one, "PUT", body={"offset": 1}, headers=evil).startswith("permission_denied")
    assert said(one, "DELETE", headers=evil).startswith("permission_denied")


def test_a_page_that_the_configuration_names_may_read_and_write(tmp_path: Path) -> None:
    page = "http://page.example:3000"
    server = ServerProcess(
        tmp_path / "data", environment={"JETSTREAM_HTTP__CORS_ORIGINS": json.dumps([page])}
    )
    server.start()
    try:
        with Client(server.grpc, timeout=60) as client:
            client.create_stream("orders", "orders")
        headers = {"Origin": page, "Content-Type": "text/plain"}
        sent = call(server.http, "POST", "/v1/streams/orders/records", b"0", headers)
        assert (sent.status, sent.headers["Access-Control-Allow-Origin"]) == (200, page)
        read = call(server.http, "GET", "/v1/streams/orders/records", headers={"Origin": page})
        assert (read.data["value"], read.headers["Access-Control-Allow-Origin"]) == ("0", page)
    finally:
        server.kill()


def test_rights_are_those_of_the_token_and_changes_are_noted(tmp_path: Path) -> None:
    with secured_server(tmp_path) as server, server.client() as admin:
        admin.create_stream("orders", "orders.>")
        admin.create_stream("pay", "pay.>")
        admin.publish("orders.a", b"0")
        admin.commit_cursor("secret", "pay", 0)
        token = admin.create_token("user:reader").text
        admin.add_acl("user:reader", "read", stream="orders", subject="orders.>")
        mine = {"Authorization": f"Bearer {token}"}

        def status(method: str, path: str, body: Any = None) -> int:
            return call(server.http, method, f"/v1/{path}", body, mine).status

        paths = ("cluster", "streams", "streams/orders", "streams/orders/cursors", "cursors")
        assert {call(server.http, "GET", f"/v1/{path}").status for path in paths} == {401}
        assert {status("GET", path) for path in paths} == {200}
        listed = call(server.http, "GET", "/v1/streams", headers=mine).data["streams"]
        assert [each["name"] for each in listed] == ["orders"]
        assert call(server.http, "GET", "/v1/cursors", headers=mine).data["total"] == 0
        assert status("GET", "streams/pay") == 403
        assert status("GET", "streams/pay/cursors/secret") == 403
        cursor = "streams/orders/cursors/billing"
        assert status("PUT", cursor, {"offset": 1}) == 403
        admin.add_acl("user:reader", "commit", stream="orders", cursor="bill*")
        assert status("PUT", cursor, {"to": "latest"}) == 200
        assert status("PUT", "streams/orders/cursors/audit", {"offset": 1}) == 403
        assert status("DELETE", "streams/pay/cursors/secret") == 403
        assert status("DELETE", cursor) == 204
        lines = [json.loads(line) for line in server.log_text.splitlines() if line[:1] == "{"]
        noted = [each for each in lines if "billing" in each.get("resource", "")]
        assert {each["principal"] for each in noted} == {"user:reader"}
        assert [each["outcome"] for each in noted] == ["refused", "done", "done"]
        assert all(each["peer"].startswith("127.0.0.1:") for each in noted)
