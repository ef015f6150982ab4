"""The environment variables that a kubelet sets in every container for each service around it.

A service named `jetstream`, or whose name begins with `jetstream-`, gives variables that look like
settings:

    JETSTREAM_SERVICE_HOST=10.96.0.7      JETSTREAM_PORT=tcp://10.96.0.7:9292
    JETSTREAM_SERVICE_PORT=9292           JETSTREAM_PORT_9292_TCP=tcp://10.96.0.7:9292
    JETSTREAM_SERVICE_PORT_GRPC=9292      JETSTREAM_PORT_9292_TCP_PROTO=tcp, …_PORT, …_ADDR
"""

from __future__ import annotations

import re
from collections.abc import Callable

from jetstream_protocol.host_names import is_address

_SERVICE = "JETSTREAM(?:_[A-Z0-9_]+)?"
_LINK = r"_PORT_\d+_(?:TCP|UDP|SCTP)"
_URL = re.compile(r"(?:tcp|udp|sctp)://(?:\[([^\]]+)\]|([^:]+)):(\d+)")


def is_service_link(name: str, value: str) -> bool:
    """Whether a kubelet may have set it. Both must be as a kubelet writes them: `JETSTREAM_PORT=1`
    is somebody's mistake."""
    return any(form.fullmatch(name) and fits(value) for form, fits in _FORMS)


def _is_port(text: str) -> bool:
    return re.fullmatch(r"[0-9]{1,5}", text) is not None


def _is_url(text: str) -> bool:
    found = _URL.fullmatch(text)
    return found is not None and is_address(found[1] or found[2]) and _is_port(found[3])


def _is_protocol(text: str) -> bool:
    return text in ("tcp", "udp", "sctp")


_FORMS: tuple[tuple[re.Pattern[str], Callable[[str], bool]], ...] = (
    (re.compile(f"{_SERVICE}_SERVICE_HOST"), is_address),
    (re.compile(f"{_SERVICE}_SERVICE_PORT(?:_[A-Z0-9_]+)?"), _is_port),
    (re.compile(f"{_SERVICE}_PORT"), _is_url),
    (re.compile(f"{_SERVICE}{_LINK}"), _is_url),
    (re.compile(f"{_SERVICE}{_LINK}_PROTO"), _is_protocol),
    (re.compile(f"{_SERVICE}{_LINK}_PORT"), _is_port),
    (re.compile(f"{_SERVICE}{_LINK}_ADDR"), is_address),
)
