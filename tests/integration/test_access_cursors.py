"""`commit`, the right to cursors and consumer groups: a token that only reads leaves those of
others alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count

import pytest

from jetstream_client import (
    Client,
    InvalidRequestError,
    NotFoundError,
    PermissionDeniedError,
)
from jetstream_protocol.generated import common_pb2, cursors_pb2
from jetstream_protocol.services import Stub
from tests.support import command
from tests.support.api import Api
from tests.support.secured import SecuredServer
from tests.support.stages import secured_stage

NAMES = count(1)


server = secured_stage()


@pytest.fixture(scope="module")
def admin(server: SecuredServer) -> Iterator[Client]:
    with server.client() as client:
        client.create_stream("orders", "orders.>")
        for number in range(10):
            client.publish("orders.eu", b"%d" % number)
        yield client


def signed_in(server: SecuredServer, admin: Client, principal: str) -> Client:
    return server.client(admin.create_token(principal).text)


@pytest.fixture
def reports(server: SecuredServer, admin: Client) -> Iterator[Client]:
    """May read, and nothing else."""
    principal = f"user:reports{next(NAMES)}"
    admin.add_acl(principal, "read", stream="orders", subject="orders.>")
    with signed_in(server, admin, principal) as client:
        yield client


@pytest.fixture
def billing(server: SecuredServer, admin: Client) -> Iterator[Client]:
    """May read, and use cursors and consumer groups whose name begins with `billing`."""
    principal = f"user:billing{next(NAMES)}"
    admin.add_acl(principal, "read", stream="orders", subject="orders.>")
    admin.add_acl(principal, "commit", stream="orders*", cursor="billing*")
    with signed_in(server, admin, principal) as client:
        yield client


def test_whoever_only_reads_moves_and_deletes_no_cursor(
    admin: Client, reports: Client, billing: Client
) -> None:
    billing.commit_cursor("billing", "orders", 4)
    refused = r"cursor or consumer group billing in orders@orders\.>.*`commit`.*--cursor billing"
    for act in (
        lambda: reports.commit_cursor("billing", "orders", 9),
        lambda: reports.seek_cursor("billing", "orders", "latest"),
        lambda: reports.delete_cursor("billing", "orders"),
    ):
        with pytest.raises(PermissionDeniedError, match=refused):
            act()
    found = reports.describe_cursor("billing", "orders")
    assert found.offset == 4
    assert found.creator.startswith("user:billing")
    assert reports.fetch("orders")[0].value == b"0"


def test_whoever_only_reads_steals_no_streams_from_a_consumer_group(
    reports: Client, billing: Client
) -> None:
    with billing.consume_group("orders", "billing-workers") as member:
        assert next(member).value == b"0"
        with pytest.raises(PermissionDeniedError, match=r"billing-workers.*`commit`"):
            reports.consume_group("orders", "billing-workers")
        assert len(reports.describe_group("billing-workers").members) == 1
        assert reports.describe_group("billing-workers").creator.startswith("user:billing")


def test_a_group_s_name_is_not_taken_for_other_streams_while_its_members_are_away(
    server: SecuredServer, admin: Client, billing: Client
) -> None:
    """Whoever has every right on streams of its own has that to every name, but only there."""
    principal = f"user:other{next(NAMES)}"
    admin.add_acl(principal, "all", stream="mine*", subject="mine.>")
    with signed_in(server, admin, principal) as other:
        other.create_stream("mine", "mine.>")
        with billing.consume_group("orders", "billing-nightly") as member:
            next(member)
            with pytest.raises(PermissionDeniedError, match="another consumer group") as refused:
                other.consume_group("mine", "billing-nightly")
            assert "orders" not in str(refused.value)
        with pytest.raises(PermissionDeniedError, match="another consumer group"):
            other.consume_group("mine", "billing-nightly")
        with billing.consume_group("orders", "billing-nightly") as member:
            next(member)
        other.consume_group("mine", "nightly").close()
        other.delete_stream("mine")
    # Whoever has the right on both may do it, and what is gone is in nobody's way.
    admin.create_stream("later", "later.>")
    admin.consume_group("later", "nightly").close()
    admin.consume_group("orders", "nightly").close()


def test_whoever_may_not_delete_a_consumer_group_does_not_learn_what_it_reads(
    server: SecuredServer, admin: Client, billing: Client
) -> None:
    principal = f"user:other{next(NAMES)}"
    admin.add_acl(principal, "all", stream="mine*", subject="mine.>")
    with billing.consume_group("orders", "billing-secret") as member:
        next(member)
    with signed_in(server, admin, principal) as other:
        with pytest.raises(PermissionDeniedError, match="on all that it reads") as refused:
            other.delete_group("billing-secret")
        assert "orders" not in str(refused.value)
    with signed_in(server, admin, f"user:nobody{next(NAMES)}") as nobody:
        for name in ("billing-secret", "billing-absent"):  # Nor whether there is one.
            with pytest.raises(PermissionDeniedError, match=f"'{name}' needs the rights"):
                nobody.delete_group(name)
    billing.delete_group("billing-secret")
    lines = [json.loads(line) for line in server.log_text.splitlines() if line[:1] == "{"]
    noted = [
        line
        for line in lines
        if line["event"] == "audit" and "billing-secret" in line.get("resource", "")
    ]
    noted = [line for line in noted if "Cursor" not in line["operation"]]
    noted = [line for line in noted if not line["principal"].startswith("user:nobody")]
    assert [line["outcome"] for line in noted] == ["refused", "done"]
    assert noted[0]["principal"] == principal
    assert noted[1]["principal"].startswith("user:billing")
    assert all(line["peer"] for line in noted)


def test_a_name_that_the_rule_does_not_cover_is_another_s(admin: Client, billing: Client) -> None:
    admin.commit_cursor("audit", "orders", 4)
    for name in ("audit", "bill", "my-billing"):
        with pytest.raises(PermissionDeniedError):
            billing.commit_cursor(name, "orders", 1)
        with pytest.raises(PermissionDeniedError):
            billing.consume_group("orders", name)
    with pytest.raises(PermissionDeniedError):
        billing.delete_cursor("audit", "orders")
    for name in ("billing", "billing-2"):
        billing.commit_cursor(name, "orders", 1)
        billing.delete_cursor(name, "orders")
    with pytest.raises(NotFoundError):
        admin.describe_cursor("billing-2", "orders")


def test_a_denial_wins_and_commit_needs_read(server: SecuredServer, admin: Client) -> None:
    principal = f"user:denied{next(NAMES)}"
    admin.add_acl(principal, "all", stream="orders", subject="orders.>")
    admin.add_acl(principal, "commit", allow=False, cursor="audit*")
    with signed_in(server, admin, principal) as client:
        client.commit_cursor("mine", "orders", 1)
        with pytest.raises(PermissionDeniedError, match="`commit`"):
            client.commit_cursor("audit-2", "orders", 1)
        assert not client.test_acl("commit", stream="orders", cursor="audit-2").allowed
        assert client.test_acl("commit", stream="orders", cursor="mine").allowed
        denial = admin.add_acl(principal, "read", allow=False, stream="orders")
        with pytest.raises(PermissionDeniedError, match="`read`"):
            client.commit_cursor("mine", "orders", 1)
        admin.remove_acl(denial.id)


def test_the_right_to_a_name_on_all_streams_shows_no_stream(
    server: SecuredServer, admin: Client
) -> None:
    principal = f"user:blind{next(NAMES)}"
    admin.add_acl(principal, "commit", cursor="blind*")
    with signed_in(server, admin, principal) as client:
        assert client.list_streams() == []
        with pytest.raises(PermissionDeniedError):
            client.describe_stream("orders")
        admin.add_acl(principal, "read", stream="orders", subject="orders.>")
        assert [stream.name for stream in client.list_streams()] == ["orders"]
        client.commit_cursor("blind", "orders", 1)


def test_a_cursor_of_a_stream_that_is_gone_is_deleted_by_who_may_use_it(
    admin: Client, server: SecuredServer
) -> None:
    principal = f"user:gone{next(NAMES)}"
    admin.create_stream("gone", "gone.>")
    admin.add_acl(principal, "read", stream="gone", subject="gone.>")
    with signed_in(server, admin, principal) as client:
        admin.commit_cursor("left", "gone", 0)
        admin.delete_stream("gone")
        with pytest.raises(PermissionDeniedError, match="`commit`"):
            client.delete_cursor("left", "gone@gone.>")
        admin.add_acl(principal, "commit", stream="gone", subject="gone.>", cursor="left")
        client.delete_cursor("left", "gone@gone.>")


def test_a_rule_limits_nothing_but_commit_to_cursors(admin: Client) -> None:
    for operations in ("read", "all"):
        with pytest.raises(InvalidRequestError, match="must name the operation commit"):
            admin.add_acl("user:x", operations, subject=">", cursor="a*")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="invalid pattern of names of cursors"):
        admin.add_acl("user:x", "commit", cursor="a b")
    with pytest.raises(InvalidRequestError, match="for the operation commit"):
        admin.test_acl("read", stream="orders", cursor="a")
    limited = admin.add_acl("user:x", "commit", cursor="a*")
    unlimited = admin.add_acl("user:x", "commit", subject=">")
    assert (limited.stream, limited.subject, limited.cursor) == ("*", ">", "a*")
    assert unlimited.id != limited.id
    for rule in (limited, unlimited):
        admin.remove_acl(rule.id)


def test_the_commands_show_and_test_the_limit(
    server: SecuredServer, admin: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JETSTREAM_SERVERS", server.grpc)
    monkeypatch.setenv("JETSTREAM_TOKEN", server.admin)

    def run(*arguments: str) -> tuple[int, str]:
        done = command.jetstream(*arguments)
        return done.returncode, done.stdout

    code, said = run("acl", "add", "user:cli", "--allow", "commit", "--cursor", "cli-*")
    assert code == 0
    assert "user:cli, allow commit on streams * on >, cursors cli-*" in said
    code, said = run("acl", "list", "--principal", "user:cli", "--json")
    assert json.loads(said)["cursor"] == "cli-*"
    test = ("acl", "test", "commit", "--stream", "orders", "--principal", "user:cli", "--cursor")
    assert run(*test, "cli-1")[0] == 0
    assert run(*test, "other")[0] == 1


@pytest.mark.parametrize("empty", ["stream", "subject", "cursor"])
def test_an_empty_pattern_gives_no_right_to_everything(
    server: SecuredServer, admin: Client, empty: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a script passes it whose variable is not set: an empty stream was the whole cluster."""
    given = {"stream": "orders", "subject": "orders.>", "cursor": "a*"} | {empty: ""}
    with pytest.raises(InvalidRequestError, match=f"the {empty} is empty"):
        admin.add_acl("user:empty", "commit", **given)
    with pytest.raises(InvalidRequestError, match=f"the {empty} is empty"):
        admin.add_acl("user:empty", "all", **{empty: ""})  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match=f"the {empty} is empty"):
        admin.test_acl("commit", **given)
    monkeypatch.setenv("JETSTREAM_SERVERS", server.grpc)
    monkeypatch.setenv("JETSTREAM_TOKEN", server.admin)
    done = command.jetstream("acl", "add", "user:empty", "--allow", "all", f"--{empty}", "")
    assert done.returncode == 2, done
    assert f"the {empty} is empty" in done.stderr
    assert not [each for each in admin.list_acls() if each.principal == "user:empty"]


