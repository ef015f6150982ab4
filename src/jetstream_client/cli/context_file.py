"""The contexts of the command line: how to reach a cluster, under a name, in one JSON file.

The file is $XDG_CONFIG_HOME/jetstream/contexts.json, else below ~/.config. It may hold tokens: only
its owner can read it, and it is replaced as a whole.

    {"current": "NAME" or "", "contexts": {NAME: {"servers": …, "nats": …, "tls": true, "ca": …,
    "cert": …, "key": …, "nats_ca": …, "nats_cert": …, "nats_key": …, "nats_creds": …,
    "token": …}}}
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from jetstream_client.values.config import NatsOptions
from jetstream_client.values.tls import TlsConfig
from jetstream_protocol import bounded_json
from jetstream_protocol.errors import InvalidRequestError

CONTEXT_VARIABLE = "JETSTREAM_CONTEXT"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True, slots=True)
class Context:
    """servers, nats: as `--server` and `--nats`. tls: whether to speak it; ca, cert, key: as in
    TlsConfig. nats_…: the files for TLS to NATS, and the `.creds` file."""

    servers: str
    nats: str = ""
    tls: bool = False
    ca: str = ""
    cert: str = ""
    key: str = ""
    nats_ca: str = ""
    nats_cert: str = ""
    nats_key: str = ""
    nats_creds: str = ""
    token: str = field(default="", repr=False)

    @property
    def tls_config(self) -> TlsConfig | bool:
        if not self.tls:
            return False
        return TlsConfig(self.ca or None, self.cert or None, self.key or None)

    @property
    def nats_options(self) -> NatsOptions:
        return NatsOptions(
            credentials=self.nats_creds or None,
            tls_ca=self.nats_ca or None,
            tls_certificate=self.nats_cert or None,
            tls_key=self.nats_key or None,
        )


class ContextFile:
    """What is in the file now. Methods that change something write it at once."""

    def __init__(self, path: Path | None = None) -> None:
        """path: None for the usual one. Raises InvalidRequestError for a file that is damaged."""
        self._path = path or default_path()
        self.current = ""
        self.contexts: dict[str, Context] = {}
        try:
            self._take(bounded_json.loads(self._path.read_text()))
        except FileNotFoundError:
            pass
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise InvalidRequestError(
                f"{self._path} is damaged ({error}): mend or delete it"
            ) from error

    def _take(self, found: Mapping[str, Any]) -> None:
        known = {each.name for each in fields(Context)}
        for name, values in found["contexts"].items():
            self.contexts[name] = Context(**{k: v for k, v in values.items() if k in known})
        self.current = found["current"] if found["current"] in self.contexts else ""

    def get(self, name: str) -> Context:
        """Raises InvalidRequestError for an unknown name."""
        if name not in self.contexts:
            known = ", ".join(sorted(self.contexts)) or "none; jetstream context add makes one"
            raise InvalidRequestError(f"there is no context {name!r}; known are: {known}")
        return self.contexts[name]

    def add(self, name: str, context: Context) -> None:
        """Replaces one of that name. The first one becomes the current one."""
        if _NAME.fullmatch(name) is None:
            raise InvalidRequestError(
                f"{name!r} cannot name a context: use up to 64 letters, digits and . _ -"
            )
        self.contexts[name] = context
        self.current = self.current or name
        self._write()

    def use(self, name: str) -> None:
        self.get(name)
        self.current = name
        self._write()

    def remove(self, name: str) -> None:
        self.get(name)
        del self.contexts[name]
        if self.current == name:
            self.current = ""
        self._write()

    def _write(self) -> None:
        contexts = {name: asdict(context) for name, context in sorted(self.contexts.items())}
        text = json.dumps({"current": self.current, "contexts": contexts}, indent=2)
        path = Path(os.path.realpath(self._path))  # A link to the file stays one.
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        new = path.with_suffix(f".{os.getpid()}")
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(text + "\n")
        new.replace(path)


def default_path() -> Path:
    folder = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(folder).expanduser() / "jetstream" / "contexts.json"
