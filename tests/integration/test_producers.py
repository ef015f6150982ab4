"""Nothing is stored twice: retries across restarts, kills and failovers of real servers."""

from __future__ import annotations

import json
import os
import struct

import nats
import pytest
from nats.js.errors import APIError

from jetstream_client import Client, SequenceTakenError
from jetstream_protocol.ack_cluster import mark_of
from jetstream_protocol.batch import HEADER_BYTES, BatchHeader, EncodedBatch, encode, iterate
from jetstream_protocol.body_compression import compress
from jetstream_protocol.columns import Flags
from jetstream_protocol.envelope import encode_batch
from jetstream_protocol.errors import CODES
from jetstream_protocol.generated import api_pb2 as pb
from tests.property.test_batch_hostile import forged
from tests.support.api import Api, raw_nats
from tests.support.cluster import TestCluster
from tests.support.loops import on_loop
from tests.support.patient_server import PatientCluster
from tests.support.producing import Producer
from tests.support.server import ServerProcess
from tests.support.stages import cluster_stage


def repeat_everything(producer: Producer, url: str, names: list[str]) -> None:
    """Send what is acknowledged already once more: each answer must be the first one's."""
    before = {name: producer.acked.pop(name) for name in names}
    producer.deliver(url, names)
    for name in names:
        assert producer.acked[name]["duplicate"] is True
        assert producer.acked[name]["seq"] == before[name]["seq"]
        assert producer.acked[name].get("count") == before[name].get("count")


def values(server: ServerProcess, name: str) -> list[bytes | None]:
    api = Api(server.grpc)
    try:
        return api.values(name)
    finally:
        api.close()


@pytest.mark.parametrize("how", ["killed", "stopped", "killed, its file lost"])
def test_what_was_stored_before_a_restart_is_a_duplicate_after_it(
    own_server: ServerProcess, how: str
) -> None:
    """Killed before anything wrote the file in which it is remembered, and also after."""
    own_server.start()
    api = Api(own_server.grpc)
    stream = api.create("s", "s", segment_bytes=64 * 1024).stream
    api.close()
    state = own_server.data / "streams" / str(stream.id) / "producers"
    producer = Producer("s", records_per_batch=200)
    names = producer.add_batches(40) if "lost" in how else producer.add_batches(7)
    names += producer.add_messages(20)
    producer.deliver(own_server.nats, names)
    assert state.exists() == ("lost" in how)
    if how == "stopped":
        assert own_server.stop() == 0
        assert state.exists()
    else:
        own_server.kill()
    if "lost" in how:
        state.unlink()
    own_server.start()
    last = [name for name in names if name.startswith("m")]
    last += [name for name in names if name.startswith("b")][-5:]
    repeat_everything(producer, own_server.nats, last)
    producer.deliver(own_server.nats, producer.add_batches(3))
    stored = values(own_server, "s")
    producer.check(stored)
    assert len(stored) == 200 * sum(name[0] == "b" for name in producer.acked) + 20


cluster = cluster_stage(scope="function", kind=PatientCluster)