def test_an_empty_principal_is_not_everybody_or_the_caller(admin: Client) -> None:
    with pytest.raises(InvalidRequestError, match="the principal is empty"):
        admin.list_acls("")
    with pytest.raises(InvalidRequestError, match="the principal is empty"):
        admin.test_acl("security_alter", principal="")


def test_the_next_page_names_no_cursor_that_the_caller_may_not_see(
    server: SecuredServer, admin: Client, reports: Client
) -> None:
    admin.create_stream("hidden", "hidden.>")
    api = Api(server.grpc)
    metadata = [("authorization", f"Bearer {server.admin}")]
    names = [("orders", "a-first"), *(("hidden", f"b-{n:04}") for n in range(4100))]
    commits = [
        cursors_pb2.CommitCursorsRequest.Commit(
            name=name, stream=common_pb2.StreamRef(name=stream), offset=0
        )
        for stream, name in [*names, ("orders", "c-last")]
    ]
    stub = Stub("Cursors", api.channel)
    stub.CommitCursors(
        cursors_pb2.CommitCursorsRequest(commits=commits), timeout=60, metadata=metadata
    )
    token = admin.create_token("user:paged").text
    admin.add_acl("user:paged", "read", stream="orders", subject="orders.>")
    found, page = [], b""
    while True:
        answer = stub.ListCursors(
            cursors_pb2.ListCursorsRequest(page=page),
            timeout=60,
            metadata=[("authorization", f"Bearer {token}")],
        )
        found += [cursor.name for cursor in answer.cursors]
        page = answer.next_page
        assert b"hidden" not in page
        if not page:
            break
    api.close()
    assert {"a-first", "c-last"} <= {*found}
    assert len(found) == len({*found}), "each once"
    assert not [name for name in found if name.startswith("b-")]
    assert len([c for c in admin.list_cursors() if c.name.startswith("b-")]) == 4100
    admin.delete_stream("hidden")


def test_a_consumer_belongs_to_who_may_commit_its_name(
    admin: Client, reports: Client, billing: Client
) -> None:
    name = f"billing-{next(NAMES)}"
    with pytest.raises(PermissionDeniedError):
        reports.create_consumer("orders", name)
    with pytest.raises(PermissionDeniedError):
        billing.create_consumer("orders", "others")
    with billing.queue("orders", name) as queue:
        message = next(queue)
        assert message.ack()
    assert [each.name for each in reports.list_consumers("orders")] == [name]
    for refused in (reports.delete_consumer, reports.resume_consumer):
        with pytest.raises(PermissionDeniedError):
            refused("orders", name)
    with pytest.raises(PermissionDeniedError), reports.queue("orders", name) as queue:
        next(queue)
    billing.delete_consumer("orders", name)
    assert admin.list_consumers("orders") == []
