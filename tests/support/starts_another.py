"""A process that starts another, as a node starts its workers: with a session of its own."""

from __future__ import annotations

import subprocess
import time

if __name__ == "__main__":
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, start_new_session=True):
        print("begun", flush=True)
        time.sleep(60)
