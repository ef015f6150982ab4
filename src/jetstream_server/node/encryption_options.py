"""Makes keys from the configuration's `encryption` section.

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
from pathlib import Path
from typing import Final

import structlog

from jetstream_protocol.errors import CorruptBatchError
from jetstream_server.log.disk import Disk
from jetstream_server.log.encryption import KEY_BYTES, Keys
from jetstream_server.log.state_files import read_state, write_state
from jetstream_server.node.config import Config, ConfigurationError, EncryptionConfig

COMMAND_SECONDS: Final = 30.0
_STATE: Final = "encryption"
_SAID_MAX: Final = 500

logger = structlog.get_logger("jetstream.server")


def keys_of(config: Config) -> Keys | None:
    """The keys; None: nothing is encrypted. Blocks: it may run a command. Raises
    ConfigurationError, which never quotes a key."""
    encryption = config.encryption
    text, where = _text_of(encryption)
    if not where and not encryption.retired_key_ids:
        return None
    keys = _parsed(text, where) if where else []
    return Keys(
        keys,
        os.urandom,
        encrypts=bool(keys) and encryption.enabled,
        retired=encryption.retired_key_ids,
    )


def _text_of(encryption: EncryptionConfig) -> tuple[str, str]:
    """The keys as text, and where they come from; both "": there are none."""
    if encryption.key_file is not None:
        return _read(encryption.key_file), f"encryption.key_file: {encryption.key_file}"
    if encryption.key_command:
        return _command_output(encryption.key_command), "encryption.key_command"
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


def _command_output(command: list[str]) -> str:
    name = command[0]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
        )
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
    if done.returncode:
        said = done.stderr.strip()[-_SAID_MAX:]
        raise ConfigurationError(
            f"encryption.key_command: {name} ended with {done.returncode}"
            + (f": {said}" if said else "")
        )
    return done.stdout


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


def note_keys(disk: Disk, folder: str, node_id: int, keys: Keys | None, config: Config) -> None:
    """Compare the keys with those that the data folder was opened with before, and note them.
    Durable on return. Raises ConfigurationError, StorageError."""
    path, owner = f"{folder}/{_STATE}", str(node_id)
    try:
        state = read_state(disk, path, _STATE, owner) or {}
        noted = [str(each) for each in state.get("key_ids", [])]
    except (CorruptBatchError, TypeError) as error:
        logger.warning("state_file_damaged", file=path, reason=str(error), instead="written anew")
        noted = []
    given = () if keys is None else keys.ids
    gone = [each for each in noted if each not in (*given, *config.encryption.retired_key_ids)]
    if gone:
        raise ConfigurationError(
            f"encryption: {folder} was used with key {gone[0]}, which is not among the keys that "
            "are given: add it; or, if it is lost, or nothing that it encrypted is left, list it "
            "in encryption.retired_key_ids"
        )
    known = [*noted, *(each for each in given if each not in noted)]
    if known != noted:
        write_state(disk, path, _STATE, owner, {"key_ids": known})
    if keys is not None:
        logger.info("encryption", enabled=keys.encrypts, key_ids=list(keys.ids))
