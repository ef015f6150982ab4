"""Encrypted batches: they come back as they were, and nothing in them can be changed unnoticed."""

from __future__ import annotations

import hashlib
import hmac
from itertools import count

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given, settings
from hypothesis import strategies as st

from jetstream_protocol.batch import (
    ENCRYPTION_BYTES,
    HEADER_BYTES,
    Batch,
    crc32c,
    decode_header,
    encode,
    with_flags,
)
from jetstream_protocol.columns import Flags, padded
from jetstream_protocol.encrypted_body import PREFIX_BYTES, read_prefix
from jetstream_protocol.errors import CorruptBatchError
from jetstream_protocol.types import WallUs
from jetstream_server.log.encryption import (
    BATCHES_PER_SALT,
    CannotDecryptError,
    Encryption,
    Keys,
    decrypt_batch,
    key_id_of,
)
from tests.property.batches import Records, records
from tests.vectors.encrypted.write import encrypted
from tests.vectors.vector import BATCHES, ENCRYPTED

KEY, OTHER = b"k" * 32, b"o" * 32


def salts() -> Keys:
    numbers = count()
    return Keys([KEY], lambda length: next(numbers).to_bytes(length, "big"))


def of_stream(stream_id: int = 17) -> Encryption:
    return salts().of_stream(stream_id)


def refitted(batch: bytes) -> bytes:
    """With CRCs that fit, as somebody would write who wants to go unnoticed."""
    header, body_length = bytearray(batch[:HEADER_BYTES]), int.from_bytes(batch[80:84], "little")
    body = batch[HEADER_BYTES : HEADER_BYTES + body_length]
    header[12:16] = crc32c(body).to_bytes(4, "little")
    header[84:88] = crc32c(bytes(header[:84])).to_bytes(4, "little")
    return bytes(header) + batch[HEADER_BYTES:]


@settings(max_examples=60)
@given(records(max_size=6), st.integers(0, 2**62), st.integers(0, 2**40))
def test_a_batch_comes_back_to_the_byte(made: Records, base_offset: int, epoch: int) -> None:
    encryption = of_stream()
    plain = made.to_bytes(base_offset, epoch, 1)
    stored = encryption.encrypt_bytes(plain)
    assert encryption.decrypt(stored) == plain
    before, after = decode_header(plain), decode_header(stored)
    assert after.flags == before.flags | Flags.ENCRYPTED
    assert after.body_length == before.body_length + ENCRYPTION_BYTES
    assert after.length == padded(HEADER_BYTES + after.body_length)
    changed = {"flags", "length", "body_crc", "body_length"}
    assert {k: v for k, v in after._asdict().items() if k not in changed} == {
        k: v for k, v in before._asdict().items() if k not in changed
    }
    with pytest.raises(CorruptBatchError, match="encrypted"):
        Batch.decode(stored)


@settings(max_examples=60)
@given(records(max_size=6), st.data())
def test_no_byte_can_be_changed(made: Records, data: st.DataObject) -> None:
    encryption = of_stream()
    stored = encryption.encrypt_bytes(made.to_bytes(5, 1, 1))
    at = data.draw(st.integers(0, len(stored) - 1))
    bit = 1 << data.draw(st.integers(0, 7))
    changed = stored[:at] + bytes([stored[at] ^ bit]) + stored[at + 1 :]
    with pytest.raises((CorruptBatchError, CannotDecryptError)):
        Batch.decode(encryption.decrypt(changed))  # Without its flag it passes for a plain one.
    forged = refitted(changed)
    if forged == stored:
        return  # One of the CRCs: they are computed, not believed.
    flags = int.from_bytes(forged[6:8], "little")
    if not flags & Flags.ENCRYPTED:
        with pytest.raises(CorruptBatchError):
            Batch.decode(encryption.decrypt(forged))
    elif forged == with_flags(stored, flags) and (flags ^ decode_header(stored).flags) == 512:
        assert encryption.decrypt(forged) == with_flags(
            encryption.decrypt(stored), flags & ~Flags.ENCRYPTED
        )  # AFTER_GAP: compaction sets it, and it says nothing of the records.
    else:
        with pytest.raises((CorruptBatchError, CannotDecryptError)):
            encryption.decrypt(forged)


@settings(max_examples=30)
@given(st.lists(records(max_size=3), min_size=1, max_size=6), st.lists(st.booleans(), min_size=6))
def test_plain_and_encrypted_batches_may_follow_each_other(
    made: list[Records], hidden: list[bool]
) -> None:
    encryption = of_stream()
    plain = [each.to_bytes(100 * number) for number, each in enumerate(made)]
    stored = [
        encryption.encrypt_bytes(each) if is_hidden else each
        for each, is_hidden in zip(plain, hidden, strict=False)
    ]
    assert encryption.decrypt_all(b"".join(stored)) == b"".join(plain)


def batch(offset: int = 0) -> bytes:
    made = encode([b"value"], b"subject")
    made.stamp(offset, 1, WallUs(1))
    return made.to_bytes()


