"""Keyed groups with a real server: a key has one stream, for every publisher and every way of
publishing."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from jetstream_client import (
    AsyncClient,
    Client,
    InvalidRequestError,
    NoStreamError,
    StreamExistsError,
    StreamNotFoundError,
    StreamPausedError,
    StreamReadonlyError,
)
from jetstream_client.cli.main import run as run_command
from jetstream_client.publishing import sender, subject_routes
from jetstream_client.publishing.partitioner import partition_of
from tests.support.api import raw_nats
from tests.support.loops import eventually as until
from tests.support.loops import on_loop
from tests.support.nats_server import NatsServer
from tests.support.server import ServerProcess, running_server

KEYS = [f"key-{number}" for number in range(24)]

MAPPED = 4
MAPPINGS = (
    f'mappings: {{ "mapped.*": "_INGEST.mapped.{{{{partition({MAPPED},1)}}}}.mapped'
    '.{{wildcard(1)}}" }'
)


@pytest.fixture(scope="module")
def nats() -> Iterator[NatsServer]:
    with NatsServer(MAPPINGS) as running:
        yield running


@pytest.fixture(scope="module")
def server(nats: NatsServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    data = tmp_path_factory.mktemp("keyed") / "data"
    with running_server(data, "--nats", nats.url) as running:
        yield running


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Publishers ask often which streams there are."""
    monkeypatch.setattr(subject_routes, "FRESH_SECONDS", 0.1)
    monkeypatch.setattr(subject_routes, "STALE_SECONDS", 0.1)
    monkeypatch.setattr(sender, "_ROUTE_SECONDS", 0.1)


def streams_of_keys(client: Client, group: str, count: int) -> dict[bytes, set[int]]:
    """The partitions that hold each key."""
    found: dict[bytes, set[int]] = {}
    for number in range(count):
        for message in client.fetch(f"{group}-{number}"):
            if message.key is not None:
                found.setdefault(message.key, set()).add(number)
    return found


def test_a_key_has_one_stream_whoever_publishes_it_and_however(client: Client) -> None:
    made = client.create_group("one", "one.>", streams=4)
    assert [(each.name, each.partition, each.partitions) for each in made] == [
        (f"one-{number}", number, 4) for number in range(4)
    ]
    for number, key in enumerate(KEYS):
        result = client.publish(f"one.{number}", b"plain", key=key)
        assert result.stream == f"one-{partition_of(key.encode(), 4)}"
        assert result.subject == f"one.{number}"
    with client.publisher("one.many") as publisher:
        many = publisher.publish_many([b"many"] * len(KEYS), KEYS).result(60)
        sent = [publisher.send(b"sent", key).result(60) for key in KEYS]
    expected = [f"one-{partition_of(key.encode(), 4)}" for key in KEYS]
    assert many.streams == expected
    assert [each.stream for each in sent] == expected
    for key, stream, offset in zip(KEYS, many.streams, many.offsets, strict=True):
        assert client.fetch(stream, offset, max_messages=1)[0].key == key.encode()
    found = streams_of_keys(client, "one", 4)
    assert found == {key.encode(): {partition_of(key.encode(), 4)} for key in KEYS}
    # Records keep the subject that the publisher said.
    subjects = {message.subject for each in made for message in client.fetch(each)}
    assert subjects == {*(f"one.{number}" for number in range(len(KEYS))), "one.many"}


def test_the_order_of_each_key_holds_through_a_batched_publisher(client: Client) -> None:
    client.create_group("order", "order.>", streams=3)
    with client.publisher("order.x", max_bytes=2048) as publisher:
        for step in range(40):
            publisher.publish_many([b"%d" % step] * len(KEYS), KEYS)
            publisher.send(b"%d.5" % step, KEYS[step % len(KEYS)])
    by_key: dict[bytes | None, list[float]] = {}
    for number in range(3):
        for message in client.fetch(f"order-{number}"):
            by_key.setdefault(message.key, []).append(float(message.value or b"nan"))
    assert sum(map(len, by_key.values())) == 40 * (len(KEYS) + 1)
    assert all(steps == sorted(steps) for steps in by_key.values())


def test_records_without_a_key_go_to_all_streams(client: Client) -> None:
    client.create_group("even", "even.>", streams=3)
    results = [client.publish("even.x", b"plain") for _ in range(6)]
    assert {each.stream for each in results} == {"even-0", "even-1", "even-2"}
    with client.publisher("even.x", max_bytes=512) as publisher:
        parts = publisher.publish_many([b"without a key"] * 300).result(60).parts
    assert {part.stream for part in parts} == {"even-0", "even-1", "even-2"}
    assert sum(part.count for part in parts) == 300
    with client.publisher("even.x", linger=30) as publisher:
        kept = [publisher.send(b"sticks to a batch") for _ in range(50)]
        publisher.flush()
        assert len({each.result(60).stream for each in kept}) == 1


