"""Encryption at rest: the bodies of batches, and what a log's state files hold of records.

    append ──> stamp ──> encrypt ──> segment ──> replicas, repairs, backups (as stored)
                                        └──────> decrypt ──> readers, compaction, message ids

A node has several *keys* and encrypts with the first, the *active* one. Batches name their key by
its id, which is derived from the key: a wrong key cannot have the right id.

**safety** A nonce is never used twice with a cipher's key. That key is derived from the node's key
and a salt of 16 random bytes, which each `Keys` draws when it is made and again every
BATCHES_PER_SALT batches; the nonce counts what was encrypted under the salt. Neither depends on
offset, epoch or anything on disk: a truncated offset that is written again, a restored folder, or
two nodes that lead one after the other cannot repeat one.

**safety** A batch of another stream, or moved to another place, is not decrypted: stream id,
offset, epoch, times and producer are authenticated.

Randomness is handed in.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import count
from typing import Final, NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from jetstream_protocol.batch import (
    BATCH_BYTES_MAX,
    ENCRYPTION_BYTES,
    HEADER_BYTES,
    BatchHeader,
    EncodedBatch,
    crc32c,
    decode_header,
)
from jetstream_protocol.columns import Flags
from jetstream_protocol.encrypted_body import (
    KEY_ID_BYTES,
    PREFIX_BYTES,
    SALT_BYTES,
    Prefix,
    as_batch,
    authenticated,
    body_length,
    decrypted_header,
    encrypted_header,
    finish,
    is_encrypted,
    read_prefix,
)
from jetstream_protocol.errors import CorruptBatchError, MessageTooLargeError, StorageError
from jetstream_server.log.producers import matters

KEY_BYTES: Final = 32
BATCHES_PER_SALT: Final = 1 << 24
_CIPHERS_MAX: Final = 1024
"""How many derived keys are cached: one is needed for each salt that is read."""
_ENCRYPTED: Final = int(Flags.ENCRYPTED)

Randomness = Callable[[int], bytes]
"""Returns that many random bytes, fit for keys."""


class CannotDecryptError(StorageError):
    """The bytes are as they were written, and this node cannot decrypt them."""


def key_id_of(key: bytes) -> str:
    """16 hexadecimal digits that name a key and reveal nothing of it."""
    return hmac.digest(key, b"jetstream key id", "sha256")[:KEY_ID_BYTES].hex()


def _cipher(key: bytes, salt: bytes) -> AESGCM:
    expand = HKDFExpand(SHA256(), KEY_BYTES, b"jetstream batches" + salt)
    return AESGCM(expand.derive(key))


class _Salted(NamedTuple):
    key_id: str
    salt: bytes
    cipher: AESGCM
    numbers: count[int]


class Keys:
    """The keys of a node, the active one first. For any thread. `replace` may change them.

    encrypts: False: the node only decrypts. retired: ids of keys that are gone; their records
    cannot be read.
    """

    def __init__(
        self,
        keys: Sequence[bytes],
        randomness: Randomness,
        *,
        encrypts: bool = True,
        retired: Collection[str] = (),
    ) -> None:
        self._randomness = randomness
        self._retired = frozenset(retired)
        self.encrypts = encrypts
        self._active: _Salted | None = None
        self.replace(keys)

    def replace(self, keys: Sequence[bytes]) -> None:
        """Use these keys from now on."""
        assert all(len(key) == KEY_BYTES for key in keys), "the caller checks the keys"
        self._keys = {key_id_of(key): key for key in keys}
        self._ciphers: dict[tuple[str, bytes], AESGCM] = {}
        self._active = self._new_salt() if keys else None

    def __repr__(self) -> str:
        return f"Keys({', '.join(self._keys)})"

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of the keys, the active one first."""
        return tuple(self._keys)

    @property
    def can_encrypt(self) -> bool:
        """Whether there is an active key."""
        return self._active is not None

    @property
    def active_id(self) -> str:
        """The id of the active key; "": there is none."""
        return "" if self._active is None else self._active.key_id

    @property
    def for_process(self) -> list[str]:
        """The keys themselves, in hexadecimal, for another process of this node."""
        return [key.hex() for key in self._keys.values()]

    @classmethod
    def of_process(cls, keys: Iterable[str], randomness: Randomness) -> Keys:
        return cls([bytes.fromhex(key) for key in keys], randomness)

    def of_stream(self, stream_id: int) -> Encryption:
        """The encryption of one stream's log."""
        return Encryption(self, stream_id)

    def _new_salt(self) -> _Salted:
        key_id, key = next(iter(self._keys.items()))
        salt = self._randomness(SALT_BYTES)
        return _Salted(key_id, salt, _cipher(key, salt), count())

    def encrypt(self, stream_id: int, plain: bytes, header: bytes | bytearray) -> bytes:
        """Encrypt, and return prefix, ciphertext and tag. header: the batch's final header, or
        other bytes that are to be authenticated."""
        active = self._active
        assert active is not None, "without a key nothing is encrypted"
        sequence = next(active.numbers)
        if sequence >= BATCHES_PER_SALT:
            active = self._active = self._new_salt()
            sequence = next(active.numbers)
        prefix = Prefix(active.key_id, stream_id, active.salt, sequence)
        text = prefix.to_bytes()
        return text + active.cipher.encrypt(prefix.nonce, plain, authenticated(header, text))

    def decrypt(
        self, body: bytes, header: bytes | bytearray, stream_id: int | None = None
    ) -> bytes:
        """Decrypt an encrypted body. stream_id: the stream that it must belong to; None: any.
        Raises CannotDecryptError, CorruptBatchError."""
        prefix = read_prefix(body)
        if stream_id not in (None, prefix.stream_id):
            raise CannotDecryptError(
                f"the records were encrypted for the stream with id {prefix.stream_id}, but are in "
                f"the log of the stream with id {stream_id}: were files exchanged?"
            )
        cipher = self._cipher_of(prefix)
        try:
            return cipher.decrypt(
                prefix.nonce, body[PREFIX_BYTES:], authenticated(header, body[:PREFIX_BYTES])
            )
        except InvalidTag:
            raise CannotDecryptError(
                f"records encrypted with key {prefix.key_id} were changed, although their checksum "
                "is right: restore them from a backup"
            ) from None

    def _cipher_of(self, prefix: Prefix) -> AESGCM:
        name = prefix.key_id, prefix.salt
        cipher = self._ciphers.get(name)
        if cipher is None:
            self.check(prefix.key_id)
            cipher = _cipher(self._keys[prefix.key_id], prefix.salt)
            if len(self._ciphers) >= _CIPHERS_MAX:
                self._ciphers.clear()
            self._ciphers[name] = cipher
        return cipher

    def check(self, key_id: str) -> None:
        """Raise CannotDecryptError for a key that this node does not have."""
        if self.is_retired(key_id):
            raise CannotDecryptError(
                f"the records are encrypted with key {key_id}, which encryption.retired_key_ids "
                "lists as gone: put the key back to read them"
            )
        if key_id not in self._keys:
            raise CannotDecryptError(_missing(key_id))

    def is_retired(self, key_id: str) -> bool:
        return key_id in self._retired and key_id not in self._keys


