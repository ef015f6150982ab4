"""The NATS client of tests answers the server, which asks when the connection is some time old."""

from __future__ import annotations

import socket
import threading

from tests.support.api import RawNats


def test_it_answers_pings_whatever_it_waits_for() -> None:
    heard: list[bytes] = []

    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection, connection.makefile("rb") as lines:
            connection.sendall(b"INFO {}\r\n")
            heard.append(lines.readline())  # CONNECT
            assert lines.readline() == b"PING\r\n"
            connection.sendall(b"PING\r\nPONG\r\nPING\r\nMSG a 1 1\r\nx\r\n")
            heard.extend(lines.readline() for _ in range(2))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        client = RawNats(f"nats://127.0.0.1:{listener.getsockname()[1]}")
        assert client.message() == ("a", b"x")
        thread.join(60)
        client.close()
    assert heard[1:] == [b"PONG\r\n"] * 2
