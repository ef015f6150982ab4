"""The console at `/`: one page with its script and style, served from the package.

The page loads nothing from other servers and has no inline script; the browser enforces that (CSP).
Everybody may load it, because it contains no data. It gets its data from `/api/v1/`, with the token
of its user.
"""

from __future__ import annotations

from importlib.resources import files

from aiohttp import web

from jetstream_server.serving.http.server import Route

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
_FILES = {
    "/": ("index.html", "text/html"),
    "/console.css": ("console.css", "text/css"),
    "/console.js": ("console.js", "text/javascript"),
    "/consumers.js": ("consumers.js", "text/javascript"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}


def routes() -> list[Route]:
    folder = files("jetstream_server.serving.http") / "console_files"
    return [
        _route(path, (folder / name).read_bytes(), content_type)
        for path, (name, content_type) in _FILES.items()
    ]


def _route(path: str, body: bytes, content_type: str) -> Route:
    async def handle(request: web.Request) -> web.Response:
        return web.Response(body=body, content_type=content_type, charset="utf-8", headers=HEADERS)

    return Route(path, handle)
