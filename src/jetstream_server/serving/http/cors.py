"""Pages of other servers: which of them may use `/v1/`, and how a browser learns that (CORS).

By default none may. **safety** A page is named by its whole origin. There is no `*`, and no answer
allows credentials: a browser adds none by itself, since there are no cookies, and a page needs a
token as everybody does. The console's API is for its own page alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from urllib.parse import urlsplit

from aiohttp import web

from jetstream_protocol.errors import PermissionDeniedError

V1 = "/v1/"
_HEADERS = "Authorization, Content-Type, Idempotency-Key, Last-Event-ID"
_SECONDS = 600
"""How long a browser may remember the answer."""


class Cors:
    """origins: of the pages, as browsers send them."""

    def __init__(self, origins: Iterable[str] = ()) -> None:
        self._origins = frozenset(origins)

    @property
    def is_on(self) -> bool:
        return bool(self._origins)

    def check_change(self, request: web.Request) -> None:
        """Raise PermissionDeniedError if a page asks that may not. Programs send no `Origin`."""
        origin = request.headers.get("Origin")
        if origin is not None and not _is_own(request, origin) and not self._admits(request):
            raise PermissionDeniedError(
                "a change cannot be asked for by a page of another server, except below /v1/ by a "
                "page whose origin http.cors_origins names"
            )

    def tell(self, request: web.Request, response: web.StreamResponse) -> None:
        """Let a browser show the answer to its page, if the page may have it."""
        if self.is_on and request.path.startswith(V1):
            response.headers["Vary"] = "Origin"
            if self._admits(request):
                response.headers["Access-Control-Allow-Origin"] = request.headers["Origin"]

    def preflight(self, request: web.Request, methods: Collection[str]) -> web.Response:
        """The answer to a browser that asks beforehand."""
        if not self._admits(request):
            raise PermissionDeniedError("http.cors_origins does not name the origin of this page")
        headers = {
            "Access-Control-Allow-Methods": ", ".join(sorted(methods)),
            "Access-Control-Allow-Headers": _HEADERS,
            "Access-Control-Max-Age": str(_SECONDS),
        }
        return web.Response(status=204, headers=headers)

    def _admits(self, request: web.Request) -> bool:
        return request.path.startswith(V1) and request.headers.get("Origin") in self._origins


def _is_own(request: web.Request, origin: str) -> bool:
    """Whether the page is of this server."""
    try:
        return urlsplit(origin).netloc == request.headers.get("Host")
    except ValueError:
        return False
