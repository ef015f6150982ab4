"""The way by which producers send batches straight to the leader of their stream, past NATS.

A seed has it or has not by a random number of its own. Each producer of such a seed begins by one
of the two ways, and changes it now and then when it repeats, and rarely also with batches in
flight: the same batch is then on its way by both. They go to the leader that is known until that
refuses one, or does not answer; it may be deposed long since, and not know it. There is one
connection to each node, in order, which may break: what was on its way over it arrives or not, and
no answer to it does.
"""

from __future__ import annotations

from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from jetstream_protocol.errors import CODES, JetstreamError
from jetstream_protocol.generated import common_pb2
from jetstream_protocol.generated import dataplane_pb2 as pb
from jetstream_protocol.types import NO_NODE
from jetstream_server.security.identity import ANONYMOUS
from jetstream_server.serving.produces import Produces
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.producers import Producer, Repeating, Sent

SHARE = 0.3
"""Of the seeds."""
ELSEWHERE = 0.1
"""Of the times that the leader is looked for, another replica is taken for it."""
LOOKS_AGAIN = 0.4
"""Of the times that a batch is repeated."""
BREAKS = 0.04
CHANGES_IN_FLIGHT = 0.03
CHANGES_REPEATING = 0.4
BYTES_MAX = 1 << 20


class Connection(NamedTuple):
    """To one run of a node."""

    process: Process
    number: int


class DirectWay:
    """Of the producers of one stream."""

    def __init__(self, all_: Repeating, random: Random) -> None:
        self._all = all_
        self._world = all_.stream.world
        self._random = random
        self._is_here = random.random() < SHARE
        self._ways: dict[Producer, bool] = {}
        self._leader = NO_NODE
        self._connections: dict[int, Connection] = {}
        self._made = 0
        self._last_at: dict[Connection, int] = {}

    def takes(self, producer: Producer, *, repeating: bool) -> bool:
        """Whether the producer's next batch goes this way."""
        if not self._is_here:
            return False
        if repeating and self._random.random() < LOOKS_AGAIN:
            self._leader = NO_NODE
        if producer not in self._ways:
            self._ways[producer] = self._random.random() < 0.7
        elif self._random.random() < (CHANGES_REPEATING if repeating else CHANGES_IN_FLIGHT):
            self._ways[producer] = not self._ways[producer]
            self._world.count("way changed")
        return self._ways[producer]

    def send(self, producer: Producer, sent: Sent) -> None:
        connection = self._connection()
        if connection is None:
            return  # Nobody listens there: it is repeated.
        self._world.count("sent straight")
        loop = connection.process.loop
        at = self._on_its_way(connection)
        self._world.at(at, loop, loop.enter, self._arrive, connection, producer, sent)

    def _connection(self) -> Connection | None:
        """To the node that leads, as far as the producers know."""
        stream, random = self._all.stream.stream, self._random
        if self._leader == NO_NODE:
            is_elsewhere = stream.leader == NO_NODE or random.random() < ELSEWHERE
            self._leader = random.choice(stream.replicas) if is_elsewhere else stream.leader
        node_id, cluster = self._leader, self._all.stream.cluster
        process = cluster.machines[node_id].process
        if process is None or not process.serves:
            self._leader = NO_NODE
            return None
        known = self._connections.get(node_id)
        breaks = random.random() < BREAKS and not cluster.faults.scenario.is_calm
        if known is None or known.process is not process or breaks:
            self._made += 1
            known = self._connections[node_id] = Connection(process, self._made)
        return known

    def _on_its_way(self, connection: Connection) -> int:
        """When what is sent now arrives: after what was sent before."""
        delay = self._random.randint(50, 2_000)
        if self._random.random() < 0.03:
            delay += self._random.randint(10_000, 600_000)
        at = max(self._last_at.get(connection, 0) + 1, self._world.now + delay)
        self._last_at[connection] = at
        return at

    def _is_whole(self, connection: Connection) -> bool:
        return self._connections.get(connection.process.node_id) == connection

    def _arrive(self, connection: Connection, producer: Producer, sent: Sent) -> None:
        process, stream = connection.process, self._all.stream
        is_whole = self._is_whole(connection)
        if process.stopping or not (is_whole or self._random.random() < 0.5):
            return
        access, node = process.node.stream_access, process.node
        produces = Produces(node.replicas, access, process.ingest.produce, BYTES_MAX)
        request = pb.ProduceRequest(
            stream=common_pb2.StreamRef(id=stream.stream_id), subject=stream.subject.decode()
        )
        batch = sent.batch()
        # What is held against the answer is raised in the world, and never within the product.
        stored = partial(self._later, self._stored, connection, producer, sent)
        refuse = partial(self._later, self._refused, connection, producer, sent)
        try:
            produces.begin(request, batch.header + batch.body, ANONYMOUS, stored, refuse)
        except JetstreamError as error:
            refuse(error)

    def _later(self, told: Any, *arguments: Any) -> None:
        self._world.later(0, None, told, *arguments)

    def _stored(
        self, connection: Connection, producer: Producer, sent: Sent,
        base_offset: int, count: int, is_duplicate: bool,
    ) -> None:  # fmt: skip
        """A process acknowledges a batch; that is on its way to the producer."""
        checker, process = self._all.stream.checker, connection.process
        checker.acts(process)
        checker.says_it_has(process.node_id, base_offset)
        if count != len(sent.numbers):
            raise Violation(f"{sent} was acknowledged as {count} records")
        for offset, number in enumerate(sent.numbers, base_offset):
            checker.acknowledged(number, offset)
        self._world.count("acknowledged straight")
        self._answer(connection, producer, sent, {"duplicate": is_duplicate})

    def _refused(
        self, connection: Connection, producer: Producer, sent: Sent, error: JetstreamError
    ) -> None:
        code = CODES[type(error)].nats_err_code
        self._world.count(f"refused straight {code}")
        said = {"err_code": code, "description": error.message}
        self._answer(connection, producer, sent, {"error": said})

    def _answer(
        self, connection: Connection, producer: Producer, sent: Sent, answer: dict[str, Any]
    ) -> None:
        delay = self._random.randint(50, 2_000)
        self._world.later(delay, None, self._hear, connection, producer, sent, answer)

    def _hear(
        self, connection: Connection, producer: Producer, sent: Sent, answer: dict[str, Any]
    ) -> None:
        if self._is_whole(connection) and self._world.now >= self._all.deaf_until:
            if "error" in answer:
                self._leader = NO_NODE
            producer.answered(sent, answer)
        else:
            self._world.count("answer lost")
