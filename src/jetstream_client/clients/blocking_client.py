"""`Client`: the methods of `AsyncClient`, for programs without asyncio.

The asynchronous client runs in its own thread. Every method passes its coroutine to that
thread and waits. So many threads may use a `Client` at once.
"""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, wait
from types import TracebackType
from typing import NoReturn, Self, Unpack, cast

from jetstream_client._closing import Closing
from jetstream_client._loop_thread import LoopThread
from jetstream_client.clients.async_client import AsyncClient
from jetstream_client.clients.blocking_calls import Calls
from jetstream_client.clients.blocking_methods import Methods
from jetstream_client.clients.blocking_processing import ProcessingMethods
from jetstream_client.clients.one_name import with_one_name
from jetstream_client.processing.listeners import in_thread
from jetstream_client.processing.threads import is_handler
from jetstream_client.transport.connection_events import Callbacks
from jetstream_client.values.config import ClientConfig, NatsOptions
from jetstream_client.values.durations import Seconds
from jetstream_client.values.tls import TlsConfig

_EXIT_SECONDS = 2.0
_LIVING: weakref.WeakSet[Client] = weakref.WeakSet()


@with_one_name
class Client(Methods, Calls, ProcessingMethods, Closing):
    """A connection to a cluster, made on first use; `with` closes it. Thread-safe.

        with Client("localhost:9292") as client:
            client.publish("orders.eu", b"3 pears")

    servers: "host:port" of any node; several as a list or separated by commas. nats: URLs to
    publish to, instead of those that the cluster names. timeout: seconds that a call may take,
    retries included. in_flight_max: how many calls of `publish` may wait for acknowledgements at a
    time; further ones wait their turn. rack: where this program runs, for `read_from="nearest"`.
    token: tells the servers which principal this program is. tls: True, or a TlsConfig, to speak
    TLS. Arguments that are left out come from the environment: JETSTREAM_SERVERS (else
    localhost:9292), JETSTREAM_RACK, JETSTREAM_TOKEN, and for TLS JETSTREAM_CA, JETSTREAM_CERT and
    JETSTREAM_KEY. nats_options, too: JETSTREAM_NATS_CA, _CERT and _KEY, and JETSTREAM_NATS_CREDS.

    disconnected_cb, reconnected_cb: called with a ConnectionEvent when a connection is lost or
    found again. error_cb: called with the JetstreamError of a call that is tried again. closed_cb:
    called when the client is closed.

    Every error is a jetstream_client.JetstreamError: UnavailableError if no server answers in time,
    UnknownOutcomeError if the call may have been carried out anyway.

    A Client does not work in a fork, because gRPC does not: create it after forking, or start
    processes with `spawn`.
    """

    def __init__(
        self,
        servers: str | Iterable[str] | None = None,
        *,
        nats: str | Iterable[str] | None = None,
        nats_options: NatsOptions | None = None,
        timeout: Seconds = 10.0,
        in_flight_max: int = 16_384,
        rack: str | None = None,
        token: str | None = None,
        tls: bool | TlsConfig | None = None,
        **callbacks: Unpack[Callbacks],
    ) -> None:
        self._set_up(
            ClientConfig.of(servers, nats, nats_options, timeout, in_flight_max, rack, token, tls),
            callbacks,
        )

    @classmethod
    def from_config(cls, config: ClientConfig) -> Self:
        """A client with this configuration. A configuration can be pickled, a client cannot."""
        client = cls.__new__(cls)
        client._set_up(config, Callbacks())
        return client

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} cannot be pickled: pickle its `config`, and make another "
            "with `from_config`"
        )

    def __repr__(self) -> str:
        return f"<Client of {', '.join(self.config.servers)}>"

    def _set_up(self, config: ClientConfig, callbacks: Callbacks) -> None:
        self.config = config
        elsewhere = {name: in_thread(each) for name, each in callbacks.items()}  # type: ignore[type-var]
        self._client = AsyncClient.observed(config, cast("Callbacks", elsewhere))
        self._thread = LoopThread(self._client.aclose)
        _LIVING.add(self)
        self._reports_closed = callbacks.get("closed_cb") is not None
        self._choosing = threading.RLock()  # A signal handler may close it, too.
        self._closer: threading.Thread | None = None
        self._error: BaseException | None = None  # of the block that is being left
        self._has_closed = threading.Event()

    def close(self) -> None:
        """Let `process` end what it handles, commit what consumers are done with, send what
        publishers that are still open hold, close every connection, and end the client's thread.
        Idempotent: while another thread closes it, waits for that one; a listener, callback or
        handler, for which that one may wait, does not. Waits for the client's `timeout` at most:
        records that are not acknowledged by then fail, which is logged. After an error in the block
        of `with`, publishers and handlers get a second for that.

        Raises what the `close` of a consumer or publisher does, and InvalidRequestError in the
        client's own thread.
        """
        if not self._thread.is_here:
            return
        self._thread.check_caller()
        this = threading.current_thread()
        with self._choosing:
            closer = self._closer = self._closer or this
        if closer is not this:
            if not is_handler(this):
                self._has_closed.wait()
            return
        try:
            # Even if it is unused.
            must_report = self._reports_closed and not self._has_closed.is_set()
            if self._thread.is_running or must_report:
                self._thread.run(self._client.__aexit__(None, self._error, None))
        finally:
            try:
                self._thread.close()
            finally:
                self._has_closed.set()

    def _begin_to_end(self) -> Sequence[Future[object]]:
        """As after an error in its block."""
        return self._thread.attempt(lambda: self._client.__aexit__(None, SystemExit(), None))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._error = error
        try:
            super().__exit__(kind, error, traceback)
        finally:
            self._error = None


@atexit.register
def _the_program_ends() -> None:
    """Nobody has closed these: records that were sent a moment ago would be lost with their
    threads. All at a time, and only for a moment."""
    wait([each for client in list(_LIVING) for each in client._begin_to_end()], _EXIT_SECONDS)
