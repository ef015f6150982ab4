"""Writes the vectors that do not exist yet: `python -m tests.vectors.encrypted.write`."""

from __future__ import annotations

from jetstream_protocol.batch import HEADER_BYTES, EncodedBatch, decode_header
from jetstream_server.log.encryption import Keys, key_id_of
from tests.vectors.vector import BATCHES, ENCRYPTED

KEY = bytes(range(32))
SALT = bytes(range(0xA0, 0xB0))
STREAM_ID = 17
CASES = {
    "one_record": 0,
    "keys_and_tombstones": 1,
    "after_gap": 258,
    "zstd": 3,
}
"""What is encrypted, and as the how manieth batch under the salt."""


def keys(sequence: int = 0) -> Keys:
    """Keys that encrypt as in the vector of that sequence."""
    made = Keys([KEY], lambda count: SALT[:count])
    for _ in range(sequence):
        made.encrypt(STREAM_ID, b"", bytes(HEADER_BYTES))
    return made


def encrypted(plain: bytes, sequence: int) -> bytes:
    header = decode_header(plain)
    batch = EncodedBatch(
        bytearray(plain[:HEADER_BYTES]),
        plain[HEADER_BYTES:],
        header.record_count,
        header.last_offset_delta,
    )
    return keys(sequence).of_stream(STREAM_ID).encrypt(batch).to_bytes()


def main() -> None:
    for name, sequence in CASES.items():
        if name in ENCRYPTED.names:
            continue
        data = encrypted(BATCHES.read(name)[0], sequence)
        ENCRYPTED.write(
            name,
            data,
            {
                "plain": name,
                "key": KEY.hex(),
                "key_id": key_id_of(KEY),
                "stream_id": STREAM_ID,
                "salt": SALT.hex(),
                "sequence": sequence,
                "header": decode_header(data)._asdict(),
            },
        )
        print(name)


if __name__ == "__main__":
    main()
