"""Run on a machine of its own: the SDK, given one node's address, uses the whole cluster.

Prints one JSON object: what the cluster says of itself, and the stream before and after. Waits for
a line on standard input between the two, during which the leader is killed.
"""

from __future__ import annotations

import json
import sys

from jetstream_client import Client, StreamDescription, UnknownOutcomeError

MESSAGES = 50


def main() -> None:
    server = sys.argv[1]
    with Client(server, timeout=20.0) as client:
        cluster = client.describe_cluster()
        client.create_stream("orders", subject="orders.>", replicas=3)
        before = round_of_messages(client, 0)
        print(json.dumps({"leader": before.leader}), flush=True)
        sys.stdin.readline()
        after = round_of_messages(client, MESSAGES)
        read = [message.value for message in client.consume("orders", stop="latest")]
    found = {
        "nodes": [[node.grpc, node.data, node.http] for node in cluster.nodes],
        "nats": cluster.nats,
        "isr_before": before.isr,
        "leader_after": after.leader,
        "isr_after": after.isr,
        "read": [int(value or b"-1") for value in read],
    }
    print(json.dumps(found), flush=True)


def round_of_messages(client: Client, first: int) -> StreamDescription:
    for number in range(first, first + MESSAGES):
        publish(client, number)
    return client.describe_stream("orders")


def publish(client: Client, number: int) -> None:
    """Until it is acknowledged; a message on its way to a leader that dies may come twice."""
    while True:
        try:
            client.publish("orders.eu", str(number), timeout=3.0)
        except UnknownOutcomeError:
            continue
        return


if __name__ == "__main__":
    main()
