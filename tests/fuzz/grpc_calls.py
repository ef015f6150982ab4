"""Attacks on the gRPC services through a real gRPC channel: what is inside the messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import grpc

from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.generated import common_pb2
from tests.fuzz.attack import Attack, Step, Target
from tests.fuzz.mutation import ODD_INTEGERS, mutated, noise, odd_text, wild_message

SERVICE = "/jetstream.v1."
UNARY = (
    "Streams/CreateStream", "Streams/DescribeStream", "Streams/ListStreams", "Streams/DeleteStream",
    "Reads/Fetch", "Reads/ListOffsets", "Cluster/DescribeCluster",
)  # fmt: skip
FOREIGN = (
    "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch", "/jetstream.v1.Streams/Nothing",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", "/", "//", "/x" * 1000,
)  # fmt: skip
Identity = Callable[[bytes], bytes]


def as_it_is(data: bytes) -> bytes:
    return data


class SignIn(
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamUnaryClientInterceptor,
):
    """Every call shows the token."""

    def __init__(self, token: str) -> None:
        self._metadata = ("authorization", f"Bearer {token}")

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        return continuation(self._signed(details), request)

    intercept_unary_stream = intercept_stream_unary = intercept_unary_unary

    def _signed(self, details: Any) -> Any:
        return details._replace(metadata=[*(details.metadata or ()), self._metadata])


class GrpcCalls(Attack):
    def __init__(self, target: Target) -> None:
        super().__init__(target)
        host, port = target.calls
        options = [("grpc.max_receive_message_length", -1), ("grpc.max_metadata_size", 1 << 24)]
        self._opened = (
            grpc.insecure_channel(f"{host}:{port}", options)
            if target.ca is None
            else grpc.secure_channel(
                f"localhost:{port}", grpc.ssl_channel_credentials(target.ca), options
            )
        )
        self._channel = self._opened
        if target.token:
            self._channel = grpc.intercept_channel(self._opened, SignIn(target.token))

    def close(self) -> None:
        self._opened.close()
        super().close()

    def steps(self) -> Sequence[Step]:
        return (
            self.wild_messages, self.mutated_messages, self.too_large, self.foreign_methods,
            self.huge_metadata, self.odd_requests, self.odd_streams, self.many_queries,
            self.cancelled_polls, self.cancelled_consumers, self.wrong_kind_of_call, self.big_reads,
        )  # fmt: skip

    def unary(
        self, path: str, data: bytes, metadata: tuple[tuple[str, str | bytes], ...] = ()
    ) -> bytes | None:
        """The answer, or None for any refusal."""
        method = self._channel.unary_unary(path, as_it_is, as_it_is)
        try:
            return bytes(method(data, timeout=5, metadata=metadata))
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.INTERNAL:
                raise AssertionError("a bug of ours") from error
            return None

    def request(self, random: Random, method: str) -> bytes:
        """A valid request, of a stream that may be harmed."""
        ref = common_pb2.StreamRef(name=random.choice(self.target.victims))
        queries = [
            pb.ListOffsetsRequest.Query(stream=ref, timestamp_us=1)
            for _ in range(random.randrange(4))
        ]
        requests: dict[str, Any] = {
            "Streams/CreateStream": pb.CreateStreamRequest(name="churn", subject="churn.x"),
            "Streams/DescribeStream": pb.DescribeStreamRequest(stream=ref),
            "Streams/ListStreams": pb.ListStreamsRequest(),
            "Streams/DeleteStream": pb.DeleteStreamRequest(
                stream=common_pb2.StreamRef(name="churn")
            ),
            "Reads/Fetch": pb.FetchRequest(stream=ref, wait_ms_max=10),
            "Reads/ListOffsets": pb.ListOffsetsRequest(queries=queries),
            "Cluster/DescribeCluster": pb.DescribeClusterRequest(),
        }
        return bytes(requests[method].SerializeToString())

    def wild_messages(self, random: Random) -> None:
        for _ in range(10):
            method = random.choice([m for m in UNARY if m != "Streams/DeleteStream"])
            self.unary(
                SERVICE + method, wild_message(random, random.choice((100, 10_000, 1 << 20)))
            )

    def mutated_messages(self, random: Random) -> None:
        for _ in range(20):
            method = random.choice([m for m in UNARY if m != "Streams/DeleteStream"])
            self.unary(SERVICE + method, mutated(random, self.request(random, method)))

    def too_large(self, random: Random) -> None:
        size = random.choice((4 << 20, (4 << 20) + 1, 16 << 20))
        answer = self.unary(SERVICE + random.choice(UNARY), b"\x0a" + bytes(size))
        assert answer is None

    def foreign_methods(self, random: Random) -> None:
        self.unary(random.choice(FOREIGN), noise(random, 10_000))

    def huge_metadata(self, random: Random) -> None:
        count, size = random.choice(((1, 1 << 20), (1000, 100), (10, 8000), (1, 20_000)))
        metadata = [(f"x-{index}", "v" * size) for index in range(count)]
        binary = [("x-bin", random.randbytes(size))]
        self.unary(
            SERVICE + "Streams/ListStreams",
            b"",
            tuple(metadata if random.random() < 0.7 else binary),
        )

    def ref(self, random: Random) -> common_pb2.StreamRef:
        return common_pb2.StreamRef(
            id=random.choice((0, 0, 0, 1, 2**64 - 1)),
            name=odd_text(random, 1 << 20),
            subject=random.choice(("", odd_text(random, 1 << 20))),
        )

    def odd_requests(self, random: Random) -> None:
        """Well-formed, and out of every range."""
        signed = [i for i in ODD_INTEGERS if -(2**63) <= i < 2**63]
        for _ in range(5):
            fetch = pb.FetchRequest(
                stream=random.choice(
                    (self.ref(random), common_pb2.StreamRef(name=self.target.bulk))
                ),
                offset=random.choice(signed),
                last_epoch=random.choice(signed),
                bytes_max=random.choice(ODD_INTEGERS) % 2**32,
                bytes_min=random.choice(ODD_INTEGERS) % 2**32,
                wait_ms_max=random.choice((0, 1, 50, 2**32 - 1)),
                decode=random.random() < 0.5,
            )
            self.unary(SERVICE + "Reads/Fetch", fetch.SerializeToString())
            describe = pb.DescribeStreamRequest(stream=self.ref(random))
            self.unary(SERVICE + "Streams/DescribeStream", describe.SerializeToString())
            listed = pb.ListStreamsRequest(feeding_subject=odd_text(random, 1 << 20))
            self.unary(SERVICE + "Streams/ListStreams", listed.SerializeToString())

    def odd_streams(self, random: Random) -> None:
        """Streams that must be refused. One that is created all the same is deleted again."""
        for _ in range(5):
            config = pb.StreamConfig(
                replicas=random.choice((0, 1, 1, 2, 3, -1, 2**31 - 1, -(2**31))),
                min_insync_replicas=random.choice((0, 1, 1, 2, -1, 2**31 - 1, -(2**31))),
                flush=random.choice((0, 1, 2, 3, 4, 2**31 - 1)),  # type: ignore[arg-type]
                acks=random.choice((0, 1, 2, 3, 4, -1)),  # type: ignore[arg-type]
                group=random.choice(("", "", "g", odd_text(random, 100_000))),
            )
            if random.random() < 0.5:
                config.ClearField("min_insync_replicas")
            request = pb.CreateStreamRequest(
                name=random.choice((f"odd-{random.randrange(50)}", odd_text(random, 100_000))),
                subject=random.choice((f"odd.{random.randrange(50)}", odd_text(random, 100_000))),
                config=config,
            )
            answer = self.unary(SERVICE + "Streams/CreateStream", request.SerializeToString())
            if answer is not None:
                stream = pb.CreateStreamResponse.FromString(answer).stream
                delete = pb.DeleteStreamRequest(stream=common_pb2.StreamRef(id=stream.id))
                self.unary(SERVICE + "Streams/DeleteStream", delete.SerializeToString())

    def many_queries(self, random: Random) -> None:
        """As many positions in one call as a request may hold."""
        ref = random.choice((common_pb2.StreamRef(id=1), self.ref(random)))
        if len(ref.name) + len(ref.subject) > 30:
            ref = common_pb2.StreamRef(name=self.target.bulk)
        query = pb.ListOffsetsRequest.Query(stream=ref, timestamp_us=random.choice((0, 1, 2**62)))
        count = random.choice((1_000, 50_000, 150_000, 250_000))
        data = pb.ListOffsetsRequest(queries=[query]).SerializeToString() * count
        self.unary(SERVICE + "Reads/ListOffsets", data[: 4 << 20])

    def cancelled_polls(self, random: Random) -> None:
        method = self._channel.unary_unary(SERVICE + "Reads/Fetch", as_it_is, as_it_is)
        request = pb.FetchRequest(
            stream=common_pb2.StreamRef(name=random.choice(self.target.victims)),
            bytes_min=2**32 - 1,
            wait_ms_max=300_000,
        ).SerializeToString()
        calls = [method.future(request) for _ in range(random.choice((1, 50, 300)))]
        for call in calls:
            call.cancel()

    def cancelled_consumers(self, random: Random) -> None:
        method = self._channel.unary_stream(SERVICE + "Reads/Consume", as_it_is, as_it_is)
        name = random.choice((self.target.bulk, *self.target.victims))
        request = pb.ConsumeRequest(
            stream=common_pb2.StreamRef(name=name), decode=random.random() < 0.3
        ).SerializeToString()
        calls = [method(request, timeout=2) for _ in range(random.choice((1, 10, 50)))]
        for call in calls:
            try:
                if name == self.target.bulk and random.random() < 0.5:
                    next(call)
            except (grpc.RpcError, StopIteration):
                continue
            call.cancel()

    def wrong_kind_of_call(self, random: Random) -> None:
        """A stream where one message is meant, and none at all."""
        method = self._channel.stream_unary(SERVICE + random.choice(UNARY), as_it_is, as_it_is)
        messages = [noise(random, 100) for _ in range(random.choice((0, 2, 1000)))]
        try:
            method(iter(messages), timeout=2)
        except grpc.RpcError:
            pass

    def big_reads(self, random: Random) -> None:
        """Everything at once, decoded."""
        request = pb.FetchRequest(
            stream=common_pb2.StreamRef(name=self.target.bulk), bytes_max=2**32 - 1, decode=True
        )
        self.unary(SERVICE + "Reads/Fetch", request.SerializeToString())
