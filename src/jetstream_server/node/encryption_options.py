"""Makes keys from the configuration's `encryption` section, and reads them again.

The file `encryption` beside `runs` lists the ids of all keys with which the data folder was opened.
**safety** A node does not start without one of them unless `retired_key_ids` says that it is gone:
otherwise a forgotten key would be noticed only when records cannot be read.
"""

from __future__ import annotations

import base64
import binascii
import os
import stat
import subprocess
import threading
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

import structlog

from jetstream_protocol.errors import CorruptBatchError, StorageError
from jetstream_server.log.disk import Disk
from jetstream_server.log.encryption import KEY_BYTES, Keys, key_id_of
from jetstream_server.log.state_files import read_state, write_state
from jetstream_server.net.certificates import signature
from jetstream_server.node.config import Config, ConfigurationError, EncryptionConfig

COMMAND_SECONDS: Final = 30.0
COMMAND_CHECK_SECONDS: Final = 300.0
"""How often a command is run again: it may ask a service that others use, too."""
_STOP_CHECK_SECONDS: Final = 0.1
_STATE: Final = "encryption"
_OUTPUT_MAX: Final = 500

logger = structlog.get_logger("jetstream.server")


def keys_of(config: Config, stopped: threading.Event | None = None) -> Keys | None:
    """The keys; None: nothing is encrypted. Blocks: it may run a command, which is killed once
    `stopped` is set. Raises ConfigurationError, which never quotes a key."""
    encryption = config.encryption
    keys = _read_keys(encryption, stopped or threading.Event())
    if not keys and not encryption.retired_key_ids:
        return None
    return Keys(
        keys,
        os.urandom,
        encrypts=bool(keys) and encryption.enabled,
        retired=encryption.retired_key_ids,
    )


def _read_keys(encryption: EncryptionConfig, stopped: threading.Event) -> list[bytes]:
    """The keys, the active one first; none without a source of keys."""
    text, where = _text_of(encryption, stopped)
    return _parsed(text, where) if where else []


def _text_of(encryption: EncryptionConfig, stopped: threading.Event) -> tuple[str, str]:
    """The keys as text, and where they come from; both "": there are none."""
    if encryption.key_file is not None:
        return _read(encryption.key_file), f"encryption.key_file: {encryption.key_file}"
    if encryption.key_command:
        return _command_output(encryption.key_command, stopped), "encryption.key_command"
    return encryption.keys, "encryption.keys" if encryption.keys else ""


def _read(path: Path) -> str:
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        text = path.read_text(encoding="ascii")
    except OSError as error:
        raise ConfigurationError(
            f"encryption.key_file: cannot read {path}: {error.strerror}"
        ) from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"encryption.key_file: {path} does not hold keys") from None
    if mode & 0o027:
        raise ConfigurationError(
            f"encryption.key_file: others on this machine may read or write {path} (mode "
            f"{mode:04o}): chmod 600 it"
        )
    return text


def _command_output(command: list[str], stopped: threading.Event) -> str:
    name = command[0]
    try:
        status, output, complaints = _run(command, stopped)
    except subprocess.TimeoutExpired:
        raise ConfigurationError(
            f"encryption.key_command: {name} did not end within {COMMAND_SECONDS:.0f} s"
        ) from None
    except OSError as error:
        raise ConfigurationError(
            f"encryption.key_command: cannot run {name}: {error.strerror}"
        ) from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"encryption.key_command: {name} prints no text") from None
    if status:
        output = complaints.strip()[-_OUTPUT_MAX:]
        raise ConfigurationError(
            f"encryption.key_command: {name} ended with {status}"
            + (f": {output}" if output else "")
        )
    return output


def _run(command: list[str], stopped: threading.Event) -> tuple[int, str, str]:
    """Its status, and what it prints and complains of. Raises TimeoutExpired after COMMAND_SECONDS,
    and once `stopped` is set: a stop must not wait for a command that hangs."""
    deadline = time.monotonic() + COMMAND_SECONDS
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            while True:
                try:
                    output, complaints = process.communicate(timeout=_STOP_CHECK_SECONDS)
                except subprocess.TimeoutExpired:
                    if stopped.is_set() or time.monotonic() >= deadline:
                        raise
                else:
                    return process.returncode, output, complaints
        finally:
            process.kill()  # Does nothing if it has ended.


