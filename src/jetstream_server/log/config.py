"""How the log of a stream is cut into segments, and encrypted."""

from __future__ import annotations

from dataclasses import dataclass

from jetstream_protocol.batch import EncodedBatch
from jetstream_protocol.errors import StorageError
from jetstream_server.log.encryption import Encryption, Keys, why_no_key
from jetstream_server.log.state_files import owner_of


@dataclass(frozen=True, slots=True)
class LogConfig:
    """When segments are sealed, how dense their indexes are, and the node's keys."""

    segment_bytes: int = 256 * 1024 * 1024
    segment_age_us: int | None = None
    index_interval_bytes: int = 4096
    segment_offsets: int | None = None
    """How many offsets a segment may cover."""
    keys: Keys | None = None
    must_encrypt: bool = False
    """The stream's batches are encrypted even if the node only decrypts."""
    index_subjects: bool = False
    """The log has an index of its subjects from its opening on."""

    def encryption_of(self, directory: str) -> Encryption | None:
        """The encryption of the log in that folder, which is named by its stream id; None without
        keys."""
        return None if self.keys is None else self.keys.of_stream(int(owner_of(directory)))

    def stored_form(self, batch: EncodedBatch, encryption: Encryption | None) -> EncodedBatch:
        """A stamped batch as it has to be stored. Raises StorageError, MessageTooLargeError."""
        if self.must_encrypt and (reason := why_no_key(encryption)):
            raise StorageError(reason)
        if encryption is None or not (self.must_encrypt or encryption.keys.encrypts):
            return batch
        return encryption.encrypt(batch)