def test_what_is_published_without_the_sdk_goes_to_one_of_them_by_chance(
    client: Client, nats: NatsServer
) -> None:
    client.create_group("chance", "chance.>", streams=2)
    with raw_nats(nats.url) as publisher:
        publisher.subscribe("_INBOX.chance")
        for number in range(60):
            publisher.publish("chance.x", b"%d" % number, "_INBOX.chance")
        answers = [json.loads(publisher.message()[1]) for _ in range(60)]
    assert {each["stream"] for each in answers} == {"chance-0", "chance-1"}


def test_nats_itself_can_choose_the_stream_for_plain_publishers(
    client: Client, nats: NatsServer
) -> None:
    client.create_group("mapped", "mapped.*", streams=MAPPED)
    customers = [f"mapped.customer-{number}" for number in range(16)]
    with raw_nats(nats.url) as publisher:
        publisher.subscribe("_INBOX.mapped")
        for step in range(5):
            for subject in customers:
                publisher.publish(subject, b"%d" % step, "_INBOX.mapped")
        answers = [json.loads(publisher.message()[1]) for _ in range(5 * len(customers))]
    assert all("seq" in answer for answer in answers)
    held: dict[str, list[tuple[int, bytes | None]]] = {}
    for number in range(MAPPED):
        for message in client.fetch(f"mapped-{number}"):
            held.setdefault(message.subject, []).append((number, message.value))
    # By its own hash, of the subject's token; each subject in one stream, in order.
    assert sorted(held) == sorted(customers)
    for found in held.values():
        assert len({number for number, _ in found}) == 1
        assert [value for _, value in found] == [b"%d" % step for step in range(5)]
    assert len({found[0][0] for found in held.values()}) > 1
    # A publisher with the SDK, by key, is not in the way of that.
    assert client.publish("mapped.customer-1", b"", key="k").stream == (
        f"mapped-{partition_of(b'k', MAPPED)}"
    )


def test_what_was_begun_is_finished_by_the_same_call(client: Client) -> None:
    begun = {"group": "begun", "partitions": 3}
    client.create_stream("begun-0", "begun.>", partition=0, **begun)  # type: ignore[arg-type]
    with pytest.raises(NoStreamError, match=r"lacks partitions \[1, 2\] of 3: create_group"):
        client.publish("begun.x", b"", key="k")
    made = client.create_group("begun", "begun.>", streams=3)
    assert client.create_group("begun", "begun.>", streams=3) == made
    assert client.publish("begun.x", b"", key="k").stream == f"begun-{partition_of(b'k', 3)}"
    client.delete_stream("begun-1")
    with pytest.raises(NoStreamError, match=r"lacks partitions \[1\] of 3"):
        client.publish("begun.x", b"", key="k")
    client.create_group("begun", "begun.>", streams=3)
    client.publish("begun.x", b"", key="k")


@pytest.mark.usefixtures("quick")
def test_a_group_grows_while_it_is_published_to_and_read(
    client: Client, server: ServerProcess
) -> None:
    client.create_group("grow", "grow.>", streams=2)
    with (
        Client(server.grpc, timeout=60) as plain,
        Client(server.grpc, timeout=60) as batched,
        batched.publisher("grow.many") as publisher,
        client.consume_group("grow", "grow-workers") as member,
    ):
        published: set[bytes | None] = set()

        def publish() -> set[str]:
            new = [b"%d" % (len(published) + place) for place in range(2 * len(KEYS))]
            published.update(new)
            results = [
                plain.publish("grow.plain", value, key=key)
                for key, value in zip(KEYS, new, strict=False)
            ]
            many = publisher.publish_many(new[len(KEYS) :], KEYS).result(60)
            for key, result in zip(KEYS, results, strict=True):
                assert result.stream in {
                    f"grow-{partition_of(key.encode(), count)}" for count in (2, 3)
                }
            return {each.stream for each in results} & set(many.streams)

        assert publish() == {"grow-0", "grow-1"}
        client.create_group("grow", "grow.>", streams=3)
        # With the old number until they hear of the new one; nothing fails meanwhile.
        deadline = time.monotonic() + 60
        while "grow-2" not in publish():
            assert time.monotonic() < deadline
        assert publish() == {"grow-0", "grow-1", "grow-2"}
        # Whoever reads the group reads the new stream as well.
        unread = set(published)
        for message in member:
            unread.discard(message.value)
            if not unread:
                break
        with pytest.raises(InvalidRequestError, match="cannot shrink"):
            client.create_group("grow", "grow.>", streams=2)


