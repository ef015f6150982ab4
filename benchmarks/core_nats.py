"""Core NATS: a nats-server that stores nothing, with one subscriber that answers.

It is the ceiling of anything that hears NATS from outside the nats-server: the load goes to a
subject with this subscriber, a process with a blocking socket that counts messages and says so. For
one message at a time that is a bare request and its reply.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.jetstream_peer import SUBJECT
from benchmarks.nats_socket import RECEIVE_BYTES, NatsSocket
from benchmarks.processes import HOST, data_folder, executable, free_port_base, server

ANSWER = b'{"seq":0}'
"""Of one message; the loads count these."""
PING = b"PING\r\n"
READY = b"listening\n"


@contextmanager
def core_nats() -> Iterator[int]:
    """A nats-server with the subscriber; its port."""
    with data_folder() as folder:
        port = free_port_base(1)
        command = [executable("nats-server"), "--addr", HOST, "--port", str(port)]
        with server(command, port, folder):
            answering = [sys.executable, "-m", "benchmarks.core_nats", str(port)]
            subscriber = subprocess.Popen(answering, stdout=subprocess.PIPE)
            try:
                assert subscriber.stdout is not None
                if subscriber.stdout.readline() != READY:
                    raise RuntimeError("the subscriber of core NATS did not start")
                yield port
            finally:
                subscriber.terminate()
                subscriber.communicate()


def answer(client: NatsSocket) -> None:
    """Answer each message on SUBJECT, those of one read together, until the connection ends.

    All messages of a load are of one length, so that none is parsed but the first.
    """
    buffer, length, head = b"", 0, b""
    while data := client.socket.recv(RECEIVE_BYTES):
        buffer += data
        if PING in buffer:
            client.socket.sendall(b"PONG\r\n")
            buffer = buffer.replace(PING, b"")
        if not length and b"\r\n" in buffer:
            line, _, _ = buffer.partition(b"\r\n")
            _, _, _, reply, size = line.split(b" ")
            length = len(line) + 2 + int(size) + 2
            head = b"PUB " + reply + b" "
        count = len(buffer) // length if length else 0
        if count:
            answers = ANSWER * count
            client.socket.sendall(b"%b%d\r\n%b\r\n" % (head, len(answers), answers))
            buffer = buffer[count * length :]


def main() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with NatsSocket(HOST, int(sys.argv[1])) as client:
        client.socket.settimeout(None)
        client.subscribe(SUBJECT, 1)
        sys.stdout.buffer.write(READY)
        sys.stdout.flush()
        answer(client)


if __name__ == "__main__":
    main()
