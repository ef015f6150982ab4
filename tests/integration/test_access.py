"""Rights on a real server with security on, over every port."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import grpc
import pytest

from jetstream_client import (
    Client,
    JetstreamError,
    NotFoundError,
    PermissionDeniedError,
    StreamExistsError,
    StreamNotFoundError,
    UnauthenticatedError,
)
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.generated import (
    common_pb2,
    consumers_pb2,
    cursors_pb2,
    groups_pb2,
)
from jetstream_protocol.services import Stub
from jetstream_server.node.bootstrap import Refused
from jetstream_server.security import node_proof
from jetstream_server.security.acl import CLUSTER_OPERATIONS, STREAM_OPERATIONS
from jetstream_server.security.requirements import RPCS, Scope
from tests.support import command
from tests.support.api import Api
from tests.support.fork_server import fork_server
from tests.support.secured import CREDENTIAL, SecuredServer, secured_server
from tests.support.server import ServerProcess
from tests.support.stages import secured_stage

NAMES = count(1)


server = secured_stage()


@pytest.fixture(scope="module")
def admin(server: SecuredServer) -> Iterator[Client]:
    with server.client() as client:
        client.create_stream("orders", "orders.>")
        client.publish("orders.eu", b"one")
        client.create_stream("secret", "secret.>")
        client.publish("secret.plan", b"two")
        yield client


@pytest.fixture
def principal() -> str:
    """Somebody new, without any rights."""
    return f"user:p{next(NAMES)}"


@pytest.fixture
def user(server: SecuredServer, admin: Client, principal: str) -> Iterator[Client]:
    with server.client(admin.create_token(principal).text) as client:
        yield client


def raw(
    server: SecuredServer, name: str, request: object, authorization: str, **headers: str
) -> Exception | None:
    """Call an RPC by its full name; its error. headers: further ones, `_` for `-`."""
    with grpc.insecure_channel(server.grpc) as channel:
        call = channel.unary_stream(
            name,
            request_serializer=lambda each: each.SerializeToString(),
            response_deserializer=bytes,
        )
        metadata = [(key.replace("_", "-"), value) for key, value in headers.items()]
        metadata += [("authorization", authorization)] if authorization else []
        try:
            next(iter(call(request, timeout=60, metadata=metadata)), None)  # type: ignore[arg-type]
        except grpc.RpcError as error:
            return error
    return None


def status(error: Exception | None) -> str:
    return "" if error is None else error.code().name  # type: ignore[attr-defined]


ASKED = {
    "stream": common_pb2.StreamRef(name="orders"),
    "name": "new",
    "subject": "new.>",
}


def request_of(name: str) -> object:
    """A request of that RPC, with what it takes of the above."""
    service, _, method = name.removeprefix("/jetstream.v1.").partition("/")
    modules = {"Consumers": consumers_pb2, "Cursors": cursors_pb2, "Groups": groups_pb2}
    module: Any = modules.get(service, pb)
    described = module.DESCRIPTOR.services_by_name[service].methods_by_name[method].input_type
    fields = {key: value for key, value in ASKED.items() if key in described.fields_by_name}
    if method == "TestAcl":
        fields = {"operation": "read", "stream": "orders"}
    return getattr(module, described.name)(**fields)


OURS = [name for name in sorted(RPCS) if name.startswith("/jetstream.v1.")]


@pytest.mark.parametrize("name", OURS)
def test_no_rpc_answers_a_stranger_a_wrong_token_or_one_without_rights(
    name: str, server: SecuredServer, admin: Client
) -> None:
    request = request_of(name)
    assert status(raw(server, name, request, "")) == "UNAUTHENTICATED"
    assert status(raw(server, name, request, "Bearer jst_nonsense")) == "UNAUTHENTICATED"
    assert status(raw(server, name, request, "Basic dTpw")) == "UNAUTHENTICATED"
    token = admin.create_token("user:nobody").text
    found = status(raw(server, name, request, f"Bearer {token}"))
    if RPCS[name].scope in (Scope.AUTHENTICATED, Scope.EACH):
        assert found != "UNAUTHENTICATED"
    else:
        assert found == "PERMISSION_DENIED"


@pytest.mark.parametrize("name", OURS)
def test_a_nodes_proof_opens_what_is_between_nodes_and_nothing_else(
    name: str, server: SecuredServer, admin: Client
) -> None:
    node = admin.describe_cluster().nodes[0]

    def proof(incarnation: int, secret: bytes = CREDENTIAL.encode(), target: int = 0) -> str:
        run = 0 if incarnation == node_proof.BOOTSTRAP else 5
        claim = node_proof.Claim(1, run, time.time_ns() // 1000)
        return node_proof.proof(secret, name, claim, target=target, incarnation=incarnation)

    request, right = request_of(name), proof(node.incarnation)
    found = status(raw(server, name, request, right))
    opened = RPCS[name].nodes or RPCS[name].scope is Scope.NODE
    if name.endswith("/Bootstrap") or not opened:
        assert found == "PERMISSION_DENIED"
    else:
        assert found not in ("PERMISSION_DENIED", "UNAUTHENTICATED")
    for wrong in (
        right,  # Overheard, and shown again.
        proof(node.incarnation, b"another credential"),
        proof(node.incarnation, b""),
        proof(node.incarnation + 1),
        proof(node.incarnation, target=1),
        "Node 1:00",
        "Node x",
    ):
        assert status(raw(server, name, request, wrong)) == "UNAUTHENTICATED"
    if not name.endswith("/Bootstrap"):
        assert (
            status(raw(server, name, request, proof(node_proof.BOOTSTRAP))) == "PERMISSION_DENIED"
        )


def test_what_strangers_send_is_not_unpacked(server: SecuredServer) -> None:
    """Sixty kilobytes of gzip are sixty megabytes, which took the server a twentieth of a second
    each, before it looked at the token."""
    with grpc.insecure_channel(server.grpc) as channel:
        rpc = channel.unary_unary("/jetstream.v1.Streams/ListStreams")
        with pytest.raises(grpc.RpcError, match="'gzip' is disabled"):
            rpc(bytes(1 << 20), timeout=60, compression=grpc.Compression.Gzip)


def test_a_client_cannot_say_that_a_node_has_forwarded_its_request(
    server: SecuredServer, admin: Client
) -> None:
    """A forwarded request is not checked again for what its first node has checked: here the keys
    for the stream."""
    request = pb.CreateStreamRequest(
        name="unkeyed",
        subject="unkeyed.>",
        config=pb.StreamConfig(encryption=pb.ENCRYPTION_AES_256_GCM),
    )
    for headers in ({}, {"jetstream_forwarded": "1"}):
        error = raw(
            server,
            "/jetstream.v1.Streams/CreateStream",
            request,
            f"Bearer {server.admin}",
            **headers,
        )
        assert status(error) == "FAILED_PRECONDITION"
    assert "unkeyed" not in [stream.name for stream in admin.list_streams()]


def test_without_a_token_or_with_a_wrong_one_the_client_is_told_what_to_do(
    server: SecuredServer, admin: Client
) -> None:
    with server.client("") as nobody, pytest.raises(UnauthenticatedError, match="JETSTREAM_TOKEN"):
        nobody.list_streams()
    wrong = f"{server.admin[:-4]}AAAA"
    with server.client(wrong) as liar, pytest.raises(UnauthenticatedError, match="wrong") as found:
        liar.list_streams()
    assert wrong not in str(found.value)


def write(client: Client) -> None:
    with client.publisher("mine.a", via="direct") as publisher:
        publisher.send(b"x").result()


RIGHTS: dict[str, Callable[[Client], object]] = {
    "create": lambda client: client.create_stream("mine", "mine.>"),
    "describe": lambda client: client.describe_stream("mine"),
    "alter": lambda client: client.alter_stream("mine", max_messages=10),
    "read": lambda client: client.fetch("mine"),
    "commit": lambda client: client.commit_cursor("mine", "mine", 0),
    "purge": lambda client: client.purge_stream("mine"),
    "write": write,
    "delete": lambda client: client.delete_stream("mine"),
    "cluster_alter": lambda client: client.drain_node(0, undo=True),
    "security_alter": lambda client: client.list_tokens(),
}


def test_every_right_lets_do_just_what_it_says(admin: Client, user: Client, principal: str) -> None:
    assert {*RIGHTS, "cluster_describe"} == {*STREAM_OPERATIONS, *CLUSTER_OPERATIONS}
    for operation, act in RIGHTS.items():
        if operation == "commit":  # Whoever does not read has no position, either.
            admin.add_acl(principal, "read", stream="mine", subject="mine.>")
        with pytest.raises(PermissionDeniedError, match=f"`{operation}`.*acl add {principal}"):
            act(user)
        where = {} if "_" in operation else {"stream": "mine", "subject": "mine.>"}
        rule = admin.add_acl(principal, operation, **where)  # type: ignore[arg-type]
        assert user.test_acl(operation, **where).allowed  # type: ignore[arg-type]
        act(user)
        if operation in ("describe", "delete"):
            continue  # The client looks up by name what it alters; and what is gone is gone.
        admin.remove_acl(rule.id)
        with pytest.raises(PermissionDeniedError):
            act(user)


def test_the_right_to_a_name_is_not_the_right_to_a_subject(
    admin: Client, user: Client, principal: str
) -> None:
    admin.add_acl(principal, ["create", "read"], stream="*", subject="orders.>")
    with pytest.raises(PermissionDeniedError):
        user.create_stream("trick", "secret.>")
    with pytest.raises(PermissionDeniedError):
        user.create_stream("trick", ">")
    with pytest.raises(StreamNotFoundError):
        user.fetch("secret")
    assert user.fetch("orders")[0].value == b"one"


def test_a_stream_that_one_may_not_know_of_is_as_one_that_is_not_there(
    admin: Client, user: Client, principal: str
) -> None:
    admin.add_acl(principal, "read", stream="orders", subject="orders.>")
    assert [stream.name for stream in user.list_streams()] == ["orders"]
    told = []
    for name in ("secret", "missing"):
        with pytest.raises(PermissionDeniedError) as found:
            user.describe_stream(name)
        told.append(str(found.value).replace(name, "NAME"))
    assert told[0] == told[1]
    hidden = admin.describe_stream("secret").id
    gone = admin.create_stream("gone", "gone").id
    admin.delete_stream("gone")
    for stream_id in (hidden, gone):
        with pytest.raises(StreamNotFoundError):
            user.fetch(stream_id)


def test_who_may_read_elsewhere_under_any_name_learns_no_other_name(
    server: SecuredServer, admin: Client, user: Client, principal: str
) -> None:
    if "twins" not in {each.name for each in admin.list_streams()}:
        for subject in ("twins.a", "twins.b"):
            admin.create_stream("twins", subject, allow_same_name=True)
    admin.add_acl(principal, "all", stream="*", subject="mine.>")
    told: dict[str, set[str]] = {}

    def ask(what: str, name: str, call: Callable[[], object]) -> None:
        with pytest.raises(JetstreamError) as found:
            call()
        said = f"{type(found.value).__name__}: {found.value}".replace("@secret.>", "")
        told.setdefault(what, set()).add(re.sub(rf"\b{name}\b", "NAME", said))

    for name in ("secret", "twins", "absent"):
        ask("describe", name, lambda: user.describe_stream(name))  # noqa: B023
        ask("fetch", name, lambda: user.fetch(f"{name}@secret.>"))  # noqa: B023
        ask("commit", name, lambda: user.commit_cursor("mine", name, 0))  # noqa: B023
        ask("delete", name, lambda: user.delete_stream(name))  # noqa: B023
        ask("group", name, lambda: next(user.consume_group(name, "mine")))  # noqa: B023
        ask("consumer", name, lambda: user.create_consumer(name, "mine"))  # noqa: B023
    assert {what: len(each) for what, each in told.items()} == dict.fromkeys(told, 1), told
    # Whose rule is about the subjects of a stream is told what it lacks.
    admin.add_acl(principal, "read", stream="secret", subject="secret.plan")
    with pytest.raises(PermissionDeniedError, match="lacks the right `read`"):
        user.fetch("secret")


def test_the_name_of_a_keyed_group_tells_nothing_of_streams_that_one_may_not_know_of(
    admin: Client, user: Client, principal: str
) -> None:
    admin.create_group("hidden", "hidden.>", streams=2)
    admin.add_acl(principal, "read", stream="hidden", subject=">")
    with pytest.raises(StreamNotFoundError, match=r"there is no stream 'hidden'$"):
        user.describe_stream("hidden")
    admin.add_acl(principal, "read", stream="hidden*", subject=">")
    with pytest.raises(StreamNotFoundError, match="hidden-0 to hidden-1"):
        user.describe_stream("hidden")


def test_the_right_to_every_stream_is_none_to_the_servers_own(
    admin: Client, user: Client, principal: str
) -> None:
    admin.record_activity()
    admin.commit_cursor("hidden", "secret", 0)
    admin.add_acl(principal, "all", stream="*", subject=">")
    admin.add_acl(principal, "read", stream="*s", subject=">")
    admin.add_acl(principal, "all", allow=False, stream="secret")
    assert user.fetch("orders")
    for own in ("__cursors", "__activity"):
        with pytest.raises(JetstreamError):
            user.fetch(own)
        with pytest.raises(JetstreamError):
            user.alter_stream(own, min_insync_replicas=1)
        assert own not in {each.name for each in user.list_streams(internal=True)}
    named = admin.add_acl(principal, "read", stream="__act*", subject=">")
    assert user.fetch("__activity")
    admin.remove_acl(named.id)
    admin.add_acl(principal, "cluster_alter")
    assert user.fetch("__activity")
    admin.add_acl(principal, "read", allow=False, stream="*")
    with pytest.raises(PermissionDeniedError):
        user.fetch("__activity")


def test_a_name_that_is_taken_tells_nothing_of_what_has_it(
    admin: Client, user: Client, principal: str
) -> None:
    admin.add_acl(principal, "create", stream="*", subject="free.>")
    with pytest.raises(StreamExistsError) as found:
        user.create_stream("secret", "free.>")
    assert str(found.value) == "the name 'secret' is taken: choose another one"


def test_a_denial_wins_and_a_rule_for_everybody_holds_for_each(
    admin: Client, user: Client, principal: str
) -> None:
    everybody = admin.add_acl("*", "read", stream="orders", subject="orders.>")
    assert user.fetch("orders")
    denial = admin.add_acl(principal, "read", allow=False, stream="ord*")
    with pytest.raises(PermissionDeniedError):
        user.fetch("orders")
    assert admin.fetch("orders")
    for rule in (everybody, denial):
        admin.remove_acl(rule.id)
    with pytest.raises(NotFoundError):
        admin.remove_acl(denial.id)


def until_refused(act: Callable[[], object], refused: type[JetstreamError]) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            act()
        except refused:
            return
        assert time.monotonic() < deadline, "it is allowed still"


def test_a_change_of_rules_reaches_open_connections(
    admin: Client, user: Client, principal: str
) -> None:
    admin.create_stream("wait", "wait.>")
    rule = admin.add_acl(principal, "read", stream="wait", subject="wait.>")
    user.fetch("wait")  # Its connection is open.
    admin.remove_acl(rule.id)
    until_refused(lambda: user.fetch("wait"), PermissionDeniedError)


def test_a_revoked_token_is_refused_on_connections_that_are_open(
    server: SecuredServer, admin: Client, principal: str
) -> None:
    made = admin.create_token(principal)
    admin.add_acl(principal, "read", stream="orders", subject="orders.>")
    with server.client(made.text) as user:
        assert user.fetch("orders")
        admin.revoke_token(made.token.id)
        until_refused(lambda: user.fetch("orders"), UnauthenticatedError)
        until_refused(user.list_streams, UnauthenticatedError)
    assert made.token.id not in [token.id for token in admin.list_tokens()]


def test_an_expired_token_is_refused_on_connections_that_are_open(
    server: SecuredServer, admin: Client, principal: str
) -> None:
    admin.add_acl(principal, "read", stream="orders", subject="orders.>")
    for lifetime in (1.0, 5.0, 25.0):
        with server.client(admin.create_token(principal, lifetime=lifetime).text) as user:
            try:
                assert user.fetch("orders")
            except UnauthenticatedError:
                continue  # The machine stood still for so long.
            until_refused(lambda: user.fetch("orders"), UnauthenticatedError)
            return
    raise AssertionError("no token was of use before it expired")


def test_the_first_administrator_is_made_once(tmp_path: Path) -> None:
    with secured_server(tmp_path / "data") as server:
        with pytest.raises(Refused, match=r"^user:admin is the administrator already: ask there"):
            server.bootstrap("user:other")
        again = bootstrap_command(server, "--config", str(server.config_file))
    assert (again.returncode, again.stdout) == (1, "")
    assert again.stderr.startswith("error: user:admin is the administrator already")
    assert "docs/security.md, The first administrator" in again.stderr


def bootstrap_command(
    server: ServerProcess, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "jetstream_server", "token", "--bootstrap", *arguments]
    return fork_server.run(command, environment=server.environment | environment)


def test_the_first_administrator_s_command_says_on_which_server(tmp_path: Path) -> None:
    server = SecuredServer(tmp_path / "data")
    server.start()
    try:
        there = "--port-base", str(server.port_base)
        other = bootstrap_command(server, *there, JETSTREAM_CREDENTIAL="another-credential-77")
        assert other.returncode == 1
        said = f"error: the credential is not the one of the server at {server.grpc}, or"
        assert other.stderr.startswith(said)
        both = bootstrap_command(server, *there, "--config", str(server.config_file))
        assert (both.returncode, both.stdout) == (2, "")
        made = bootstrap_command(server, *there)
        assert (made.returncode, made.stderr) == (0, f"user:admin made at {server.grpc}\n")
        with server.client(made.stdout.strip()) as client:
            assert client.list_tokens()
    finally:
        server.kill()


def test_an_administrator_of_a_server_that_ignores_tokens_is_told_so(
    own_server: ServerProcess,
) -> None:
    own_server.start()
    elsewhere = {"JETSTREAM_SERVERS": "localhost:9600", "JETSTREAM_CREDENTIAL": CREDENTIAL}
    nodes = [{"id": 0, "grpc": own_server.grpc}]
    made = bootstrap_command(own_server, **elsewhere, JETSTREAM_NODES=json.dumps(nodes))
    assert made.returncode == 0
    assert made.stdout.startswith("jst_")
    assert made.stderr.splitlines() == [
        f"user:admin made at {own_server.grpc}",
        f"warning: security is off at {own_server.grpc}: it ignores tokens",
        "JETSTREAM_SERVERS is not read here: say --config or --port-base",
    ]


def test_the_command_line_makes_tokens_and_rules(
    server: SecuredServer, admin: Client, principal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*arguments: str, code: int = 0) -> str:
        done = command.jetstream("--server", server.grpc, *arguments)
        assert done.returncode == code, done
        return done.stdout + done.stderr

    monkeypatch.setenv("JETSTREAM_TOKEN", server.admin)
    token = run("token", "create", principal, "--expires", "1h").strip()
    token_id = token.split("_")[1]
    assert token_id in run("token", "list")
    assert token not in run("token", "list", "--json")
    assert "say the subject" in run(
        "acl", "add", principal, "--allow", "read", "--stream", "orders", code=2
    )
    said = run(
        "acl", "add", principal, "--allow", "read", "--subject", "orders.>", "--stream", "o*"
    )
    rule = said.removeprefix("rule ").partition(":")[0]
    assert principal in run("acl", "list")
    tested = run("acl", "test", "read", "--stream", "orders", "--principal", principal)
    assert "allowed" in tested
    assert "security is off" not in tested
    monkeypatch.setenv("JETSTREAM_TOKEN", token)
    assert "denied" in run("acl", "test", "delete", "--stream", "orders", code=1)
    assert "may not see or change the tokens and rules of the cluster" in run(
        "token", "list", code=1
    )
    assert "one" in run("fetch", "orders", "--format", "%v\\n")
    assert "`delete`" in run("stream", "delete", "orders", "--yes", code=1)
    monkeypatch.setenv("JETSTREAM_TOKEN", server.admin)
    run("acl", "remove", rule, "--yes")
    run("token", "revoke", token_id)
    run("token", "revoke", token_id, code=3)


def test_http_wants_a_token_but_for_probes(server: SecuredServer, admin: Client) -> None:
    def get(path: str, token: str = "") -> int:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        request = urllib.request.Request(server.http + path, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            error.close()
            return error.code

    assert get("/healthz") == get("/readyz") == get("/metrics", server.admin) == 200
    assert get("/metrics") == get("/metrics", "jst_wrong") == 401
    assert failures(server)["authentication"] >= 2
    before = failures(server)["authorization"]
    assert get("/metrics", admin.create_token("user:unknown").text) == 403
    assert failures(server)["authorization"] == before + 1


def failures(server: SecuredServer) -> dict[str, float]:
    """As the metrics count them."""
    headers = {"Authorization": f"Bearer {server.admin}"}
    with urllib.request.urlopen(
        urllib.request.Request(f"{server.http}/metrics", headers=headers), timeout=60
    ) as answer:
        text = answer.read().decode()
    found = re.findall(r"^jetstream_(\w+)_failures_total (\S+)$", text, re.MULTILINE)
    return {name: float(value) for name, value in found}


def test_the_api_of_the_console_lets_do_what_grpc_does_and_no_more(
    server: SecuredServer, admin: Client, principal: str
) -> None:
    token = admin.create_token(principal).text

    def asked(
        path: str, authorization: str = "", body: bytes | None = None, method: str | None = None
    ) -> int:
        headers = {"Content-Type": "application/json"}
        if authorization:
            headers["Authorization"] = authorization
        where = path if path.startswith("/v1/") else f"/api/v1/{path}"
        request = urllib.request.Request(server.http + where, body, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            error.close()
            return error.code

    bearer = f"Bearer {token}"
    records = "/v1/streams/orders/records"
    paths = (
        "cluster",
        "groups",
        "/v1/streams",
        "/v1/streams/orders",
        "/v1/streams/nobody",
        records,
    )
    for nothing in ("", "Bearer", "Bearer ", "Bearer wrong", f"Basic {token}", node_proof.SCHEME):
        assert {asked(path, nothing) for path in paths} == {401}
        assert asked("streams", nothing, b'{"name": "n", "subject": "n"}') == 401
        assert asked("nodes/0/drain", nothing, b'{"draining": true}') == 401
    assert asked("cluster", bearer) == 200
    assert asked(records, bearer) in (403, 404)
    assert asked("nodes/0/drain", bearer, b'{"draining": true}') == 403
    admin.add_acl(principal, ["read", "commit"], stream="orders", subject="orders.>")
    assert asked(records, bearer) == 200
    assert asked("/v1/streams/secret/records", bearer) in (403, 404)
    assert asked("streams/orders/alter", bearer, b'{"config": {"max_bytes": "9"}}') == 403
    assert {asked(path) for path in ("/v1/cursors", "groups")} == {401}
    assert {asked(path, bearer) for path in ("/v1/cursors", "groups")} == {200}
    move, mine = b'{"to": "earliest"}', "/v1/streams/orders/cursors/mine"
    assert asked(mine, "", move, "PUT") == 401
    assert asked(mine, bearer, move, "PUT") == 200
    assert asked(mine.replace("orders", "secret"), bearer, move, "PUT") in (403, 404)
    assert asked(mine.replace("orders", "secret"), bearer, None, "DELETE") in (403, 404)
    assert asked(mine, bearer, None, "DELETE") == 204


def test_the_same_rule_twice_is_one_and_wrong_ones_are_refused(
    admin: Client, principal: str
) -> None:
    rule = admin.add_acl(principal, "describe", stream="a*")
    assert admin.add_acl(principal, "describe", stream="a*") == rule
    for wrong in (
        {"principal": "alice", "operations": "describe", "stream": "a"},
        {"principal": principal, "operations": "fly", "stream": "a"},
        {"principal": principal, "operations": "describe"},
        {"principal": principal, "operations": "cluster_alter", "stream": "a"},
        {"principal": principal, "operations": "describe", "stream": "a b"},
        {"principal": principal, "operations": "describe", "stream": "a", "subject": "a..b"},
    ):
        with pytest.raises(JetstreamError) as found:
            admin.add_acl(**wrong)  # type: ignore[arg-type]
        assert found.value.code == "invalid_request"


def test_a_token_is_for_a_principal(server: SecuredServer, admin: Client) -> None:
    with pytest.raises(JetstreamError, match="user:NAME"):
        admin.create_token("admin")
    assert not [token for token in admin.list_tokens() if token.principal == "admin"]


def test_no_secret_is_in_anything_that_is_written(
    server: SecuredServer, admin: Client, principal: str
) -> None:
    made = admin.create_token(principal)
    wrong = f"{made.text[:-4]}BBBB"
    said = []
    for token in (made.text, wrong, "not a token but secret-4711"):
        try:
            with server.client(token.replace(" ", "-")) as client:
                client.describe_stream("secret")
        except JetstreamError as error:
            said.append(str(error))
    said += [repr(admin.list_tokens()), repr(made), repr(admin.config), server.log_text]
    said.append(Path(f"/proc/{server.pid}/cmdline").read_text())
    with urllib.request.urlopen(
        urllib.request.Request(
            f"{server.http}/metrics", headers={"Authorization": f"Bearer {server.admin}"}
        )
    ) as answer:
        said.append(answer.read().decode())
    written = "\n".join(said)
    secrets = [made.text, wrong, server.admin, CREDENTIAL, "secret-4711", "planted"]
    secrets += [text.split("_", 2)[2] for text in (made.text, wrong, server.admin)]
    assert [secret for secret in secrets if secret in written] == []
    assert "scrypt" not in written
    assert "sha256$" not in written
    assert '"event": "audit"' in server.log_text


def test_a_consumer_group_is_for_those_who_may_read_all_of_its_streams(
    admin: Client, user: Client, principal: str
) -> None:
    for number in range(2):
        admin.create_stream(f"jobs-{number}", "jobs.>", group="jobs")
    admin.add_acl(principal, ["read", "commit"], stream="jobs-0", subject="jobs.>")
    told = []
    for source in ("jobs", "missing"):
        with pytest.raises(PermissionDeniedError) as found:
            user.consume_group(source, "workers")
        told.append(str(found.value).replace(source, "NAME"))
    assert told[0] == told[1]
    with admin.consume_group("jobs", "workers"):
        assert user.list_groups() == []
        admin.add_acl(principal, ["read", "commit"], stream="jobs-1", subject="jobs.>")
        with user.consume_group("jobs", "workers"):
            assert [group.name for group in user.list_groups()] == ["workers"]
    for number in range(2):
        admin.delete_stream(f"jobs-{number}")


def audited(server: SecuredServer, **fields: str) -> list[dict[str, Any]]:
    lines = (json.loads(each) for each in server.log_text.splitlines() if each.startswith("{"))
    return [line for line in lines if line["event"] == "audit" and fields.items() <= line.items()]


def test_whoever_hangs_up_in_the_middle_of_a_change_does_not_escape_the_audit_log(
    server: SecuredServer, admin: Client
) -> None:
    names = [f"hung-up-{number}" for number in range(20)]
    for name in names:
        admin.create_stream(name, name)
    with grpc.insecure_channel(server.grpc) as channel:
        delete = Stub("Streams", channel).DeleteStream.future
        for number, name in enumerate(names):
            request = pb.DeleteStreamRequest(stream=common_pb2.StreamRef(name=name))
            deleting = delete(request, metadata=[("authorization", f"Bearer {server.admin}")])
            time.sleep(0.001 + 0.0005 * number)
            deleting.cancel()
    admin.create_stream("after-them", "after-them")
    gone = set(names) - {each.name for each in admin.list_streams()}
    operation = "/jetstream.v1.Streams/DeleteStream"
    noted = {line["resource"].partition("@")[0] for line in audited(server, operation=operation)}
    assert gone - noted == set()


class FromElsewhere(urllib.request.HTTPHandler):
    """Connects from another address of this machine."""

    source = "127.0.0.9"

    def http_open(self, request: urllib.request.Request) -> Any:
        def connect(host: str, **options: Any) -> http.client.HTTPConnection:
            return http.client.HTTPConnection(host, source_address=(self.source, 0), **options)

        return self.do_open(connect, request)


def test_the_audit_log_has_the_address_of_who_sends_a_request_over_http(
    server: SecuredServer, admin: Client, principal: str
) -> None:
    token = admin.create_token(principal).text
    opener = urllib.request.build_opener(FromElsewhere())

    def asked(path: str, **headers: str) -> int:
        request = urllib.request.Request(
            f"{server.http}/api/v1/{path}",
            data=b"{}",
            headers={"Content-Type": "application/json", **headers},
        )
        try:
            with opener.open(request, timeout=60) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            error.close()
            return error.code

    assert asked("nodes/0/drain", Authorization=f"Bearer {token}") == 403
    (line,) = audited(server, principal=principal)
    assert line["peer"].startswith(f"{FromElsewhere.source}:")
    # Without a token there is a line, too.
    assert asked("streams/orders/alter") == 401
    found = audited(server, principal="unknown", operation="/api/v1/streams/{stream}/alter")
    assert [line["peer"].partition(":")[0] for line in found] == [FromElsewhere.source]
    # Nobody but a node says where a call comes from.
    for claimed in ("10.9.9.9%3A1 ", f"10.9.9.9%3A1 {'0' * 64}", "10.9.9.9:1"):
        error = raw(
            server,
            "/jetstream.v1.Security/ListTokens",
            pb.ListTokensRequest(),
            f"Bearer {token}",
            jetstream_origin=claimed,
        )
        assert status(error) == "PERMISSION_DENIED"
    assert "10.9.9.9" not in server.log_text


def test_how_much_nodes_hold_is_told_to_who_may_describe_the_cluster(
    server: SecuredServer, admin: Client, user: Client, principal: str
) -> None:
    """It counts streams that the caller may not know of."""
    token = admin.create_token(principal).text
    api = Api(server.grpc)

    def told(bearer: str) -> bool:
        answer = api.cluster.DescribeCluster(
            pb.DescribeClusterRequest(readiness=True),
            timeout=60,
            metadata=[("authorization", f"Bearer {bearer}")],
        )
        return bool(answer.nodes[0].HasField("use"))

    assert told(server.admin)
    assert not told(token)
    admin.add_acl(principal, "cluster_describe")
    assert told(token)
    api.close()


def test_nothing_over_http_stays_in_a_cache_or_names_the_software(
    server: SecuredServer, admin: Client
) -> None:
    for path in ("/healthz", "/metrics", "/", "/nothing", "/v1/streams/orders/records"):
        request = urllib.request.Request(
            server.http + path, headers={"Authorization": f"Bearer {server.admin}"}
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                headers = answer.headers
        except urllib.error.HTTPError as error:
            headers = error.headers
            error.close()
        assert headers["Cache-Control"] == ("no-cache" if path == "/" else "no-store"), path
        assert headers["Server"] is None


def test_the_last_hour_has_only_what_its_reader_may_know(
    server: SecuredServer, admin: Client, user: Client, principal: str
) -> None:
    for stream in ("orders", "secret"):
        admin.commit_cursor("hourly", stream, 0)
    with pytest.raises(PermissionDeniedError):
        user.describe_history("orders")
    admin.add_acl(principal, ["describe", "read"], stream="orders", subject="orders.>")
    with pytest.raises(PermissionDeniedError):
        user.describe_history()
    with pytest.raises(PermissionDeniedError):
        user.describe_history(node=0)
    with pytest.raises((PermissionDeniedError, StreamNotFoundError)):
        user.describe_history("secret")
    assert {each.name for each in user.describe_history("orders").series} <= {
        "records", "bytes", "size_bytes", "isr",
    }  # fmt: skip
    readable = admin.describe_stream("orders").id
    assert {each.stream_id for each in user.describe_history(cursor="hourly").series} <= {readable}
    assert {each.name for each in admin.describe_history().series} >= {"disk_free_bytes"}


def test_health_and_bundles_say_that_they_saw_only_what_their_principal_may_describe(
    server: SecuredServer,
    admin: Client,
    principal: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Else an operator's script restarts the next node while streams are out of sync."""
    monkeypatch.setenv("JETSTREAM_TOKEN", admin.create_token(principal).text)
    bundle = ("debug", "bundle", "--output", str(tmp_path / "bundle.tar.gz"))

    def said(*arguments: str) -> str:
        done = command.jetstream("--server", server.grpc, *arguments)
        return done.stdout + done.stderr

    admin.add_acl(principal, ["all"])
    note = "note: only the streams that you may describe were looked at, 0:"
    assert note in said("cluster", "health")
    assert note in said(*bundle)
    admin.add_acl(principal, ["describe"], stream="*")
    assert said("cluster", "health") == "healthy\n"
    assert "note" not in said(*bundle)