def test_retries_across_failovers_are_stored_once(cluster: TestCluster) -> None:
    """Twice the leader is killed between its append and the ack: when the followers have the
    records, and when they do not."""
    cluster.api(0).create("s", "s")
    producer = Producer("s")
    producer.deliver(cluster.nats, producer.add_batches(7) + producer.add_messages(5))
    # Replicated, committed, acknowledged: but the acks are lost.
    names = producer.add_batches(5) + producer.add_messages(5)
    unheard = Producer("s")
    with raw_nats(cluster.nats) as client:
        inbox = f"_INBOX.{os.urandom(6).hex()}"
        client.subscribe(f"{inbox}.>")
        producer.send(client, names, inbox)
        assert unheard.take_answers(client, names, 60)
    first = cluster.describe("s").stream.leader
    cluster.kill(first)
    producer.deliver(cluster.nats, names)
    for name in names:
        assert producer.acked[name]["duplicate"] is True
        assert producer.acked[name]["seq"] == unheard.acked[name]["seq"]
    cluster.restart(first)
    cluster.wait_for_isr("s", cluster.nodes)
    # Appended by the leader alone, which dies before anybody else has it.
    leader = cluster.describe("s").stream.leader
    followers = [node for node in cluster.nodes if node != leader]
    held = len(cluster.segments(leader, cluster.describe("s").stream.id))
    names = producer.add_batches(5) + producer.add_messages(5)
    stream_id = cluster.describe("s").stream.id
    for node in followers:
        cluster.freeze(node)
    try:
        with raw_nats(cluster.nats) as client:
            client.subscribe(f"{inbox}.>")
            producer.send(client, names, inbox)
            cluster.wait_for(
                "the leader has appended it",
                lambda: len(cluster.segments(leader, stream_id)) > held,
            )
            assert not producer.take_answers(client, names, 0.2)
        cluster.kill(leader)
    finally:
        for node in followers:
            cluster.thaw(node)
    producer.deliver(cluster.nats, names)
    repeat_everything(producer, cluster.nats, names)
    cluster.restart(leader)
    cluster.wait_for_isr("s", cluster.nodes)
    producer.deliver(cluster.nats, producer.add_batches(5) + producer.add_messages(5))
    end = cluster.describe("s").high_watermark
    for node in cluster.nodes:
        cluster.wait_for(
            f"node {node} has everything",
            lambda node=node: len(cluster.api(node).values_upto("s", end)) == end,  # type: ignore[misc]
        )
        producer.check(cluster.api(node).values_upto("s", end))
    segments = {cluster.segments(node, stream_id) for node in cluster.nodes}
    assert len(segments) == 1


@on_loop
async def test_nats_clients_are_told_of_duplicates_and_wrong_sequences(
    server: ServerProcess, api: Api
) -> None:
    api.create("told", "told")
    client = await nats.connect(server.nats)
    try:
        js = client.jetstream()
        first = await js.publish("told", b"1", headers={"Nats-Msg-Id": "a"})
        again = await js.publish("told", b"1", headers={"Nats-Msg-Id": "a"})
        assert (first.seq, first.duplicate) == (1, None)
        assert (again.seq, again.duplicate) == (1, True)
        with pytest.raises(APIError) as refusal:
            await js.publish("told", b"2", headers={"Nats-Expected-Last-Sequence": "7"})
        assert refusal.value.err_code == 10071
        assert refusal.value.description == "wrong last sequence: 1"
        second = await js.publish("told", b"2", headers={"Nats-Expected-Last-Sequence": "1"})
        assert second.seq == 2
    finally:
        await client.close()
    assert api.values("told") == [b"1", b"2"]


def test_under_acks_envelope_a_service_answers_requests_and_the_stream_envelopes(
    server: ServerProcess, api: Api
) -> None:
    api.create("served", "served", acks=pb.ACKS_ENVELOPE)
    with raw_nats(server.nats) as service, raw_nats(server.nats) as client:
        service.subscribe("served")
        client.subscribe("_INBOX.>")
        client.publish("served", b"request", "_INBOX.request")
        assert service.message() == ("served", b"request")
        service.publish("_INBOX.request", b"answer")
        assert client.message() == ("_INBOX.request", b"answer")
        batch = encode([b"1", b"2"], b"served")
        client.publish("served", encode_batch(batch, ack_inbox=b"_INBOX.batch"), "_INBOX.request")
        subject, ack = client.message()
        answer = json.loads(ack)
        cluster = api.cluster.DescribeCluster(pb.DescribeClusterRequest())
        assert answer.pop("cluster") == mark_of(cluster.cluster_id)
        assert (subject, answer) == ("_INBOX.batch", {"stream": "served", "seq": 3, "count": 2})
    assert api.values("served") == [b"request", b"1", b"2"]


