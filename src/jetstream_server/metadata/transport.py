"""Links between the members of the metadata group: one authenticated TCP connection per pair.

Of two voters the one with the higher id dials; a node that only follows dials every voter. Each
link carries frames both ways (handshake.py), keeps itself alive, and is dropped when it falls
silent. Everything that has not proved to know the cluster's credential is held to a few hundred
bytes, a few seconds and a few connections: foreign bytes cost nothing more.

A second process with a node id already in use is refused while the first is being heard; a new
run of the same node takes its place once the old connection is gone or silent.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol

import structlog

from jetstream_protocol.errors import (
    JetstreamError,
    PreconditionFailedError,
    UnauthenticatedError,
)
from jetstream_protocol.types import NodeId
from jetstream_server.complaints import Complaints
from jetstream_server.metadata import handshake
from jetstream_server.metadata.handshake import Answer, Hello, Identity, Purpose, Sealer, Status
from jetstream_server.metadata.link import (
    READ_BUFFER_BYTES,
    SILENCE_MAX,
    Link,
    LinkTimings,
    split_address,
)

_log = structlog.get_logger(__name__)

HANDSHAKE_SECONDS_MAX = 3.0
HANDSHAKES_MAX = 64
"""Connections that have not said who they are; ten times a group's size."""

SUPERSEDED_ASK_SECONDS = 2.0


class LinkEvents(Protocol):
    """What a member is told. Called on the event loop of the links."""

    def link_up(self, peer: NodeId) -> None: ...

    def link_down(self, peer: NodeId) -> None: ...

    def frame_received(self, peer: NodeId, payload: bytes) -> None:
        """A JetstreamError raised here closes the link."""

    def superseded(self, reason: str) -> None:
        """A peer says that the group was recovered without this node: it must not go on."""


