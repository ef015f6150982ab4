"""Links between the members of the metadata group: one authenticated TCP connection per pair.

Of two voters, the one with the higher id dials. A node that does not vote dials every voter. While
the voters change, two nodes may see this differently, so whoever has waited in vain dials too; a
link that is there stays. Each link carries frames both ways (handshake.py), sends keep-alives, and
is dropped when it falls silent.

Whoever has not authenticated is limited to a few hundred bytes, a few seconds and a few
connections. Whatever it does ends its own connection and nothing else. Only an error of an
authenticated link may end this node's part in the group.

A second process with a node id in use is refused while the first one is heard. A new run of the
same node is accepted once the old connection is closed or silent.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import structlog

from jetstream_protocol.errors import (
    InvalidRequestError,
    JetstreamError,
    PreconditionFailedError,
    UnauthenticatedError,
)
from jetstream_protocol.types import NodeId
from jetstream_server.log_throttle import LogThrottle
from jetstream_server.metadata.raft import handshake
from jetstream_server.metadata.raft.handshake import (
    Answer,
    Capability,
    Hello,
    Identity,
    Purpose,
    Sealer,
    Status,
)
from jetstream_server.metadata.raft.link import (
    SILENCE_MAX,
    Link,
    LinkTimings,
    split_address,
)
from jetstream_server.net.acceptor import accept_each, listen_on
from jetstream_server.net.byte_stream import ByteStream
from jetstream_server.net.certificates import Certificates
from jetstream_server.net.dial import dial as dial_host
from jetstream_server.net.frame_socket import peer_of
from jetstream_server.net.handshake_turns import HandshakeTurns
from jetstream_server.net.tls_socket import StreamSocket, TlsError
from jetstream_server.net.tls_socket import handshake as tls_handshake
from jetstream_server.origins import Strangers, origin_of

logger = structlog.get_logger(__name__)

HANDSHAKE_SECONDS_MAX = 3.0
HANDSHAKES_MAX = 64
"""Upper bound on connections that have not authenticated: ten times the size of a group."""

ACCEPTED_AT_ONCE = 16
"""In one iteration of the loop. A peer needs a few of them, and must not be pushed out before."""

WAIT_SECONDS = 2.0
"""How long a voter waits for the link of one with a higher id. It may not know that this node
votes, or may have been recovered without it."""


class LinkEvents(Protocol):
    """Events for a member. Called on the event loop of the links."""

    def link_up(self, peer: NodeId, capabilities: Capability) -> None: ...

    def link_down(self, peer: NodeId) -> None: ...

    def frame_received(self, peer: NodeId, payload: bytes) -> None:
        """Take a frame. A JetstreamError raised here closes the link."""

    def superseded(self, reason: str) -> None:
        """Stop: a peer reports that the group was recovered without this node."""


class Connection(NamedTuple):
    """A connection that was dialled, and the codecs for sending and receiving on it."""

    stream: ByteStream
    answer: Answer
    codecs: tuple[Sealer, Sealer]


async def dial(
    address: str,
    purpose: Purpose,
    identity: Identity,
    *,
    target: NodeId,
    cluster: bytes,
    certificates: Certificates | None,
    certificate_of: NodeId | None = None,
) -> Connection:
    """Dial a Raft port and shake hands. certificate_of: the node whose certificate the other end
    must show; None: the caller checks that. Raises OSError, EOFError, InvalidRequestError and
    UnauthenticatedError."""
    sock: StreamSocket = await dial_host(*split_address(address), HANDSHAKE_SECONDS_MAX)
    try:
        if isinstance(sock, socket.socket) and certificates is not None:
            sock = await tls_handshake(
                sock, certificates.dial, HANDSHAKE_SECONDS_MAX, server_side=False
            )
        stream = ByteStream(sock)
    except BaseException:
        sock.close()
        raise
    try:
        if certificates is not None and certificate_of is not None:
            _check_certificate(stream, certificate_of)
        secret = identity.secret
        challenge = handshake.decode_challenge(await stream.read_exactly(handshake.CHALLENGE_BYTES))
        nonce = secrets.token_bytes(handshake.NONCE_BYTES)
        hello = Hello(
            purpose=purpose,
            sender=identity.node_id,
            target=target,
            instance=identity.instance,
            cluster=cluster,
            nonce=nonce,
        )
        stream.write(handshake.encode_hello(hello, secret, challenge))
        data = await stream.read_exactly(handshake.ANSWER_BYTES)
        answer = handshake.decode_answer(data, secret, nonce, challenge)
    except BaseException:
        stream.close()
        raise
    codecs = handshake.sealers(secret, challenge, nonce, dialled=True)
    return Connection(stream, answer, codecs)


class PeerLinks:
    """All links of one member.

    addresses: for every voter, host:port, likely ones first; `use` replaces them. cluster: a digest
    of the cluster id, as far as known. superseded: digests of the group before its recoveries.
    certificates: links begin with mutual TLS, and each end must show its node's certificate.
    problems: for each peer without a link, the reason. group: what a new node is answered
    (joining.py).
    """

    def __init__(
        self,
        identity: Identity,
        addresses: Mapping[NodeId, Sequence[str]],
        events: LinkEvents,
        cluster: Callable[[], bytes],
        timings: LinkTimings | None = None,
        superseded: Callable[[], Sequence[bytes]] = tuple,
        certificates: Certificates | None = None,
        group: Callable[[], bytes] = bytes,
    ) -> None:
        self._group = group
        self._certificates = certificates
        self.problems: dict[NodeId, str] = {}
        self._identity = identity
        self._addresses = dict(addresses)
        self._has_started = False
        # Voters for which a task sees to a link.
        self._sought: set[NodeId] = set()
        self._events = events
        self._cluster = cluster
        self._superseded = superseded
        self._timings = timings or LinkTimings()
        self._links: dict[NodeId, Link] = {}
        self._strangers: Strangers[asyncio.Task[None]] = Strangers()
        self._handshakes = HandshakeTurns()
        self._throttle = LogThrottle()
        self._listeners: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen(self, address: str) -> None:
        """Accept peers on host:port. Raises PreconditionFailedError when it cannot be bound."""
        try:
            self._listeners = await listen_on(*split_address(address))
        except OSError as error:
            raise PreconditionFailedError(
                f"cannot listen for the metadata group on {address}: {error.strerror or error}"
            ) from error
        for listener in self._listeners:
            self._spawn(accept_each(listener, self._accept, logger, ACCEPTED_AT_ONCE))

    def start(self) -> None:
        """Dial the peers of this node, and watch the links."""
        self._has_started = True
        self.use(self._addresses)
        self._spawn(self._watch())

    def use(self, addresses: Mapping[NodeId, Sequence[str]]) -> None:
        """Dial these voters from now on. Links that there are stay."""
        self._addresses = dict(addresses)
        for peer in [known for known in self.problems if known not in addresses]:
            del self.problems[peer]
        for peer in sorted(addresses) if self._has_started else ():
            if peer != self._identity.node_id and peer not in self._sought:
                self._sought.add(peer)
                self._spawn(self._keep_dialling(peer))

    async def close(self) -> None:
        for link in tuple(self._links.values()):
            link.close()
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for listener in self._listeners:
            listener.close()

    def send(self, peer: NodeId, payload: bytes) -> bool:
        """Send a frame, in order after earlier ones; False when there is no link."""
        link = self._links.get(peer)
        return link is not None and link.send(payload)

    def drop(self, peer: NodeId, problem: str) -> None:
        """Close the link to a peer that sent something impossible. It is dialled again."""
        link = self._links.get(peer)
        if link is not None:
            link.close()
        self.problems[peer] = problem

    def connected_nodes(self) -> tuple[NodeId, ...]:
        return tuple(sorted(self._links))

    async def check_id_is_free(self, patience: float) -> None:
        """Ask every peer that answers. Raises PreconditionFailedError if another process has the
        id.

        A peer may still hold the link of this node's previous run, so ask for up to `patience` s.
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
        """The peer's answer to a probe; None: there was none."""
        for address in self._addresses.get(peer, ()):  # It may have lost its vote meanwhile.
            try:
                async with asyncio.timeout(HANDSHAKE_SECONDS_MAX):
                    connection = await self._dial(peer, address, Purpose.PROBE)
            except (OSError, EOFError, JetstreamError):
                continue  # Unreachable or not trusted: the later dial reports it.
            connection.stream.close()
            return connection.answer.status
        return None

    # Dialling

    async def _keep_dialling(self, peer: NodeId) -> None:
        """Keep a link to the peer while this node runs."""
        pause = self._timings.redial_min
        attempt = 0
        while peer in self._addresses:
            if not self._dials_first(peer):
                await asyncio.sleep(WAIT_SECONDS)
            if peer in self._links or peer not in self._addresses:
                await asyncio.sleep(self._timings.redial_max)
                continue
            if (link := await self._dial_link(peer, attempt)) is not None:
                pause = self._timings.redial_min
                ended = await self._serve(link)
                if peer not in self.problems:  # Else this node has ended it, and noted why.
                    self._note(peer, _problem(ended))
            else:
                attempt += 1
            # Jitter, so that the members of a restarted group do not dial at the same time.
            await asyncio.sleep(pause * (0.5 + secrets.randbelow(1000) / 1000))
            pause = min(pause * 2, self._timings.redial_max)
        self._sought.discard(peer)

    async def _dial_link(self, peer: NodeId, attempt: int) -> Link | None:
        """A link; None: there is none now, and `problems` says why."""
        try:
            address = self._address(peer, attempt)
            async with asyncio.timeout(HANDSHAKE_SECONDS_MAX):
                connection = await self._dial(peer, address, Purpose.LINK)
            self._check_answer(connection, peer)
        except (OSError, EOFError, JetstreamError) as error:
            self._note(peer, _problem(error))
        except Exception as error:  # noqa: BLE001  a peer that is not authenticated yet
            self._failed(f"node {peer}", error)
            self._note(peer, _problem(error))
        else:
            answer = connection.answer
            return Link(
                peer, answer.instance, answer.capabilities, connection.stream, connection.codecs
            )
        return None

    def _dials_first(self, peer: NodeId) -> bool:
        own = self._identity.node_id
        return own not in self._addresses or peer < own

    def _address(self, peer: NodeId, attempt: int) -> str:
        """The address to try. Raises InvalidRequestError if none is known."""
        known = self._addresses[peer]
        if not known:
            raise InvalidRequestError("cannot be reached: its address is not known here")
        return known[attempt % len(known)]

    async def _dial(self, peer: NodeId, address: str, purpose: Purpose) -> Connection:
        return await dial(
            address,
            purpose,
            self._identity,
            target=peer,
            cluster=self._cluster(),
            certificates=self._certificates,
            certificate_of=peer,
        )

    def _check_answer(self, connection: Connection, peer: NodeId) -> None:
        status = connection.answer.status
        if status == Status.WELCOME and connection.answer.sender != peer:
            status = Status.WRONG_NODE
        if status != Status.WELCOME:
            connection.stream.close()
            if status == Status.SUPERSEDED:
                self._events.superseded(_superseded_by(peer))
            raise PreconditionFailedError(handshake.REFUSALS[status])

    def _note(self, peer: NodeId, problem: str) -> None:
        if self.problems.get(peer) != problem:
            self.problems[peer] = problem
            logger.warning("metadata_peer_not_linked", peer=peer, reason=problem)

    # Accepting

    def _accept(self, sock: socket.socket) -> None:
        if len(self._strangers) >= HANDSHAKES_MAX and (first := self._strangers.pop()) is not None:
            first.cancel()
        task = self._spawn(self._welcome(sock))
        self._strangers.add(task, origin_of(peer_of(sock)))
        task.add_done_callback(self._strangers.discard)
        task.add_done_callback(lambda _: sock.close())  # It may have been cancelled before it ran.

    async def _welcome(self, sock: socket.socket) -> None:
        """Serve a connection until it ends. A connection that fails the handshake is closed."""
        source = peer_of(sock)
        try:
            link = await self._shake_hands(sock)
        except (OSError, EOFError, JetstreamError) as error:
            self._hung_up(source, error)
            return
        except Exception as error:  # noqa: BLE001  a stranger: its connection ends, nothing else
            self._failed(source, error)
            return
        task = asyncio.current_task()
        assert task is not None
        self._strangers.discard(task)
        if link is not None:
            self._hung_up(source, await self._serve(link))

    def _failed(self, source: str, error: Exception) -> None:
        if self._throttle.is_due(source, type(error).__name__):
            logger.error("metadata_connection_failed", source=source, exc_info=error)

    def _hung_up(self, source: str, error: Exception) -> None:
        reason = str(error) or type(error).__name__
        if self._throttle.is_due(source, reason):
            logger.warning("metadata_connection_ended", source=source, reason=reason)

    async def _shake_hands(self, sock: StreamSocket) -> Link | None:
        """The link of an accepted peer; None for a probe. Raises if the peer is not accepted."""
        async with asyncio.timeout(HANDSHAKE_SECONDS_MAX):
            if isinstance(sock, socket.socket) and self._certificates is not None:
                sock = await tls_handshake(
                    sock,
                    self._certificates.raft,
                    HANDSHAKE_SECONDS_MAX,
                    server_side=True,
                    turn=self._handshakes.of(peer_of(sock)),
                )
            stream = ByteStream(sock)
            link = None
            try:
                link = await self._admit(stream)
            finally:
                if link is None:
                    stream.close()
            return link

    async def _admit(self, stream: ByteStream) -> Link | None:
        challenge = secrets.token_bytes(handshake.NONCE_BYTES)
        stream.write(handshake.encode_challenge(challenge))
        data = await stream.read_exactly(handshake.HELLO_BYTES)
        hello = await self._checked_hello(data, challenge, stream)
        if self._certificates is not None:
            _check_certificate(stream, hello.sender)
        status = self._status_for(hello)
        await self._answer(status, hello.nonce, challenge, stream)
        if status != Status.WELCOME:
            raise PreconditionFailedError(f"node {hello.sender} was refused: {status.name}")
        if hello.purpose == Purpose.PROBE:
            return None
        codecs = handshake.sealers(self._identity.secret, challenge, hello.nonce, dialled=False)
        if hello.purpose == Purpose.ASK:
            stream.write(codecs[0].seal(self._group()))
            await stream.read_to_end()  # The other end hangs up once it has read it.
            return None
        return Link(hello.sender, hello.instance, hello.capabilities, stream, codecs)

    async def _checked_hello(self, data: bytes, challenge: bytes, stream: ByteStream) -> Hello:
        try:
            return handshake.decode_hello(data, self._identity.secret, challenge)
        except UnauthenticatedError:
            await self._answer(Status.BAD_CREDENTIAL, b"", challenge, stream)
            raise

    async def _answer(
        self, status: Status, nonce: bytes, challenge: bytes, stream: ByteStream
    ) -> None:
        answer = Answer(status, self._identity.node_id, self._identity.instance)
        stream.write(handshake.encode_answer(answer, self._identity.secret, nonce, challenge))
        await stream.sent()
        if status != Status.WELCOME:
            stream.close_sending()

    def _status_for(self, hello: Hello) -> Status:
        own = self._cluster()
        if handshake.UNKNOWN_CLUSTER not in (own, hello.cluster) and own != hello.cluster:
            is_former = hello.cluster in self._superseded()
            return Status.SUPERSEDED if is_former else Status.OTHER_CLUSTER
        if hello.target != self._identity.node_id and hello.purpose != Purpose.ASK:
            return Status.WRONG_NODE
        if hello.sender == self._identity.node_id:
            return Status.ID_IN_USE
        link = self._links.get(hello.sender)
        if link is not None and link.instance != hello.instance:
            return Status.ID_IN_USE
        return Status.WELCOME

    # Links

    async def _serve(self, link: Link) -> Exception:
        """Run the link until the connection ends. Returns why it has ended. Whatever else is raised
        is a bug of this node."""
        old = self._links.pop(link.peer, None)
        if old is not None:
            old.close()
            self._events.link_down(link.peer)
        self._links[link.peer] = link
        self.problems.pop(link.peer, None)
        try:
            self._events.link_up(link.peer, link.capabilities)
            while True:
                self._events.frame_received(link.peer, await link.receive())
        except (OSError, EOFError, JetstreamError) as error:
            return error
        finally:
            link.close()
            if self._links.get(link.peer) is link:
                del self._links[link.peer]
                self._events.link_down(link.peer)

    async def _watch(self) -> None:
        """Keep links alive, and drop those that have fallen silent."""
        while True:
            await asyncio.sleep(self._timings.keep_alive)
            for link in tuple(self._links.values()):
                if link.count_silence() > SILENCE_MAX:
                    silent_s = SILENCE_MAX * self._timings.keep_alive
                    self._note(link.peer, f"has been silent for {silent_s} s")
                    link.close()
                else:
                    link.keep_alive()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            # A bug of this node, not a fault of the peer: the member must stop.
            context = {"message": "metadata link failed", "exception": task.exception()}
            task.get_loop().call_exception_handler(context)


def _check_certificate(stream: ByteStream, peer: NodeId) -> None:
    """Raise UnauthenticatedError unless the other end has shown that node's certificate."""
    identity = stream.peer_identity
    if identity is None or identity.node_id != peer:
        name = "" if identity is None else f": it is that of {identity.name}"
        raise UnauthenticatedError(f"the certificate is not that of node {peer}{name}")


def _problem(error: Exception) -> str:
    """Why there is no link to the peer that was dialled."""
    if isinstance(error, JetstreamError):
        return error.message
    if isinstance(error, TlsError):
        return f"cannot be reached over TLS: {error.reason}"
    text = str(error) or type(error).__name__
    if type(error) is OSError or isinstance(
        error, ConnectionError
    ):  # Others have numbers of theirs.
        text = os.strerror(error.errno).lower() if error.errno else text
    return f"cannot be reached: {text}"


def _superseded_by(peer: NodeId) -> str:
    return f"node {peer} {handshake.REFUSALS[Status.SUPERSEDED]}"