def test_a_stream_that_would_not_hear_what_is_published_by_key_is_not_passed_over(
    client: Client,
) -> None:
    client.create_stream("audit", "loud.*")
    with pytest.raises(InvalidRequestError, match="audit listens on this subject already"):
        client.create_group("loud", "loud.>", streams=2)
    client.delete_stream("audit")
    client.create_group("loud", "loud.>", streams=2)
    client.create_stream("audit", "loud.*")
    with pytest.raises(InvalidRequestError, match=r"audit@loud\.\* would not hear"):
        client.publish("loud.x", b"", key="k")
    client.delete_stream("audit")
    client.publish("loud.x", b"", key="k")
    with pytest.raises(InvalidRequestError, match="where the streams of keyed groups listen"):
        client.create_stream("thief", "_INGEST.loud.0.>")
    # One that keeps everything, without acknowledging, hears that, too: where it was sent.
    client.create_stream("everything", ">", acks="off")
    sent = client.publish("loud.x", b"heard", key="k")
    number = partition_of(b"k", 2)
    for message in client.consume("everything", patience=60):
        if message.value == b"heard":
            assert message.subject == f"_INGEST.loud.{number}.loud.x"
            break
    assert sent.stream == f"loud-{number}"
    client.delete_stream("everything")


def test_wrong_requests_are_told_what_to_do(client: Client) -> None:
    for streams in (0, -1, 10_001, "3"):
        with pytest.raises(InvalidRequestError, match="a group has 1 to 10000"):
            client.create_group("wrong", "wrong.>", streams=streams)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="no setting 'group'"):
        client.create_group("wrong", "wrong.>", streams=2, group="other")  # type: ignore[call-arg]
    with pytest.raises(InvalidRequestError, match="partition 2 of 2"):
        client.create_stream("wrong", "wrong.>", group="wrong", partition=2, partitions=2)
    with pytest.raises(InvalidRequestError, match="needs the group"):
        client.create_stream("wrong", "wrong.>", partition=1, partitions=2)
    client.create_stream("plain-0", "plain.>", group="plain")
    with pytest.raises(StreamExistsError, match="partition is None, not 0"):
        client.create_group("plain", "plain.>", streams=2)
    client.create_group("dotted.name", "dotted.>", streams=2)
    assert client.publish("dotted.x", b"", key="k").stream == (
        f"dotted.name-{partition_of(b'k', 2)}"
    )
    with pytest.raises(InvalidRequestError, match="acks is 'all' or 'any'"):
        client.publish("dotted.x", b"", key="k", acks=["dotted.name-0"])
    with pytest.raises(InvalidRequestError, match="without producer_id"):
        client.publisher("dotted.x", producer_id=1)
    with pytest.raises(InvalidRequestError, match="which partition a stream is cannot be altered"):
        client.alter_stream("dotted.name-0", partitions=3)  # type: ignore[call-arg]


def test_a_stream_that_takes_nothing_says_so_to_those_who_need_it(client: Client) -> None:
    client.create_group("closed", "closed.>", streams=2)
    keys = {partition_of(key.encode(), 2): key for key in KEYS}
    client.pause_stream("closed-0")
    with pytest.raises(StreamPausedError, match="closed-0"):
        client.publish("closed.x", b"", key=keys[0])
    assert client.publish("closed.x", b"", key=keys[1]).stream == "closed-1"
    # Without a key another stream takes it.
    assert {client.publish("closed.x", b"").stream for _ in range(4)} == {"closed-1"}
    client.resume_stream("closed-0")
    assert client.publish("closed.x", b"", key=keys[0]).stream == "closed-0"
    client.set_stream_readonly("closed-1")
    with pytest.raises(StreamReadonlyError, match="closed-1"):
        client.publish("closed.x", b"", key=keys[1])


def test_an_id_finds_the_stream_that_has_the_message(client: Client) -> None:
    client.create_group("once", "once.>", streams=4)
    for number in range(8):
        first = client.publish("once.x", b"", msg_id=f"id-{number}")
        again = client.publish("once.x", b"", msg_id=f"id-{number}")
        assert again.duplicate
        assert (again.stream, again.offset) == (first.stream, first.offset)


