"""The SDK's stream calls against a real server, in both manners."""

from __future__ import annotations

import inspect

import pytest

from jetstream_client import (
    AmbiguousStreamError,
    AsyncClient,
    Client,
    InvalidRequestError,
    Stream,
    StreamExistsError,
    StreamNotFoundError,
)
from jetstream_client.transport.streams import Streams
from tests.support.loops import on_loop
from tests.support.server import ServerProcess


def test_a_stream_is_created_described_listed_and_deleted(client: Client) -> None:
    created = client.create_stream("whole", "whole.>", flush="none", acks="reply")
    assert (created.name, created.subject, created.flush) == ("whole", "whole.>", "none")
    described = client.describe_stream("whole")
    assert (described.log_start_offset, described.high_watermark) == (0, 0)
    assert (described.isr, described.leader, described.state) == ((0,), 0, "online")
    assert created in client.list_streams()
    client.delete_stream("whole")
    assert created not in client.list_streams()
    with pytest.raises(StreamNotFoundError, match="whole"):
        client.describe_stream("whole")


def test_creating_the_same_stream_again_finds_it(client: Client) -> None:
    first = client.create_stream("again", "again.>")
    assert client.create_stream("again", "again.>") == first
    with pytest.raises(StreamExistsError, match="another configuration"):
        client.create_stream("again", "again.>", flush="none")


def test_a_deleted_stream_comes_back_as_another(client: Client) -> None:
    first = client.create_stream("phoenix", "phoenix.>")
    client.publish("phoenix.x", b"old")
    client.delete_stream("phoenix")
    second = client.create_stream("phoenix", "phoenix.>")
    assert second.id != first.id
    assert len(client.fetch("phoenix")) == 0
    with pytest.raises(StreamNotFoundError):
        client.fetch(first)


def test_deleting_twice_is_an_error(client: Client) -> None:
    stream = client.create_stream("twice", "twice.>")
    client.delete_stream(stream)
    with pytest.raises(StreamNotFoundError):
        client.delete_stream(stream)
    with pytest.raises(StreamNotFoundError):
        client.delete_stream("twice")


def test_a_name_that_fits_several_streams_must_be_said_in_full(client: Client) -> None:
    client.create_stream("same", "same.a")
    with pytest.raises(
        StreamExistsError, match=r"'same' is taken \(subject same\.a\): .*--allow-same-name"
    ):
        client.create_stream("same", "same.b")
    client.create_stream("same", "same.b", allow_same_name=True)
    assert client.create_stream("same", "same.a").subject == "same.a"  # It is there already.
    client.publish("same.b", b"1")
    for ambiguous in (client.describe_stream, client.fetch, client.delete_stream):
        with pytest.raises(AmbiguousStreamError) as caught:
            ambiguous("same")
        assert caught.value.candidates == ("same@same.a", "same@same.b")
    assert client.fetch("same@same.b").values() == [b"1"]
    client.delete_stream("same@same.a")
    assert client.describe_stream("same").subject == "same.b"


def test_a_stream_is_named_by_text_by_id_or_by_itself(client: Client) -> None:
    stream = client.create_stream("named", "named.>")
    client.publish("named.x", b"1")
    for name in ("named", "named@named.>", stream.id, stream):
        (message,) = client.fetch(name)
        assert message.stream == "named"


def test_streams_can_be_listed_by_what_feeds_them(client: Client) -> None:
    client.create_stream("wide", "feeding.>")
    client.create_stream("narrow", "feeding.eu.*")
    names = lambda subject: [s.name for s in client.list_streams(subject)]  # noqa: E731
    assert names("feeding.eu.x") == ["wide", "narrow"]
    assert names("feeding.us.x") == ["wide"]
    assert names("elsewhere") == []


@pytest.mark.parametrize(
    ("name", "subject", "options"),
    [
        ("bad name", "a.b", {}),
        ("good", "a..b", {}),
        ("good", "a b", {}),
        ("good", "invalid.flush", {"flush": "often"}),
        ("good", "too.many", {"replicas": 5}),
    ],
)
def test_what_cannot_be_created_is_refused(
    client: Client, name: str, subject: str, options: dict[str, str]
) -> None:
    with pytest.raises(InvalidRequestError):
        client.create_stream(name, subject, **options)  # type: ignore[arg-type]


def test_a_subject_of_natss_own_needs_acks_off(client: Client) -> None:
    with pytest.raises(InvalidRequestError, match="acks"):
        client.create_stream("inboxes", "_INBOX.>")
    assert client.create_stream("inboxes", "_INBOX.x.>", acks="off").acks == "off"


def test_the_cluster_names_its_nodes_and_its_nats(client: Client, server: ServerProcess) -> None:
    cluster = client.describe_cluster()
    node = cluster.node(cluster.answering_node)
    assert node is not None
    assert node.grpc == server.grpc
    assert cluster.nats == (server.nats,)
    assert cluster.controller == node.id
    assert cluster.node(99) is None


@on_loop
async def test_the_asynchronous_client_does_the_same(server: ServerProcess) -> None:
    async with AsyncClient(server.grpc, timeout=60) as client:
        stream = await client.create_stream("awaited", "awaited.>")
        assert isinstance(stream, Stream)
        assert (await client.describe_stream("awaited")).high_watermark == 0
        await client.delete_stream("awaited")


def test_both_clients_have_the_same_methods() -> None:
    def public(cls: type) -> dict[str, list[str]]:
        return {
            name: list(inspect.signature(method).parameters)
            for name, method in inspect.getmembers(cls, inspect.isfunction)
            if not name.startswith("_")
        }

    ours, theirs = public(Client), public(AsyncClient)
    ours["aclose"] = ours.pop("close")
    del theirs["processor"]  # For `process` of both.
    assert ours == theirs


def test_what_changes_one_stream_does_not_list_all(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.create_stream("one-of-many", "one.of.many")

    def no_list(*_: object, **__: object) -> None:
        raise AssertionError("all streams are listed")

    monkeypatch.setattr(Streams, "find", no_list)
    client.pause_stream("one-of-many")
    client.resume_stream("one-of-many@one.of.many")
    client.set_stream_readonly("one-of-many", True)
    client.set_stream_readonly("one-of-many", False)
    client.alter_stream("one-of-many", max_age=60)
    client.purge_stream("one-of-many")
    client.delete_stream("one-of-many")


def test_a_subject_that_begins_with_a_wildcard_is_refused_with_what_to_do(client: Client) -> None:
    for subject in "*.orders.>", ">":
        with pytest.raises(InvalidRequestError, match="acks: off") as caught:
            client.create_stream("tenants", subject)
        assert f"as in 'tenants.{subject}'" in caught.value.__notes__[0]
    with pytest.raises(InvalidRequestError, match="acks: off") as caught:
        client.create_stream("tenants", "_INBOX.x")
    assert not hasattr(caught.value, "__notes__")
    assert client.create_stream("tenants", "tenants.*.orders.>").acks == "reply"
