"""Hosts that cannot or need not be looked up."""

from __future__ import annotations

import ipaddress


def impossible_host_error(host: str) -> OSError:
    """What is raised in place of the UnicodeError of a name that cannot be looked up, such as
    `a..b`: to whoever dials, a host with such a name is one that does not answer."""
    return OSError(f"{host!r} is no possible host name")


def is_address(text: str) -> bool:
    """Whether it is an IP address, which need not be looked up."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
