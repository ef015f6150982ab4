"""The NATS connection of a publisher: nats-py, its errors as ours, one inbox for all answers.

nats-py reconnects by itself, to the given servers and those it learns of, and then sends the
messages published meanwhile. It is imported on first use, because readers do not need it.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from importlib import import_module
from ssl import SSLContext
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from jetstream_client._log import logger
from jetstream_client.transport.connection_events import ConnectionEvents
from jetstream_client.transport.port_probe import what_listens
from jetstream_client.transport.recent import ADDRESSES_MAX, Recent
from jetstream_client.values.config import NatsOptions
from jetstream_client.values.headers import OutgoingHeaders
from jetstream_protocol.errors import (
    InvalidRequestError,
    JetstreamError,
    MessageTooLargeError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnavailableError,
)

if TYPE_CHECKING:
    from nats.aio.client import Client as NatsClient
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

    from jetstream_client.transport.nats_socket import NatsSocket

_NO_RESPONDERS = "503"
_BUFFER_BYTES = 2 * 1024 * 1024
"""So many bytes may wait in nats-py for NATS to take them."""
_HEADERS_BYTES = len("NATS/1.0\r\n\r\n")
_COMMAND_BYTES = 256
"""At most, of a message's command beside its subject and headers."""
_GREETING_SECONDS = 0.5
"""NATS greets at once. After this time the client checks what else may listen there."""
# nats-py hands the server's error on in lower case.
_FORBIDDEN = re.compile(r'permissions violation for (publish|subscription) to "([^"]*)"')


def load_nats() -> asyncio.Future[Any]:
    """Import nats-py, in a thread, because the first time takes some tenths of a second. To be
    waited for before the time of a publish begins."""
    loop = asyncio.get_running_loop()
    return loop.run_in_executor(None, import_module, "nats.aio.client")


def without_secrets(url: str) -> str:
    """`url` as it may appear in an error."""
    parts = urlsplit(url if "://" in url else f"nats://{url}")
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}"


def login_of(urls: Sequence[str], options: NatsOptions) -> tuple[list[str], NatsOptions]:
    """The servers without their logins, and the options with one: nats-py does not decode `%40`.

    A URL's user alone is a token, as in every NATS client. The options win over the URLs, and
    the first login over the others.
    """
    servers = []
    for url in urls:
        parts = urlsplit(url if "://" in url else f"nats://{url}")
        servers.append(without_secrets(url))
        if parts.username and not (options.user or options.token):
            user = unquote(parts.username)
            if parts.password is None:
                options = replace(options, token=user)
            else:
                options = replace(options, user=user, password=unquote(parts.password))
    return servers, options


def _what_to_give(reason: str) -> str:
    """The option for what TLS lacks, as an end of the sentence."""
    if "CERTIFICATE_VERIFY_FAILED" in reason:
        return "; its authority belongs into tls_ca (--nats-ca, JETSTREAM_NATS_CA)"
    if "ALERT" in reason and "CERT" in reason:
        return (
            "; it asks for a certificate that it trusts: tls_certificate "
            "(--nats-cert, JETSTREAM_NATS_CERT)"
        )
    return ""


def _check_size(size: int, most: int) -> None:
    """nats-py counts the payload alone. NATS counts headers, too, and ends the connection of a
    client that sends more, with all that is under way on it."""
    if size > most:
        raise _too_large_error(size, most)


def _too_large_error(size: int, most: int) -> MessageTooLargeError:
    return MessageTooLargeError(f"{size} bytes are more than NATS takes in one message: {most}")


