"""Python for Spark's workers: what they import is imported once, by a process that forks them.

Spark starts a Python for each kind of work (to make a source, to plan a read, to run a task, …) and
one for each streaming query. Each would import PySpark, Arrow, gRPC and the SDK anew, which takes
longer than its work. PYSPARK_PYTHON names a program (`CALLER`) that asks for a fork with its own
streams, environment and folder, waits for its end, and takes it along when it is ended itself.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PRELOADED = (
    "jetstream_client.clients.blocking_client",
    "pandas",
    "pyarrow.compute",
    "pyspark.daemon",
    "pyspark.sql.streaming.python_streaming_source_runner",
    "pyspark.sql.worker.commit_data_source_write",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.data_source_pushdown_filters",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.python_streaming_sink_runner",
    "pyspark.sql.worker.write_into_data_source",
    "pyspark.worker",
    "pyspark_jetstream.batch",
    "pyspark_jetstream.scan",
    "pyspark_jetstream.stream",
    "pyspark_jetstream.writer",
)
MESSAGE_BYTES_MAX = 1 << 17

CALLER = """#!{python} -IS
import json, os, socket, sys
if sys.argv[1:2] != ["-m"]:
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
process = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
process.connect({address!r})
asked = json.dumps([sys.argv[2:], dict(os.environ), os.getcwd()]).encode()
socket.send_fds(process, [asked], [0, 1, 2])
sys.exit(int(process.recv(16) or 1))
"""


@contextmanager
def preloaded_python(folder: Path) -> Iterator[str]:
    """A program for PYSPARK_PYTHON."""
    program, address = folder / "python", str(folder / "socket")
    program.write_text(CALLER.format(python=sys.executable, address=address))
    program.chmod(0o755)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(address)
        listening.listen(100)
        command = [sys.executable, "-m", __spec__.name, str(listening.fileno())]
        process = subprocess.Popen(command, pass_fds=[listening.fileno()])
    try:
        yield str(program)
    finally:
        process.kill()
        process.wait()


def forked(listening: socket.socket) -> socket.socket:
    """The connection of whoever asked, in each fork. Does not return in the process itself."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        connection, _ = listening.accept()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listening.close()
            return connection
        connection.close()


def end_with(connection: socket.socket) -> None:
    connection.recv(1)
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> int:
    """What a fork ends with."""
    os.environ["GRPC_VERBOSITY"] = "NONE"
    for name in PRELOADED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    connection = forked(socket.socket(fileno=int(sys.argv[1])))
    message, descriptors, _, _ = socket.recv_fds(connection, MESSAGE_BYTES_MAX, 3)
    (module, *arguments), environment, folder = json.loads(message)
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    of_spark = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [path for path in of_spark if path and path not in sys.path]
    threading.Thread(target=end_with, args=(connection,), daemon=True).start()
    sys.argv = [module, *arguments]
    code = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    sys.stdout.flush()
    sys.stderr.flush()
    connection.send(b"%d" % (code & 255))
    return code


if __name__ == "__main__":
    os._exit(main())