def test_the_command_creates_a_group_and_publishes_by_key(
    server: ServerProcess, capfd: pytest.CaptureFixture[str]
) -> None:
    def run(*arguments: str) -> str:
        assert run_command(["--server", server.grpc, *arguments]) == 0
        return capfd.readouterr().out

    create = ("stream", "create-group", "shop", "--subject", "shop.>", "--streams", "2")
    assert run(*create) == "streams shop-0 to shop-1 keep shop.> by key\n"
    rows = [json.loads(line) for line in run(*create, "--json").splitlines()]
    assert [(row["partition"], row["partitions"]) for row in rows] == [(0, 2), (1, 2)]
    number = partition_of(b"ada", 2)
    assert run("publish", "shop.x", "hello", "--key", "ada") == (
        f"stored in shop-{number} at offset 0\n"
    )


async def shares(client: AsyncClient) -> AsyncIterator[list[int]]:
    """How many streams each member reads, again and again."""
    while True:
        group = await client.describe_group("gone-workers")
        yield [len(member.streams) for member in group.members]
        await asyncio.sleep(0.02)


def test_a_stream_that_is_restored_has_its_place_in_the_group_again(
    client: Client, server: ServerProcess, tmp_path: Path
) -> None:
    client.create_group("saved", "saved.>", streams=2)
    before = client.publish("saved.x", b"kept", key="k")
    folder = str(tmp_path / "backup")
    for command in (
        ("backup", before.stream, folder),
        ("delete", before.stream, "--yes"),
        ("restore", folder),
    ):
        assert run_command(["--server", server.grpc, "stream", *command]) == 0
    assert client.create_group("saved", "saved.>", streams=2)[0].partitions == 2
    after = client.publish("saved.x", b"new", key="k")
    assert (after.stream, after.offset) == (before.stream, before.offset + 1)


@on_loop
async def test_while_nats_is_gone_members_read_on_and_publishers_come_back(
    server: ServerProcess, nats: NatsServer
) -> None:
    async with AsyncClient(server.grpc, timeout=60) as client:
        await client.create_group("gone", "gone.>", streams=4)
        values: list[bytes | None] = []

        async def work(instance: str) -> None:
            async with client.consume_group("gone", "gone-workers", instance=instance) as member:
                async for message in member:
                    values.append(message.value)

        workers = [asyncio.ensure_future(work("a"))]
        publisher = client.publisher("gone.x")
        keys = KEYS[:20] * 5
        before = [b"before %d" % n for n in range(100)]
        after = [b"after %d" % n for n in range(100)]
        await (await publisher.publish_many(before, keys))
        await until(lambda: set(values) == set(before), 60)
        nats.kill()
        try:
            # The coordinator and the log do not need NATS: a member joins, and streams move.
            workers.append(asyncio.ensure_future(work("b")))
            async for found in shares(client):
                if found == [2, 2]:
                    break
            later = asyncio.ensure_future(client.publish("gone.x", b"plain", key="k", msg_id="1"))
            many = await publisher.publish_many(
                [b"after %d" % n for n in range(100)], KEYS[:20] * 5
            )
        finally:
            nats.start()
        assert (await many).count == 100
        await later
        await publisher.aclose()
        # At least once: the stream that moved to a new member may repeat some.
        await until(lambda: len(set(values)) == 201, 60)
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    assert set(values) == {b"plain", *before, *after}


def test_a_groups_name_is_told_from_a_misspelt_one_wherever_a_stream_belongs(
    server: ServerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    said = r"^'jobs' is a group of streams: name one of them, jobs-0 to jobs-3$"
    with Client(server.grpc, timeout=60) as client:
        client.create_group("jobs", "jobs.>", streams=4)
        client.create_group("sole.group", "sole.group.>", streams=1)
        calls: list[Callable[[str], object]] = [
            client.fetch,
            client.describe_stream,
            client.delete_stream,
            client.get_last,
            lambda name: client.alter_stream(name, max_age=5.0),
            lambda name: client.offset_at(name, "latest"),
            lambda name: client.seek_cursor("mine", name, "earliest"),
            lambda name: next(client.consume(name)),
            lambda name: client.scan(name).to_table(),
            lambda name: client.table(name).__enter__(),
        ]
        for call in calls:
            with pytest.raises(StreamNotFoundError, match=said):
                call("jobs")
        for call in calls[:3]:
            with pytest.raises(StreamNotFoundError, match=r"streams: name sole\.group-0$"):
                call("sole.group")
            with pytest.raises(StreamNotFoundError, match=r"there is no stream 'job'$"):
                call("job")
    assert run_command(["--server", server.grpc, "stream", "transfer-leader", "jobs", "0"]) == 3
    said = "'jobs' is a group of streams: name one of them, jobs-0 to jobs-3"
    assert said in capsys.readouterr().err