class PeerLinks:
    """All links of one member.

    addresses: host:port of every voter. cluster: a digest of the cluster id as far as it is known.
    superseded: digests of the group as it was before its recoveries.
    problems: why a peer cannot be linked to, in words, while it cannot.
    """

    def __init__(
        self,
        identity: Identity,
        addresses: Mapping[NodeId, str],
        events: LinkEvents,
        cluster: Callable[[], bytes],
        timings: LinkTimings | None = None,
        superseded: Callable[[], Sequence[bytes]] = tuple,
    ) -> None:
        self.problems: dict[NodeId, str] = {}
        self._identity = identity
        self._addresses = dict(addresses)
        self._events = events
        self._cluster = cluster
        self._superseded = superseded
        self._timings = timings or LinkTimings()
        self._links: dict[NodeId, Link] = {}
        # Connections that have not said who they are, in the order of their arrival.
        self._strangers: dict[int, asyncio.StreamWriter] = {}
        self._stranger = 0
        self._complaints = Complaints()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen(self, address: str) -> None:
        """Accept peers on host:port. Raises PreconditionFailedError when it cannot be bound."""
        host, port = split_address(address)
        try:
            self._server = await asyncio.start_server(
                self._accept, host, port, limit=READ_BUFFER_BYTES
            )
        except OSError as error:
            raise PreconditionFailedError(
                f"cannot listen for the metadata group on {address}: {error.strerror or error}"
            ) from error

    def start(self) -> None:
        """Dial whom this node is to dial, and watch over the links."""
        own = self._identity.node_id
        for peer in sorted(self._addresses):
            if peer != own and (own not in self._addresses or peer < own):
                self._spawn(self._keep_dialling(peer))
            elif peer != own:
                self._spawn(self._ask_whether_superseded(peer))
        self._spawn(self._watch())

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for link in tuple(self._links.values()):
            link.close()
        for writer in self._strangers.values():
            writer.transport.abort()
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def send(self, peer: NodeId, payload: bytes) -> bool:
        """Send a frame, in order after earlier ones; False when there is no link."""
        link = self._links.get(peer)
        return link is not None and link.send(payload)

    def drop(self, peer: NodeId, problem: str) -> None:
        """End the link with a peer that said what cannot be; it is dialled again."""
        link = self._links.get(peer)
        if link is not None:
            link.close()
        self.problems[peer] = problem

    def connected(self) -> tuple[NodeId, ...]:
        return tuple(sorted(self._links))

    async def check_id_is_free(self, patience: float) -> None:
        """Ask every peer that answers. Raises PreconditionFailedError if another process has it.

        A peer may still hold the link of this node's previous run: it is asked for `patience` s.
        """
        deadline = asyncio.get_running_loop().time() + patience
        others = [peer for peer in sorted(self._addresses) if peer != self._identity.node_id]
        while True:
            answers = await asyncio.gather(*(self._probe(peer) for peer in others))
            if Status.SUPERSEDED in answers:
                peer = others[answers.index(Status.SUPERSEDED)]
                raise PreconditionFailedError(_superseded_by(peer))
            if Status.ID_IN_USE not in answers:
                return
            if asyncio.get_running_loop().time() > deadline:
                raise PreconditionFailedError(
                    f"node id {self._identity.node_id} is in use by another running server of "
                    "this cluster: give this one another --node-id, or stop the other"
                )
            await asyncio.sleep(0.2)

    async def _probe(self, peer: NodeId) -> Status | None:
        """The peer's answer to a probe, None without one."""
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS_MAX):
                _, writer, answer, _ = await self._dial(peer, Purpose.PROBE)
        except (OSError, asyncio.IncompleteReadError, JetstreamError):
            return None  # Not there, or not to be believed: the dialling that follows will tell.
        writer.transport.abort()
        return answer.status

    async def _ask_whether_superseded(self, peer: NodeId) -> None:
        """The peer is to dial this node. It does not if it was recovered without it."""
        while True:
            await asyncio.sleep(SUPERSEDED_ASK_SECONDS)
            if peer not in self._links and await self._probe(peer) == Status.SUPERSEDED:
                self._events.superseded(_superseded_by(peer))

    # Dialling

    async def _keep_dialling(self, peer: NodeId) -> None:
        """Keep a link to the peer for as long as this node runs."""
        pause = self._timings.redial_min
        while True:
            try:
                async with asyncio.timeout(HANDSHAKE_SECONDS_MAX):
                    reader, writer, answer, codecs = await self._dial(peer, Purpose.LINK)
                self._check_answer(answer, peer, writer)
                pause = self._timings.redial_min
                await self._serve(Link(peer, answer.instance, reader, writer, codecs))
            except (OSError, asyncio.IncompleteReadError) as error:
                self._note(peer, f"cannot be reached: {str(error) or type(error).__name__}")
            except JetstreamError as error:
                self._note(peer, error.message)
            # Jitter, so that the members of a restarted group do not dial in step.
            await asyncio.sleep(pause * (0.5 + secrets.randbelow(1000) / 1000))
            pause = min(pause * 2, self._timings.redial_max)

    async def _dial(
        self, peer: NodeId, purpose: Purpose
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, Answer, tuple[Sealer, Sealer]]:
        host, port = split_address(self._addresses[peer])
        reader, writer = await asyncio.open_connection(host, port, limit=READ_BUFFER_BYTES)
        try:
            secret = self._identity.secret
            challenge = handshake.decode_challenge(
                await reader.readexactly(handshake.CHALLENGE_BYTES)
            )
            nonce = secrets.token_bytes(handshake.NONCE_BYTES)
            hello = Hello(
                purpose=purpose,
                sender=self._identity.node_id,
                target=peer,
                instance=self._identity.instance,
                cluster=self._cluster(),
                nonce=nonce,
            )
            writer.write(handshake.encode_hello(hello, secret, challenge))
            data = await reader.readexactly(handshake.ANSWER_BYTES)
            answer = handshake.decode_answer(data, secret, nonce, challenge)
        except BaseException:
            writer.transport.abort()
            raise
        return reader, writer, answer, handshake.sealers(secret, challenge, nonce, dialled=True)

    def _check_answer(self, answer: Answer, peer: NodeId, writer: asyncio.StreamWriter) -> None:
        status = answer.status
        if status == Status.WELCOME and answer.sender != peer:
            status = Status.WRONG_NODE
        if status != Status.WELCOME:
            writer.transport.abort()
            if status == Status.SUPERSEDED:
                self._events.superseded(_superseded_by(peer))
            raise PreconditionFailedError(handshake.REFUSALS[status])

    def _note(self, peer: NodeId, problem: str) -> None:
        if self.problems.get(peer) != problem:
            self.problems[peer] = problem
            _log.warning("metadata_peer_not_linked", peer=peer, reason=problem)

    # Accepting

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._strangers) >= HANDSHAKES_MAX:
            # The oldest has had the most time to say who it is; a real peer needs one round trip.
            self._strangers.pop(next(iter(self._strangers))).transport.abort()
        self._stranger += 1
        self._strangers[self._stranger] = writer
        self._spawn(self._welcome(self._stranger, reader, writer))

    async def _welcome(
        self, stranger: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Serve a connection until it ends; what fails its handshake just ends."""
        try:
            link = await self._shake_hands(reader, writer)
            self._strangers.pop(stranger, None)
            if link is not None:
                await self._serve(link)
        except (OSError, asyncio.IncompleteReadError, JetstreamError) as error:
            source = writer.get_extra_info("peername") or ("",)
            if self._complaints.is_due(source[0], str(error)):
                _log.warning("metadata_connection_ended", source=source, reason=str(error))
        finally:
            self._strangers.pop(stranger, None)
            writer.transport.abort()

    async def _shake_hands(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Link | None:
        """The link of a peer that may have one; None for a probe. Raises for anyone else."""
        async with asyncio.timeout(HANDSHAKE_SECONDS_MAX):
            challenge = secrets.token_bytes(handshake.NONCE_BYTES)
            writer.write(handshake.encode_challenge(challenge))
            data = await reader.readexactly(handshake.HELLO_BYTES)
            hello = await self._checked_hello(data, challenge, writer)
            status = self._status_for(hello)
            await self._answer(status, hello.nonce, challenge, writer)
        if status != Status.WELCOME:
            raise PreconditionFailedError(f"node {hello.sender} was refused: {status.name}")
        if hello.purpose == Purpose.PROBE:
            return None
        codecs = handshake.sealers(self._identity.secret, challenge, hello.nonce, dialled=False)
        return Link(hello.sender, hello.instance, reader, writer, codecs)

    async def _checked_hello(
        self, data: bytes, challenge: bytes, writer: asyncio.StreamWriter
    ) -> Hello:
        try:
            return handshake.decode_hello(data, self._identity.secret, challenge)
        except UnauthenticatedError:
            await self._answer(Status.BAD_CREDENTIAL, b"", challenge, writer)
            raise

    async def _answer(
        self, status: Status, nonce: bytes, challenge: bytes, writer: asyncio.StreamWriter
    ) -> None:
        answer = Answer(status, self._identity.node_id, self._identity.instance)
        writer.write(handshake.encode_answer(answer, self._identity.secret, nonce, challenge))
        await writer.drain()
        if status != Status.WELCOME:
            writer.write_eof()  # Say it before `abort` cuts the connection.
            await asyncio.sleep(0)

    def _status_for(self, hello: Hello) -> Status:
        own = self._cluster()
        if handshake.UNKNOWN_CLUSTER not in (own, hello.cluster) and own != hello.cluster:
            is_former = hello.cluster in self._superseded()
            return Status.SUPERSEDED if is_former else Status.OTHER_CLUSTER
        if hello.target != self._identity.node_id:
            return Status.WRONG_NODE
        if hello.sender == self._identity.node_id:
            return Status.ID_IN_USE
        link = self._links.get(hello.sender)
        if link is not None and link.instance != hello.instance:
            return Status.ID_IN_USE
        return Status.WELCOME

    # Links

    async def _serve(self, link: Link) -> None:
        """Be linked to the peer until the connection ends."""
        old = self._links.pop(link.peer, None)
        if old is not None:
            old.close()
            self._events.link_down(link.peer)
        self._links[link.peer] = link
        self.problems.pop(link.peer, None)
        self._events.link_up(link.peer)
        try:
            while True:
                self._events.frame_received(link.peer, await link.receive())
        finally:
            link.close()
            if self._links.get(link.peer) is link:
                del self._links[link.peer]
                self._events.link_down(link.peer)

    async def _watch(self) -> None:
        """Keep links alive; drop those that have fallen silent."""
        while True:
            await asyncio.sleep(self._timings.keep_alive)
            for link in tuple(self._links.values()):
                link.silence += 1
                if link.silence > SILENCE_MAX:
                    silent_s = SILENCE_MAX * self._timings.keep_alive
                    self._note(link.peer, f"has been silent for {silent_s} s")
                    link.close()
                else:
                    link.send(b"")

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            # Not a peer's doing but a mistake here: the member must hear of it and stop.
            context = {"message": "metadata link failed", "exception": task.exception()}
            task.get_loop().call_exception_handler(context)


def _superseded_by(peer: NodeId) -> str:
    return f"node {peer} {handshake.REFUSALS[Status.SUPERSEDED]}"
