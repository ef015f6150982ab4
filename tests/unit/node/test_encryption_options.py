"""Where the keys of encryption at rest come from, and what is said of those that cannot be used."""

from __future__ import annotations

import base64
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from jetstream_server.log.disk import OsDisk
from jetstream_server.log.encryption import key_id_of
from jetstream_server.node import encryption_options
from jetstream_server.node.config import Config, ConfigurationError, load
from jetstream_server.node.debug import blotted, public, secrets_of
from jetstream_server.node.encryption_options import KeyFolder, KeyReload, keys_of, note_keys

KEY, NEW = "ab" * 32, "cd" * 32
KEY_ID, NEW_ID = (key_id_of(bytes.fromhex(each)) for each in (KEY, NEW))


def config_of(**encryption: object) -> Config:
    return Config(encryption=encryption)  # type: ignore[arg-type]  # as YAML gives it


def ids(config: Config) -> tuple[str, ...]:
    keys = keys_of(config)
    return () if keys is None else keys.ids


def file_of(path: Path, text: str, mode: int = 0o600) -> Config:
    path.write_text(text)
    path.chmod(mode)
    return config_of(key_file=str(path))


def printing(code: str) -> Config:
    return config_of(key_command=[sys.executable, "-c", code])


def test_without_keys_nothing_is_encrypted() -> None:
    assert keys_of(Config()) is None


def test_keys_come_from_a_file_the_environment_or_a_command(tmp_path: Path) -> None:
    text = f"# new\n{NEW}\n{base64.b64encode(bytes.fromhex(KEY)).decode()}  # old\n"
    assert ids(file_of(tmp_path / "keys", text)) == (NEW_ID, KEY_ID)
    assert ids(printing(f"print({f'{NEW} {KEY}'!r})")) == (NEW_ID, KEY_ID)
    environment = {"JETSTREAM_ENCRYPTION__KEYS": f"{NEW} {KEY}"}
    with pytest.MonkeyPatch.context() as patches:
        patches.setenv(*environment.popitem())
        assert ids(load(None)) == (NEW_ID, KEY_ID)


def test_a_node_may_only_decrypt() -> None:
    keys = keys_of(config_of(keys=KEY, enabled=False))
    assert keys is not None
    assert (keys.ids, keys.encrypts) == ((KEY_ID,), False)
    retired = keys_of(config_of(retired_key_ids=[KEY_ID]))
    assert retired is not None
    assert (retired.ids, retired.encrypts, retired.is_retired(KEY_ID)) == ((), False, True)


@pytest.mark.parametrize("mode", [0o644, 0o602, 0o620, 0o777])
def test_a_file_that_others_can_read_or_write_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(ConfigurationError, match="chmod 600"):
        keys_of(file_of(tmp_path / "keys", KEY, mode))


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o440])
def test_a_file_of_the_owner_or_for_its_group_is_taken(tmp_path: Path, mode: int) -> None:
    assert ids(file_of(tmp_path / "keys", KEY, mode)) == (KEY_ID,)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "no key is given"),
        ("# only a comment", "no key is given"),
        (f"{KEY}\npl4nted", "key 2 is not one of 32 bytes"),
        (KEY[:-2], "key 1 is not one of 32 bytes"),
        ("zz" * 32, "key 1 is not one of 32 bytes"),
        (f"{KEY} {KEY.upper()}", "key 2 is given twice"),
    ],
)
def test_keys_that_cannot_be_used_are_told_and_not_shown(
    tmp_path: Path, text: str, complaint: str
) -> None:
    with pytest.raises(ConfigurationError, match=complaint) as raised:
        keys_of(file_of(tmp_path / "keys", text))
    assert "pl4nted" not in str(raised.value)
    assert KEY not in str(raised.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot read .*keys: No such file"):
        keys_of(config_of(key_file=str(tmp_path / "keys")))


def test_a_command_that_fails_says_what_it_said_and_not_what_it_printed() -> None:
    code = f"import sys; print({KEY!r}); sys.exit('no ticket')"
    with pytest.raises(ConfigurationError, match="ended with 1: no ticket") as raised:
        keys_of(printing(code))
    assert KEY not in str(raised.value)
    with pytest.raises(ConfigurationError, match="cannot run no-such-command"):
        keys_of(config_of(key_command=["no-such-command"]))


def test_a_command_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encryption_options, "COMMAND_SECONDS", 0.2)
    with pytest.raises(ConfigurationError, match="did not end within"):
        keys_of(printing("import time; time.sleep(60)"))


