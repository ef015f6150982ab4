"""Run on a machine of its own: the SDK, given one node's address, uses the whole cluster.

Prints one JSON object: what the cluster says of itself, and the stream before and after. Waits for
a line on standard input between the two, during which the leader is killed.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

from jetstream_client import Client, StreamDescription, UnavailableError, UnknownOutcomeError

MESSAGES = 50
HUNG_SECONDS = 60.0


def main() -> None:
    server = sys.argv[1]
    with Client(server, timeout=60.0) as client:
        cluster = client.describe_cluster()
        client.create_stream("orders", subject="orders.>", replicas=3)
        publish_round(client, 0)
        before = described(client, lambda found: len(found.isr) == 3)
        print(json.dumps({"leader": before.leader}), flush=True)
        sys.stdin.readline()
        publish_round(client, MESSAGES)
        after = described(client, lambda found: found.leader not in (None, before.leader))
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


def publish_round(client: Client, first: int) -> None:
    for number in range(first, first + MESSAGES):
        publish(client, number)


def described(client: Client, is_so: Callable[[StreamDescription], bool]) -> StreamDescription:
    """Once it is so; what is found in the end if it never is. On a busy machine a follower may be
    late, and so may what a node knows of the leader."""
    deadline = time.monotonic() + HUNG_SECONDS
    while not is_so(found := client.describe_stream("orders")) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def publish(client: Client, number: int) -> None:
    """Until it is acknowledged; a message on its way to a leader that dies may come twice."""
    while True:
        try:
            client.publish("orders.eu", str(number), timeout=3.0)
        except (UnavailableError, UnknownOutcomeError):
            continue
        return


if __name__ == "__main__":
    main()