def test_hostile_batches_are_refused_with_a_clear_nack_and_nothing_is_stored(
    server: ServerProcess, api: Api
) -> None:
    api.create("guarded", "guarded")
    good = encode([b"one", b"two", b"three"], b"guarded").to_bytes()
    wild = struct.pack("<4i", 0, 3, 2**31 - 1, 11) + good[HEADER_BYTES + 16 :]
    bomb = compress(bytes(64 * 1024 * 1024 - 8), Flags.ZSTD)
    hostile = {
        "a wild offset": (forged(good, wild), "corrupt_batch"),
        "a bad count": (forged(good, record_count=2), "corrupt_batch"),
        "no record": (forged(good, record_count=0), "invalid_request"),
        "a forged subject": (encode([b"x"], b"victim").to_bytes(), "invalid_request"),
        "a bomb": (
            forged(good, bomb, flags=1, uncompressed_length=64 * 1024 * 1024 - 8),
            "message_too_large",
        ),
        "the server's flag": (forged(good, flags=256), "invalid_request"),
        "a skipped sequence": (forged(good, producer_id=1, producer_sequence=3), "out_of_sequence"),
    }
    codes = {spelling.code: spelling.nats_err_code for spelling in CODES.values()}
    with raw_nats(server.nats) as client:
        client.subscribe("_INBOX.>")
        for what, (batch, code) in hostile.items():
            header, body = bytearray(batch[:HEADER_BYTES]), batch[HEADER_BYTES:]
            payload = encode_batch(EncodedBatch(header, body, 3, 2), correlation=what.encode())
            client.publish("guarded", payload, "_INBOX.a")
            answer = json.loads(client.message()[1])
            assert answer["error"]["err_code"] == codes[code], (what, answer)
            assert answer["error"]["description"]
            assert answer["correlation"] == what
    assert api.describe("guarded").high_watermark == 0


def test_a_stranger_who_uses_a_publishers_id_makes_none_of_its_records_vanish(
    server: ServerProcess, api: Api, client: Client
) -> None:
    """The id and the number are in each batch that readers get."""
    api.create("followed", "followed.>")
    acknowledged: dict[int, bytes] = {}
    refusals: list[str] = []
    with raw_nats(server.nats) as stranger, client.publisher("followed.x", linger=0) as publisher:
        stranger.subscribe("_INBOX.stranger")
        for number in range(20):
            value = b"ours %d" % number
            try:
                acknowledged[publisher.send(value).result().offset] = value
            except SequenceTakenError as error:
                refusals.append(error.message)
            if number % 3 == 0:
                header = iterate_last(api, "followed")
                batch = encode(
                    [b"theirs %d" % number], b"followed.x",
                    producer_id=header.producer_id,
                    producer_sequence=header.producer_sequence + 1,
                )  # fmt: skip
                stranger.publish("followed.x", encode_batch(batch), "_INBOX.stranger")
                assert "error" not in json.loads(stranger.message()[1])
    assert len(refusals) == 7
    assert all("another batch is stored" in refusal for refusal in refusals)
    stored = api.values("followed")
    assert len(stored) == len(acknowledged) + 7
    for offset, value in acknowledged.items():
        assert stored[offset] == value


def iterate_last(api: Api, name: str) -> BatchHeader:
    """The header of the last batch, as a reader gets it."""
    end = api.describe(name).high_watermark
    return list(iterate(api.fetch(name, end - 1).batches))[-1].header


def test_an_id_that_a_stranger_has_used_on_another_subject_hides_no_message(
    server: ServerProcess, api: Api, client: Client
) -> None:
    api.create("named", "named.>")
    with raw_nats(server.nats) as stranger:
        stranger.subscribe("_INBOX.stranger")
        block = b"NATS/1.0\r\nNats-Msg-Id: order-1\r\n\r\n"
        stranger.publish("named.theirs", b"theirs", "_INBOX.stranger", block)
        assert json.loads(stranger.message()[1])["seq"] == 1
    for is_again in (False, True):
        result = client.publish("named.ours", b"ours", msg_id="order-1")
        assert (result.offset, result.duplicate) == (1, is_again)
    assert api.values("named") == [b"theirs", b"ours"]