def _parsed(text: str, where: str) -> list[bytes]:
    """The keys in a text, separated by blanks or lines. # begins a comment."""
    words = " ".join(line.partition("#")[0] for line in text.splitlines()).split()
    keys: list[bytes] = []
    for number, word in enumerate(words, 1):
        key = _key(word)
        if key is None:
            raise ConfigurationError(
                f"{where}: key {number} is not one of {KEY_BYTES} bytes, in hexadecimal or base64: "
                f"make one with `openssl rand -hex {KEY_BYTES}`"
            )
        if key in keys:
            raise ConfigurationError(f"{where}: key {number} is given twice")
        keys.append(key)
    if not keys:
        raise ConfigurationError(f"{where}: no key is given")
    return keys


def _key(word: str) -> bytes | None:
    try:
        if len(word) == 2 * KEY_BYTES:
            key = bytes.fromhex(word)
        else:
            key = base64.b64decode(word, validate=True)
    except (ValueError, binascii.Error):
        return None
    return key if len(key) == KEY_BYTES else None


class KeyFolder:
    """The ids of all keys with which a data folder was opened, in its file `encryption`."""

    def __init__(self, disk: Disk, folder: str, node_id: int, retired: Collection[str]) -> None:
        """retired: ids of keys that are gone on purpose."""
        self._disk = disk
        self._folder = folder
        self._owner = str(node_id)
        self._retired = retired

    def note(self, given: Sequence[str]) -> None:
        """Compare the ids of the given keys with the noted ones, and note them. Durable on return.
        Raises ConfigurationError if a key is missing, StorageError."""
        noted = self._noted()
        gone = [each for each in noted if each not in given and each not in self._retired]
        if gone:
            raise ConfigurationError(
                f"encryption: {self._folder} was used with key {gone[0]}, which is not among the "
                "keys that are given: add it; or, if it is lost, or nothing that it encrypted is "
                "left, list it in encryption.retired_key_ids"
            )
        known = [*noted, *(each for each in given if each not in noted)]
        if known != noted:
            write_state(self._disk, self._path, _STATE, self._owner, {"key_ids": known})

    @property
    def _path(self) -> str:
        return f"{self._folder}/{_STATE}"

    def _noted(self) -> list[str]:
        try:
            state = read_state(self._disk, self._path, _STATE, self._owner) or {}
            return [str(each) for each in state.get("key_ids", [])]
        except (CorruptBatchError, TypeError) as error:
            reason = str(error)
        logger.warning("state_file_damaged", file=self._path, reason=reason, instead="written anew")
        return []


def note_keys(
    disk: Disk, folder: str, node_id: int, keys: Keys | None, config: Config
) -> KeyFolder:
    """Note the keys of a starting node, and log their ids. Raises the errors of KeyFolder.note."""
    noting = KeyFolder(disk, folder, node_id, config.encryption.retired_key_ids)
    noting.note(() if keys is None else keys.ids)
    if keys is not None:
        logger.info("encryption", enabled=keys.encrypts, key_ids=list(keys.ids))
    return noting


class KeyReload:
    """The keys as a source of `Reloading`: a file is read again once it has changed, and a command
    is run again every COMMAND_CHECK_SECONDS."""

    def __init__(self, encryption: EncryptionConfig, keys: Keys, noting: KeyFolder) -> None:
        self._encryption = encryption
        self._keys = keys
        self._noting = noting
        self._stopped = threading.Event()
        self._taking_up = threading.Lock()
        self.seen: object = self.signature()

    def signature(self) -> object:
        if self._encryption.key_command:
            return int(time.monotonic() / COMMAND_CHECK_SECONDS)
        return None if self._encryption.key_file is None else signature(self._encryption.key_file)

    def reload(self) -> None:
        """Read the keys again. If they cannot be used, or a key is missing that is still needed,
        that is logged and the old ones stay."""
        self.seen = self.signature()
        try:
            keys = _read_keys(self._encryption, self._stopped)
            with self._taking_up:
                self._take_up(keys)
        except (ConfigurationError, StorageError) as error:
            if not self._stopped.is_set():
                logger.error("keys_not_reloaded", reason=str(error))

    def _take_up(self, keys: Sequence[bytes]) -> None:
        ids = tuple(map(key_id_of, keys))
        if self._stopped.is_set() or ids == self._keys.ids:
            return
        self._noting.note(ids)
        self._keys.replace(keys)
        logger.info("keys_reloaded", key_ids=list(ids))

    def close(self) -> None:
        """Kill the command, if it runs. No keys are taken up, and nothing is written to the data
        folder, any more."""
        self._stopped.set()
        with self._taking_up:
            pass
