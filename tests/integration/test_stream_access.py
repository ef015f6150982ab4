"""Read-only and paused streams: by SDK and command on one node, and on three when the leader is
killed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import nats
import pytest

from jetstream_client import Client, Stream, StreamPausedError, StreamReadonlyError
from jetstream_client.cli.main import run
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.generated import common_pb2
from tests.support.api import call
from tests.support.cluster import TestCluster
from tests.support.patient_server import PatientCluster
from tests.support.stages import cluster_stage

cluster = cluster_stage(kind=PatientCluster)


@pytest.fixture
def client(cluster: TestCluster) -> Iterator[Client]:
    with Client(cluster.servers, timeout=60) as client:
        yield client


def filled(client: Client, name: str, **settings: str) -> Stream:
    stream = client.create_stream(name, name, **settings)  # type: ignore[arg-type]
    client.publish(name, "first", msg_id="first")
    return stream


def values(client: Client, name: str) -> list[bytes | None]:
    return client.fetch(name).values()


def asked(cluster: TestCluster, subject: str) -> dict[str, object]:
    """The answer of the streams to a plain NATS request; {}: nobody listens."""

    async def ask() -> dict[str, object]:
        connection = await nats.connect(cluster.nats)
        try:
            answer: dict[str, object] = json.loads(
                (await connection.request(subject, b"plain", timeout=60)).data
            )
        except nats.errors.NoRespondersError:
            return {}
        finally:
            await connection.close()
        return answer

    return asyncio.run(ask())


def test_a_readonly_stream_refuses_every_publisher_and_is_read(
    cluster: TestCluster, client: Client
) -> None:
    filled(client, "sealed")
    with client.publisher("sealed", linger=0) as publisher:
        publisher.send("second").result()
        assert client.set_stream_readonly("sealed").readonly
        with pytest.raises(StreamReadonlyError, match="is read-only: nothing was stored"):
            publisher.send("refused").result()
    client.publish("sealed", "lost", ack_level="none")
    with pytest.raises(StreamReadonlyError, match="'jetstream stream readonly sealed --undo'"):
        client.publish("sealed", "refused")
    error = asked(cluster, "sealed")["error"]
    assert isinstance(error, dict)
    assert (error["code"], error["err_code"]) == (400, 20019)
    # What is stored already is still acknowledged: a publisher that was not answered may ask again.
    assert client.publish("sealed", "first", msg_id="first").duplicate
    assert values(client, "sealed") == [b"first", b"second"]
    assert client.purge_stream("sealed", 1) == 1
    assert not client.set_stream_readonly("sealed", False).readonly
    assert client.publish("sealed", "third", msg_id="third").offset == 2


def test_a_paused_stream_does_not_listen_and_resumes_where_it_was(
    cluster: TestCluster, client: Client
) -> None:
    filled(client, "quiet")
    with client.publisher("quiet", linger=0) as publisher:
        publisher.send("second").result()
        paused = client.pause_stream("quiet")
        assert (paused.paused, client.describe_stream("quiet").paused) == (True, True)
        assert asked(cluster, "quiet") == {}
        with pytest.raises(StreamPausedError, match="'jetstream stream resume quiet'"):
            client.publish("quiet", "refused")
        with pytest.raises(StreamPausedError):
            client.publish("quiet", "refused", ack_level="none")
        with pytest.raises(StreamPausedError):
            client.publish("quiet", "first", msg_id="first")
        with pytest.raises(StreamPausedError):
            publisher.send("refused").result()
    assert client.create_stream("quiet", "quiet").paused  # It is found, and nobody waits.
    assert values(client, "quiet") == [b"first", b"second"]
    assert client.purge_stream("quiet", 1) == 1
    assert not client.resume_stream("quiet").paused
    assert client.publish("quiet", "third", msg_id="third").offset == 2


def test_the_others_of_a_group_take_the_messages_of_a_paused_member(client: Client) -> None:
    for name in ("one", "two"):
        client.create_stream(name, "shared", group="g")
    client.pause_stream("one")
    client.set_stream_readonly("two")
    with pytest.raises((StreamPausedError, StreamReadonlyError)):
        client.publish("shared", "nowhere")
    client.set_stream_readonly("two", False)
    for number in range(10):
        assert client.publish("shared", f"{number}").stream == "two"


def test_the_leader_has_altered_settings_before_the_call_returns(
    cluster: TestCluster, client: Client
) -> None:
    """It acknowledges by them. Here it is not the metadata leader, which applies them first."""
    client.create_stream("altered", "altered")
    controller = client.describe_cluster().controller
    leader = next(node for node in cluster.nodes if node != controller)
    client.transfer_leader("altered", leader)
    ref = common_pb2.StreamRef(name="altered")
    known = pb.DescribeStreamRequest(stream=ref, registry_only=True)
    for turn in range(20):
        config = pb.StreamConfig(acks=pb.ACKS_OFF if turn % 2 else pb.ACKS_ENVELOPE)
        request = pb.AlterStreamRequest(stream=ref, config=config)
        altered = call(cluster.api(controller).streams.AlterStream, request).stream
        found = call(cluster.api(leader).streams.DescribeStream, known).description.stream
        assert found.stream_epoch == altered.stream_epoch
    client.alter_stream("altered", acks="reply")
    assert client.publish("altered", "acknowledged", msg_id="acknowledged").offset == 0


def test_access_outlives_the_leader(cluster: TestCluster, client: Client) -> None:
    """The next leader knows it only from the metadata."""
    filled(client, "sealed-on")
    filled(client, "quiet-on")
    client.set_stream_readonly("sealed-on")
    client.pause_stream("quiet-on")
    leader = client.transfer_leader("quiet-on", client.describe_stream("sealed-on").leader).leader
    assert asked(cluster, "quiet-on") == {}
    cluster.kill(leader)
    try:
        cluster.wait_for(
            "another node leads both",
            lambda: (
                not {client.describe_stream(name).leader for name in ("sealed-on", "quiet-on")}
                & {leader, -1}
            ),
        )
        with pytest.raises(StreamReadonlyError):
            client.publish("sealed-on", "refused")
        assert asked(cluster, "quiet-on") == {}
        assert client.resume_stream("quiet-on").leader != leader
        assert client.publish("quiet-on", "second", msg_id="second").offset == 1
    finally:
        cluster.restart(leader)
    assert values(client, "sealed-on") == [b"first"]


def test_the_commands_say_what_they_did(
    cluster: TestCluster, client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    filled(client, "told")

    def said(*words: str) -> str:
        assert run(["--server", cluster.servers, "stream", *words]) == 0
        return capsys.readouterr().out

    assert said("readonly", "told") == "told is read-only\n"
    assert said("pause", "told") == "paused told\n"
    described = dict(
        line.split(maxsplit=1) for line in said("describe", "told", "--all").splitlines()
    )
    assert (described["readonly"], described["paused"]) == ("yes", "yes")
    assert said("readonly", "told", "--undo") == "told takes records again\n"
    assert said("resume", "told") == "told keeps told again\n"
    assert json.loads(said("pause", "told", "--json"))["paused"] is True