def test_a_command_that_hangs_is_killed_when_the_server_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encryption_options, "COMMAND_SECONDS", 3600)
    stopped, begun = threading.Event(), tmp_path / "begun"
    code = f"import time; print({KEY!r}); open({str(begun)!r}, 'w'); time.sleep(3600)"
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(keys_of, printing(code), stopped)
        while not begun.exists():
            assert not asked.done()
        stopped.set()
        with pytest.raises(ConfigurationError, match="did not end within"):
            asked.result(60)


def test_nothing_is_taken_up_once_the_server_stops(tmp_path: Path) -> None:
    folder = KeyFolder(OsDisk(), str(tmp_path), 0, ())
    config = file_of(tmp_path / "keys", KEY)
    keys = keys_of(config)
    assert keys is not None
    reload = KeyReload(file_of(tmp_path / "keys", f"{NEW} {KEY}").encryption, keys, folder)
    reload.close()
    reload.reload()
    assert keys.ids == (KEY_ID,)
    assert not (tmp_path / "encryption").exists()


def test_there_is_one_source() -> None:
    with pytest.raises(ValueError, match="give one of key_file, key_command, keys"):
        config_of(keys=KEY, key_command=["x"])
    with pytest.raises(ValueError, match="retired_key_ids"):
        config_of(retired_key_ids=["x"])


def opened(folder: Path, config: Config) -> None:
    note_keys(OsDisk(), str(folder), 0, keys_of(config), config)


def test_a_key_that_was_given_once_is_missed(tmp_path: Path) -> None:
    opened(tmp_path, Config())
    opened(tmp_path, config_of(keys=KEY))
    opened(tmp_path, config_of(keys=f"{NEW} {KEY}"))
    for config in (Config(), config_of(keys=NEW)):
        with pytest.raises(ConfigurationError, match=f"was used with key {KEY_ID}, which is not"):
            opened(tmp_path, config)
    opened(tmp_path, config_of(keys=NEW, retired_key_ids=[KEY_ID]))
    opened(tmp_path, config_of(retired_key_ids=[KEY_ID, NEW_ID]))
    opened(tmp_path, config_of(keys=f"{KEY} {NEW}"))
    assert KEY not in (tmp_path / "encryption").read_text()


def test_a_damaged_note_is_written_anew(tmp_path: Path) -> None:
    opened(tmp_path, config_of(keys=KEY))
    (tmp_path / "encryption").write_text("x")
    opened(tmp_path, config_of(keys=NEW))
    with pytest.raises(ConfigurationError):
        opened(tmp_path, Config())


def test_keys_are_in_no_debug_bundle() -> None:
    config = config_of(keys=f"{NEW} {KEY}")
    assert KEY not in repr(config)
    assert KEY not in public(config)
    assert NEW not in public(config)
    assert blotted(f"a {KEY} b {NEW}", secrets_of(config)) == "a *** b ***"


def test_a_command_is_run_again_after_minutes_and_a_file_once_it_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(encryption_options.time, "monotonic", lambda: now)
    folder = KeyFolder(OsDisk(), str(tmp_path), 0, ())
    keys = keys_of(printing(f"print({KEY!r})"))
    assert keys is not None
    asked = KeyReload(printing(f"print({f'{NEW} {KEY}'!r})").encryption, keys, folder)
    assert asked.signature() == asked.seen
    now += encryption_options.COMMAND_CHECK_SECONDS
    assert asked.signature() != asked.seen
    asked.reload()
    assert asked.signature() == asked.seen
    assert keys.ids == (NEW_ID, KEY_ID)
    assert keys.active_id == NEW_ID

    config = file_of(tmp_path / "keys", f"{NEW} {KEY}")
    read = KeyReload(config.encryption, keys, folder)
    assert read.signature() == read.seen
    file_of(tmp_path / "keys", f"{KEY} {NEW} ")
    assert read.signature() != read.seen
    read.reload()
    assert keys.active_id == KEY_ID