def test_a_wrong_key_is_told_by_its_id() -> None:
    stored = of_stream().encrypt_bytes(batch())
    other = Keys([OTHER], bytes).of_stream(17)
    with pytest.raises(CannotDecryptError, match=f"key {key_id_of(KEY)}, which this node does not"):
        other.decrypt(stored)
    retired = Keys([OTHER], bytes, retired=[key_id_of(KEY)]).of_stream(17)
    with pytest.raises(
        CannotDecryptError, match=f"{key_id_of(KEY)}, which encryption.retired_key_ids"
    ):
        retired.decrypt(stored)


def test_the_batches_before_one_that_cannot_be_decrypted_can_be_had() -> None:
    encryption = of_stream()
    other = Keys([OTHER], bytes).of_stream(17)
    stored = [encryption.encrypt_bytes(batch(0)), batch(1), other.encrypt_bytes(batch(2)), batch(3)]
    data = b"".join(stored)
    assert encryption.decrypt_all(data, partly=True) == batch(0) + batch(1)
    for partly in (False, True):
        with pytest.raises(CannotDecryptError):
            encryption.decrypt_all(b"".join(stored[2:]), partly=partly)
    with pytest.raises(CannotDecryptError):
        encryption.decrypt_all(data)


def test_what_is_damaged_stays_so_and_what_is_before_it_is_decrypted() -> None:
    encryption = of_stream()
    stored = encryption.encrypt_bytes(batch(1))
    damaged = stored[:-1] + bytes([stored[-1] ^ 1])
    found = encryption.decrypt_all(encryption.encrypt_bytes(batch(0)) + damaged + batch(2))
    assert found == batch(0) + damaged + batch(2)


def test_a_batch_of_another_stream_is_refused_but_where_any_will_do() -> None:
    keys = salts()
    stored = keys.of_stream(17).encrypt_bytes(batch())
    with pytest.raises(
        CannotDecryptError, match="stream with id 17, but are in the log of the stream with id 18"
    ):
        keys.of_stream(18).decrypt(stored)
    assert decrypt_batch(keys, stored) == batch()


def test_several_keys_are_known_and_the_first_encrypts() -> None:
    old = Keys([KEY], bytes).of_stream(17).encrypt_bytes(batch())
    rotated = Keys([OTHER, KEY], bytes).of_stream(17)
    assert rotated.decrypt(old) == batch()
    new = rotated.encrypt_bytes(batch())
    assert read_prefix(new, HEADER_BYTES).key_id == key_id_of(OTHER)
    assert rotated.decrypt(new) == batch()


def test_no_nonce_is_used_twice() -> None:
    """Not for the same offset of the same stream, by the same node or another."""
    used = set()
    for keys in (salts(), Keys([KEY], lambda count: b"\xff" * count)):
        for _ in range(50):
            prefix = read_prefix(keys.of_stream(17).encrypt_bytes(batch()), HEADER_BYTES)
            used.add((prefix.key_id, prefix.salt, prefix.nonce))
    assert len(used) == 100


def test_a_salt_is_drawn_anew_before_its_numbers_run_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jetstream_server.log.encryption.BATCHES_PER_SALT", 3)
    assert BATCHES_PER_SALT == 1 << 24
    encryption = of_stream()
    found = [read_prefix(encryption.encrypt_bytes(batch()), HEADER_BYTES) for _ in range(7)]
    assert [each.sequence for each in found] == [0, 1, 2, 0, 1, 2, 0]
    assert len({(each.salt, each.sequence) for each in found}) == 7


@pytest.mark.parametrize("name", ENCRYPTED.names)
def test_the_vectors(name: str) -> None:
    data, said = ENCRYPTED.read(name)
    plain = BATCHES.read(said["plain"])[0]
    assert encrypted(plain, said["sequence"]) == data
    assert decode_header(data)._asdict() == said["header"]
    assert decrypt_batch(Keys([bytes.fromhex(said["key"])], bytes), data) == plain


@pytest.mark.parametrize("name", ENCRYPTED.names)
def test_the_vectors_by_the_letter_of_the_page(name: str) -> None:
    """As somebody does it who has read docs/file_formats.md only."""
    data, said = ENCRYPTED.read(name)
    plain = BATCHES.read(said["plain"])[0]
    key, salt = bytes.fromhex(said["key"]), bytes.fromhex(said["salt"])
    assert hmac.digest(key, b"jetstream key id", "sha256")[:8].hex() == said["key_id"]
    derived = hmac.new(key, b"jetstream batches" + salt + b"\x01", hashlib.sha256).digest()
    flags = int.from_bytes(data[6:8], "little") & ~512
    header = data[:6] + flags.to_bytes(2, "little") + data[8:12] + data[16:84]
    prefix = data[HEADER_BYTES : HEADER_BYTES + PREFIX_BYTES]
    body_length = int.from_bytes(data[80:84], "little")
    text = data[HEADER_BYTES + PREFIX_BYTES : HEADER_BYTES + body_length]
    nonce = said["sequence"].to_bytes(12, "little")
    body = AESGCM(derived).decrypt(nonce, text, header + prefix)
    assert plain[HEADER_BYTES : HEADER_BYTES + len(body)] == body