class NatsInbox:
    """A connection and the subscription that gets all answers.

    on_answer(token, payload): a payload of None says that the subject has no subscriber.
    on_refusal(subject, error): NATS forbids a subject; "" if the error names none. An answer to a
    publish with a token comes to `prefix` + token.
    """

    def __init__(
        self,
        on_answer: Callable[[str, bytes | None], None],
        on_refusal: Callable[[str, JetstreamError], None],
        events: ConnectionEvents,
    ) -> None:
        self._events = events
        self._on_answer = on_answer
        self._on_refusal = on_refusal
        self._client: NatsClient | None = None
        self._socket: NatsSocket | None = None
        self._answers: Subscription | None = None
        self._turn = asyncio.Lock()  # To add to the full buffer.
        self._waiting = 0  # For their turn.
        self.on_reconnected: Callable[[], None] = lambda: None
        self._changed = asyncio.Event()  # It has a connection again, or will have none.
        self._adding: asyncio.Future[None] | None = None
        self.prefix = ""
        self._servers: list[str] = []
        self._failure: asyncio.Future[JetstreamError] | None = None
        self._last_error = ""
        self._warned: Recent[str, bool] = Recent(ADDRESSES_MAX)  # since it was last connected
        self._patient = True
        self._refusals = 0

    @property
    def is_closed(self) -> bool:
        return self._client is None or self._client.is_closed

    @property
    def is_connected(self) -> bool:
        return self._client is not None and self._client.is_connected

    async def wait_until_connected(self) -> None:
        """Or closed: then it will not be connected any more."""
        while not self.is_connected and not self.is_closed:
            self._changed.clear()
            await self._changed.wait()

    @property
    def max_payload(self) -> int:
        """What the server of this connection takes in one message, bytes. Another server may take
        more or less: ask again after a reconnect."""
        assert self._client is not None
        return self._client.max_payload

    async def connect(
        self, urls: Sequence[str], options: NatsOptions, timeout: float, *, patient: bool = True
    ) -> None:
        """Raises UnavailableError or UnauthenticatedError, and InvalidRequestError if something
        other than NATS answers.

        patient: go on trying if all servers refuse connections; otherwise raise at once.
        """
        from nats.aio.client import Client as NatsClient

        from jetstream_client.transport.nats_socket import NatsSocket, end

        options.check_files()
        context = options.ssl_context()
        self._servers, options = login_of(urls, options)
        self._patient = patient
        client = NatsClient()
        socket = NatsSocket()
        if not self._servers[0].startswith("ws"):
            client._transport = socket
        self._failure = asyncio.get_running_loop().create_future()
        connecting = asyncio.ensure_future(self._connect(client, options, context))
        looking = asyncio.ensure_future(self._look_who_listens())
        try:
            await self._first_of(connecting, self._failure, timeout)
        except BaseException:
            await end([connecting])
            await self._end(client, socket)
            raise
        finally:
            looking.cancel()
        self._client, self._socket = client, socket
        self._events.connected("nats", ", ".join(self._servers))

    async def _first_of(
        self,
        connecting: asyncio.Future[None],
        failure: asyncio.Future[JetstreamError],
        timeout: float,
    ) -> None:
        """Return when connected; raise what stands in the way, or what did last."""
        either: set[asyncio.Future[Any]] = {connecting, failure}
        done, _ = await asyncio.wait(either, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if failure in done:
            raise failure.result()
        if connecting in done:
            error = connecting.exception()
            if error is None:
                return
            self._last_error = str(error)
        raise UnavailableError(self.why_not_connected)

    @property
    def why_not_connected(self) -> str:
        """While it connects: where to, and what went wrong at the last attempt."""
        where = f" at {', '.join(self._servers)}" if self._servers else ""
        why = f": {self._last_error}" if self._last_error else " in time"
        return f"cannot connect to NATS{where}{why}{_what_to_give(self._last_error)}"

    @property
    def why_lost(self) -> str:
        """After it was connected: why no answer can come now; "": it is connected."""
        if self._client is None or self._client.is_connected:
            return ""
        why = f": {self._last_error}" if self._last_error else ""
        return f"the connection to NATS at {', '.join(self._servers)} is lost{why}"

    async def _connect(
        self,
        client: NatsClient,
        options: NatsOptions,
        context: SSLContext | None,
    ) -> None:
        await client.connect(
            servers=list(self._servers),
            error_cb=self._on_error,
            closed_cb=self._on_closed,
            disconnected_cb=self._on_disconnected,
            reconnected_cb=self._on_reconnected,
            name="jetstream-client",
            max_reconnect_attempts=-1,
            reconnect_time_wait=1,
            connect_timeout=2,
            pending_size=_BUFFER_BYTES,
            tls=context,
            user=options.user,
            password=options.password,
            token=options.token,
            user_credentials=options.credentials,
            nkeys_seed=options.nkey_seed,
        )
        self.prefix = client.new_inbox() + "."
        self._answers = await client.subscribe(self.prefix + "*", cb=self._on_message)

    async def publish(
        self,
        subject: str,
        payload: bytes,
        token: str,
        headers: list[tuple[str, str]],
        deadline: float,
    ) -> None:
        """Hand over to the connection; with `token` "" no answer is asked for.

        Waits until `deadline`, by the event loop's clock, if NATS takes nothing. If it raises,
        nothing was sent.
        """
        from nats import errors

        client = self._client
        assert client is not None
        size = len(payload) + 4 * (len(subject) + sum(len(a) + len(b) + 4 for a, b in headers))
        if headers and size > client.max_payload:  # Only then the bytes are counted.
            text = "".join(f"{name}: {value}\r\n" for name, value in headers)
            _check_size(len(payload) + len(text.encode()) + _HEADERS_BYTES, client.max_payload)
        publishing = client.publish(
            subject,
            payload,
            self.prefix + token if token else "",
            OutgoingHeaders(headers) if headers else None,
        )
        has_room = client.pending_data_size + size + _COMMAND_BYTES < _BUFFER_BYTES
        try:
            if has_room and not self._waiting:
                await publishing  # Does not wait.
            else:
                await self._in_turn(publishing, deadline)
        except errors.MaxPayloadError as error:
            raise _too_large_error(len(payload), client.max_payload) from error
        except (errors.BadSubjectError, errors.BadHeaderError, ValueError) as error:
            raise InvalidRequestError(f"NATS cannot carry this message: {error}") from error
        except errors.Error as error:
            raise UnavailableError(f"cannot publish to NATS: {error}") from error

    async def _in_turn(self, publishing: Coroutine[Any, Any, None], deadline: float) -> None:
        """nats-py adds a message to its buffer, however full, and then waits for room, for ever. So
        one waits there at a time, and the others wait here, in their order."""
        self._waiting += 1
        try:
            async with asyncio.timeout_at(deadline):
                await self._turn.acquire()
        except TimeoutError:
            publishing.close()
            raise UnavailableError("NATS takes no messages: nothing was published") from None
        except BaseException:
            publishing.close()
            raise
        finally:
            self._waiting -= 1
        adding = self._adding = asyncio.ensure_future(publishing)
        adding.add_done_callback(lambda _: self._turn.release())
        await asyncio.wait([adding], timeout=max(0.0, deadline - asyncio.get_running_loop().time()))
        if adding.done():
            adding.result()

    async def _on_message(self, message: Msg) -> None:
        token = message.subject[len(self.prefix) :]
        headers: dict[str, Any] | None = message.headers
        if headers and not message.data and headers.get("Status") == _NO_RESPONDERS:
            self._on_answer(token, None)
        else:
            self._on_answer(token, message.data)

    async def _on_error(self, error: Exception) -> None:
        """nats-py reports errors here that belong to no call."""
        text = str(error) or type(error).__name__
        self._last_error = text
        if self._client is None:
            self._failed_attempt(error)
        else:
            # nats-py tries again every second, and says each time what it said before.
            level = logging.DEBUG if self._warned.get(text) else logging.WARNING
            self._warned.put(text, True)
            logger.log(level, "NATS: %s", text)
            self._events.failed(UnavailableError(f"NATS: {text}"))
        forbidden = _FORBIDDEN.search(text)
        if forbidden:
            subject = forbidden[2] if forbidden[1] == "publish" else ""
            why = "NATS does not allow this client to hear answers"
            self._on_refusal(subject, PermissionDeniedError(why))
        elif "authorization" in text.lower() or "authentication" in text.lower():
            self._fail(UnauthenticatedError(f"NATS refuses to let us in: {text}"))

    def _failed_attempt(self, error: Exception) -> None:
        """If all servers refuse, the error may be raised at once."""
        self._refusals += isinstance(error, ConnectionRefusedError)
        if not self._patient and self._refusals >= len(self._servers):
            where = ", ".join(self._servers)
            self._fail(UnavailableError(f"cannot connect to NATS at {where}: connection refused"))

    async def _look_who_listens(self) -> None:
        """Perhaps it is a port of ours. nats-py waits for the greeting of NATS, again and again."""
        await asyncio.sleep(_GREETING_SECONDS)
        for server in self._servers:
            found = await what_listens(urlsplit(server).netloc)
            if found not in ("", "NATS"):
                self._fail(
                    InvalidRequestError(f"{server} is {found}, and not NATS (4222 by default)")
                )

    async def _on_disconnected(self) -> None:
        if self._client is not None:
            self._events.lost("nats", ", ".join(self._servers), self._last_error)

    async def _on_reconnected(self) -> None:
        self._warned = Recent(ADDRESSES_MAX)
        self.on_reconnected()
        self._changed.set()
        self._events.connected("nats", ", ".join(self._servers))

    def _fail(self, error: JetstreamError) -> None:
        if self._failure is not None and not self._failure.done():
            self._failure.set_result(error)

    async def _on_closed(self) -> None:
        self._changed.set()
        self._on_refusal("", UnavailableError("the NATS connection is closed"))

    async def close(self) -> None:
        """Sends what was handed over before."""
        client, self._client = self._client, None
        self._changed.set()
        if client is not None and self._socket is not None:
            await self._end(client, self._socket)

    async def _end(self, client: NatsClient, socket: NatsSocket) -> None:
        """What fails is a connection that is lost already: what was handed over is not sent, and
        callers that wait for an answer get an error with an unknown outcome."""
        from jetstream_client.transport.nats_socket import close

        await close(client, socket, self, *([self._answers] if self._answers else []))
