"""The readers of `benchmarks.tail`: they wait at the head of a stream until each has had so many
messages. Prints READY when all of them wait, and in the end one JSON object.

    python -m benchmarks.tail_readers --side ours --server 127.0.0.1:9293 --readers 9 --messages 99
"""

from __future__ import annotations

import argparse
import asyncio
import json
import selectors
import time

from benchmarks.jetstream_peer import STREAM as PEER_STREAM
from benchmarks.nats_socket import RECEIVE_BYTES, NatsSocket
from benchmarks.read_jetstream import OrderedReader, create_consumer
from benchmarks.this_server import STREAM
from jetstream_client.transport.data_connection import DataConnection
from jetstream_client.transport.follow import Follow
from jetstream_protocol.batch import iterate
from jetstream_protocol.generated import common_pb2
from jetstream_protocol.generated import dataplane_pb2 as pb

READY = "reading\n"
WAIT_SECONDS = 30.0
STALL_SECONDS = 60.0


async def ours(server: str, readers: int, messages: int) -> float:
    """server: of the data plane. Returns the processor seconds from the moment when all wait."""
    connections = [await DataConnection.open(server, WAIT_SECONDS) for _ in range(readers)]

    async def read(connection: DataConnection) -> None:
        follow = Follow(connection, pb.DataFetchRequest(stream=common_pb2.StreamRef(name=STREAM)))
        offset = 0
        while offset < messages:
            came = await follow.next(STALL_SECONDS, STALL_SECONDS)
            if came is None or not came.batches:
                raise RuntimeError("the server has ended a follow")
            for batch in iterate(came.batches):
                offset = batch.header.next_offset

    reading = [asyncio.ensure_future(read(connection)) for connection in connections]
    await asyncio.sleep(0)
    print(READY, end="", flush=True)
    begun = time.process_time()
    await asyncio.gather(*reading)
    used = time.process_time() - begun
    for connection in connections:
        await connection.close()
    return used


def peer(server: str, readers: int, messages: int) -> float:
    """server: NATS. Returns the processor seconds from the moment when all wait. Raises
    ConnectionError, TimeoutError."""
    host, _, port = server.rpartition(":")
    with selectors.DefaultSelector() as selector, NatsSocket(host, int(port)) as control:
        for number in range(readers):
            client = NatsSocket(host, int(port))
            inbox = f"_INBOX.benchmark.tail.{number}"
            client.subscribe(inbox, 1)
            create_consumer(control, PEER_STREAM, inbox, "all")
            selector.register(client.socket, selectors.EVENT_READ, OrderedReader(client))
        print(READY, end="", flush=True)
        begun = time.process_time()
        while selector.get_map():
            ready = selector.select(STALL_SECONDS)
            if not ready:
                raise TimeoutError(f"{len(selector.get_map())} readers wait for messages")
            for key, _ in ready:
                reader: OrderedReader = key.data
                data = reader.client.socket.recv(RECEIVE_BYTES)
                if not data:
                    raise ConnectionError("the NATS server closed the connection")
                reader.feed(data)
                if reader.messages >= messages:
                    selector.unregister(key.fileobj)
                    reader.client.socket.close()
        return time.process_time() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--side", choices=["ours", "peer"], required=True)
    parser.add_argument("--server", required=True)
    parser.add_argument("--readers", type=int, required=True)
    parser.add_argument("--messages", type=int, required=True)
    options = parser.parse_args()
    begun = time.perf_counter()
    if options.side == "ours":
        used = asyncio.run(ours(options.server, options.readers, options.messages))
    else:
        used = peer(options.server, options.readers, options.messages)
    delivered = options.readers * options.messages
    elapsed = time.perf_counter() - begun
    print(json.dumps({"messages": delivered, "seconds": elapsed, "processor_seconds": used}))


if __name__ == "__main__":
    main()