NO_KEYS: Final = Keys((), bytes, encrypts=False)
"""The keys of a node without encryption."""


def _missing(key_id: str) -> str:
    """The message about a key that the node lacks."""
    return (
        f"the records are encrypted with key {key_id}, which this node does not have: add it to "
        "the keys of its `encryption`"
    )


class Encryption:
    """Encrypts and decrypts the content of one log. For any thread."""

    __slots__ = ("_keys", "_stream_id")

    def __init__(self, keys: Keys, stream_id: int) -> None:
        self._keys = keys
        self._stream_id = stream_id

    @property
    def keys(self) -> Keys:
        return self._keys

    def encrypt(self, batch: EncodedBatch) -> EncodedBatch:
        """Encrypt a stamped batch with the active key. Raises MessageTooLargeError."""
        header = encrypted_header(batch.header)
        plain = batch.body[: body_length(batch.header)]
        if batch.length > BATCH_BYTES_MAX - ENCRYPTION_BYTES:
            raise MessageTooLargeError(
                f"a batch that is to be encrypted is at most {BATCH_BYTES_MAX - ENCRYPTION_BYTES} "
                "bytes long"
            )
        return as_batch(header, self._keys.encrypt(self._stream_id, plain, header), batch)

    def encrypt_bytes(self, batch: bytes) -> bytes:
        """Like `encrypt`, for a batch that is in one piece."""
        header = decode_header(batch)
        parts = bytearray(batch[:HEADER_BYTES]), batch[HEADER_BYTES:]
        encoded = EncodedBatch(*parts, header.record_count, header.last_offset_delta)
        return self.encrypt(encoded).to_bytes()

    def decrypt(self, batch: bytes) -> bytes:
        """Return one batch as it was before encryption; a plain batch is returned unchanged.

        Raises CannotDecryptError, and CorruptBatchError for bytes that fail their CRC.
        """
        return decrypt_batch(self._keys, batch, self._stream_id)

    def decrypt_all(self, data: bytes, *, partly: bool = False) -> bytes:
        """Decrypt whole batches that stand back to back.

        Bytes that fail their checks stay as they are: their decoder notices. Raises
        CannotDecryptError. With `partly` it raises only if the first batch cannot be decrypted;
        otherwise it returns the batches before the one that cannot.
        """
        return decrypt_all(self._keys, data, self._stream_id, partly=partly)

    def encrypt_state(self, data: bytes, kind: str) -> bytes:
        """Encrypt a part of a state file. kind: the file's kind."""
        return self._keys.encrypt(self._stream_id, data, _state_header(kind))

    def decrypt_state(self, data: bytes, kind: str) -> bytes:
        """Reverse `encrypt_state`. Raises CannotDecryptError, CorruptBatchError."""
        return self._keys.decrypt(data, _state_header(kind), self._stream_id)


