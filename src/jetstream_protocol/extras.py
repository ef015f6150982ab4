"""The command that installs an extra, from where this package came from.

No public index has the package: there its name could be a stranger's. pip notes where it found what
it has installed (`direct_url.json`, PEP 610), so a checkout or a wheel is named as it was given.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from shlex import quote
from typing import Any
from urllib.parse import unquote, urlsplit

from jetstream_protocol import bounded_json
from jetstream_protocol.errors import InvalidRequestError

NAME = "jetstream-log"


class MissingExtraError(InvalidRequestError, ImportError):
    """A package that an extra brings is not installed."""


@contextmanager
def needed_by(what: str, extra: str) -> Iterator[None]:
    """Around the imports of an extra's packages. Raises MissingExtraError."""
    try:
        yield
    except MissingExtraError:
        raise
    except ImportError as error:
        package = (error.name or "a package").partition(".")[0]
        missing = MissingExtraError(f"{what} needs {package}: {install_command(extra)}")
        missing.name = error.name
        raise missing from error


def install_command(*extras: str) -> str:
    """`pip install '…[sql]'`."""
    return command_for(_noted(), extras)


def command_for(noted: dict[str, Any], extras: tuple[str, ...]) -> str:
    """noted: what pip has noted; {}: nothing, as for what came from an index."""
    url = str(noted.get("url", ""))
    asked = f"[{','.join(extras)}]"
    option = "-e " if noted.get("dir_info", {}).get("editable") else ""
    if url.startswith("file://"):
        return f"pip install {option}{quote(unquote(urlsplit(url).path) + asked)}"
    if vcs := noted.get("vcs_info"):
        url = f"{vcs['vcs']}+{url}@{vcs['commit_id']}"
    return f"pip install {quote(f'{NAME}{asked} @ {url}' if url else NAME + asked)}"


def _noted() -> dict[str, Any]:
    from importlib.metadata import PackageNotFoundError, distribution  # Slow, and seldom needed.

    try:
        found = bounded_json.loads(distribution(NAME).read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
