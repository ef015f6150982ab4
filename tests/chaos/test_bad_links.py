"""Bad links between real sockets: what is slow comes later, what is reset ends at both ends."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from random import Random
from threading import Thread

import pytest

from tests.support.fault_network import STRANGER, Bad, FaultNetwork

OWNER, KIND = "owner", "data"
LATE_SECONDS = 0.1


@pytest.fixture
def network() -> Iterator[FaultNetwork]:
    network = FaultNetwork(dict)
    yield network
    network.close()


def connected(network: FaultNetwork) -> tuple[socket.socket, socket.socket]:
    """Who dialled, and who was reached."""
    reached: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        accepting = Thread(target=lambda: reached.append(server.accept()[0]))
        accepting.start()
        routed = network.route(OWNER, KIND, f"127.0.0.1:{server.getsockname()[1]}")
        host, _, port = routed.rpartition(":")
        dialled = socket.create_connection((host, int(port)), timeout=30)
        accepting.join()
    reached[0].settimeout(30)
    return dialled, reached[0]


def seconds_across(source: socket.socket, target: socket.socket) -> float:
    begun = time.monotonic()
    source.sendall(b"x")
    assert target.recv(1) == b"x"
    return time.monotonic() - begun


@pytest.mark.parametrize(
    "bad",
    [
        Bad(delay_seconds=(LATE_SECONDS, 2 * LATE_SECONDS)),
        Bad(bytes_per_second=1 / LATE_SECONDS),
        Bad(lost=1.0),
    ],
    ids=["slow", "narrow", "lossy"],
)
def test_what_passes_a_bad_link_comes_later_until_it_is_healed(
    network: FaultNetwork, bad: Bad, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[float] = []
    hold = Bad.hold

    def counted(bad: Bad, length: int, dice: Random) -> float:
        held.append(hold(bad, length, dice))
        return held[-1]

    monkeypatch.setattr(Bad, "hold", counted)
    one, other = connected(network)
    with closing(one), closing(other):
        network.spoil(STRANGER, OWNER, KIND, bad=bad)
        assert seconds_across(one, other) >= LATE_SECONDS
        assert seconds_across(other, one) >= LATE_SECONDS
        assert len(held) == 2
        network.heal()
        seconds_across(one, other)
        assert len(held) == 2


def test_a_link_that_resets_connections_ends_them_at_both_ends(network: FaultNetwork) -> None:
    one, other = connected(network)
    with closing(one), closing(other):
        network.spoil(STRANGER, OWNER, KIND, bad=Bad(reset=1.0))
        one.sendall(b"x")
        for end in (one, other):
            with pytest.raises(ConnectionResetError):
                end.recv(1)


def test_who_has_dialled_is_looked_up_once_for_all_connections() -> None:
    """It takes milliseconds, and a fault begins for hundreds at once."""
    looks = []

    def processes() -> dict[str, int]:
        looks.append(1)
        return {"this": os.getpid()}

    network = FaultNetwork(processes)
    with ExitStack() as ending:
        ending.callback(network.close)
        pairs = [connected(network) for _ in range(10)]
        for sock in (sock for pair in pairs for sock in pair):
            ending.enter_context(closing(sock))
        network.spoil("this", OWNER, KIND, bad=Bad(delay_seconds=(LATE_SECONDS, LATE_SECONDS)))
        begun = time.monotonic()
        for one, _ in pairs:
            one.sendall(b"x")
        for _, other in pairs:
            assert other.recv(1) == b"x"
        assert time.monotonic() - begun >= LATE_SECONDS, "it is not known who has dialled"
    assert len(looks) == 1