def _state_header(kind: str) -> bytes:
    """What is authenticated instead of a batch's header. No batch has a header like it."""
    return kind.encode().ljust(HEADER_BYTES, b"\0")


def decrypt_batch(keys: Keys, batch: bytes, stream_id: int | None = None) -> bytes:
    """See Encryption.decrypt. stream_id: None: of any stream."""
    if not is_encrypted(batch):
        return batch
    header = decode_header(batch)
    end = HEADER_BYTES + header.body_length
    body = batch[HEADER_BYTES:end]
    try:
        plain = keys.decrypt(body, batch[:HEADER_BYTES], stream_id)
    except CannotDecryptError:
        if crc32c(body) != header.body_crc:
            raise CorruptBatchError("batch body fails its CRC") from None
        raise
    if any(batch[end:]):
        raise CorruptBatchError("batch body fails its CRC")
    stamped = decrypted_header(batch[:HEADER_BYTES])
    # The body first: `finish` writes the CRCs.
    padded_body = finish(stamped, plain)
    return bytes(stamped) + padded_body


def decrypt_all(
    keys: Keys, data: bytes, stream_id: int | None = None, *, partly: bool = False
) -> bytes:
    """See Encryption.decrypt_all."""
    parts: list[bytes] = []
    position = kept_from = 0
    while position < len(data):
        try:
            header = decode_header(data, position)
            if header.flags & _ENCRYPTED:
                plain = decrypt_batch(keys, data[position : position + header.length], stream_id)
                parts += data[kept_from:position], plain
                kept_from = position + header.length
        except CorruptBatchError:
            break
        except CannotDecryptError:
            if not partly or position == 0:
                raise
            parts.append(data[kept_from:position])
            return b"".join(parts)
        position += header.length
    return b"".join((*parts, data[kept_from:])) if parts else data


def plain_batches(encryption: Encryption | None, data: bytes) -> bytes:
    """Decrypt those of the batches that are encrypted; see Encryption.decrypt_all."""
    return data if encryption is None else encryption.decrypt_all(data)


def why_no_key(encryption: Encryption | None) -> str:
    """Why this node cannot encrypt a stream that must be encrypted; "" if it can."""
    if encryption is not None and encryption.keys.can_encrypt:
        return ""
    return (
        "the stream is to be encrypted, and this node has no key: give it the cluster's keys "
        "(encryption.key_file), and restart it"
    )


def check_incoming_keys(
    encryption: Encryption | None,
    headers: Sequence[BatchHeader],
    data: bytes,
    must_encrypt: bool = False,
) -> dict[int, bytes]:
    """Check that this node has the keys of the batches in `data`, before a follower appends them.

    must_encrypt: as the leader this node would have to encrypt. Returns the batches by which
    duplicates are recognised, decrypted, by base offset.

    **safety** A follower refuses what it could not decrypt as a leader. The leader goes on without
    this replica, and nothing is lost. Raises CannotDecryptError, CorruptBatchError.
    """
    if must_encrypt and (reason := why_no_key(encryption)):
        raise CannotDecryptError(reason)
    found: dict[int, bytes] = {}
    position = 0
    for header in headers:
        if header.flags & _ENCRYPTED:
            key_id = read_prefix(data, position + HEADER_BYTES).key_id
            if encryption is None:
                raise CannotDecryptError(_missing(key_id))
            if not encryption.keys.is_retired(key_id):
                encryption.keys.check(key_id)
                if matters(header):
                    batch = data[position : position + header.length]
                    found[header.base_offset] = encryption.decrypt(batch)
        position += header.length
    return found
