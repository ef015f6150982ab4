"""The console at `/`: one page with its scripts and style, served from the package.

The page loads nothing from other servers and has no inline script; the browser enforces that (CSP).
Everybody may load it, because it contains no data. It gets its data from `/api/v1/`, with the token
of its user. The forms of a stream's settings are made of the table of settings (settings.js).
"""

from __future__ import annotations

import json
from importlib.resources import files

from aiohttp import web

from jetstream_protocol.settings import FOR_PEOPLE
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
SCRIPTS = (
    "base", "history", "changes", "cluster", "streams", "messages", "consumers", "sql", "access",
    "console",
)  # fmt: skip
_FILES = {
    "/": ("index.html", "text/html"),
    "/console.css": ("console.css", "text/css"),
    **{f"/{name}.js": (f"{name}.js", "text/javascript") for name in SCRIPTS},
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}


def routes() -> list[Route]:
    folder = files("jetstream_server.serving.http") / "console_files"
    return [
        _route("/settings.js", settings_script().encode(), "text/javascript"),
        *(
            _route(path, (folder / name).read_bytes(), content_type)
            for path, (name, content_type) in _FILES.items()
        ),
    ]


def settings_script() -> str:
    """The settings that people set on a stream, as a script."""
    settings = [
        {
            "name": each.name,
            "field": each.field,
            "kind": each.kind.value,
            "label": f"{each.name}: {each.help}",
            "choices": each.choices,
            "is_alterable": each.alterable,
        }
        for each in FOR_PEOPLE
        if each.help
    ]
    return f'"use strict";\n\nconst SETTINGS = {json.dumps(settings, indent=1)};\n'


def _route(path: str, body: bytes, content_type: str) -> Route:
    async def handle(request: web.Request) -> web.Response:
        return web.Response(body=body, content_type=content_type, charset="utf-8", headers=HEADERS)

    return Route(path, handle)
