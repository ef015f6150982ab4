"""Writes the vectors that do not exist yet: `python -m tests.vectors.write`."""

from __future__ import annotations

from typing import Any

from jetstream_protocol.batch import Batch, decode_header, encode
from jetstream_protocol.columns import Flags
from tests.vectors.vector import BATCHES, octets, texts

BLOCK = "NATS/1.0\r\nsource: web\r\n\r\n"
DEFAULTS: dict[str, Any] = {
    "values": ["{}"],
    "subjects": "flights.EWR.UA",
    "keys": None,
    "header_blocks": None,
    "timestamps": None,
    "offset_deltas": None,
    "last_offset_delta": None,
    "producer_id": -1,
    "producer_sequence": -1,
    "compression": 0,
    "stamp": [0, 0, 1385640000000000],
}
CASES: dict[str, dict[str, Any]] = {
    "one_record": {},
    "constant_subject": {"values": ["one", "", "three"], "stamp": [42, 7, 1385640000000001]},
    "subject_column": {
        "values": ["a", "b"],
        "subjects": ["flights.EWR.UA", "flights.JFK.B6"],
    },
    "keys_and_tombstones": {
        "values": ["x", None, ""],
        "keys": ["k1", "k1", None],
        "stamp": [2**40, 2**33, -1],
    },
    "keys_all_present": {"values": ["x", "y"], "keys": ["k1", "k2"]},
    "header_blocks": {"values": ["x", "y"], "header_blocks": [BLOCK, ""]},
    "timestamps": {"values": ["x", "y", "z"], "timestamps": [3, -1, 2]},
    "compacted": {
        "values": ["kept", "also kept"],
        "keys": ["a", "b"],
        "offset_deltas": [1, 5],
        "last_offset_delta": 6,
        "stamp": [100, 1, 1],
    },
    "compacted_to_nothing": {"values": [], "offset_deltas": [], "last_offset_delta": 3},
    "after_gap": {"values": ["kept"], "stamp": [7, 1, 1], "after_gap": True},
    "producer": {"producer_id": 2**62, "producer_sequence": 2**31 - 1},
    "zstd": {"values": ["repeat " * 8] * 4, "compression": int(Flags.ZSTD)},
    "lz4": {"values": ["repeat " * 8] * 4, "compression": int(Flags.LZ4)},
    "nine_records": {"values": [None, *"abcdefgh"], "timestamps": list(range(9))},
}


def main() -> None:
    for name, changes in CASES.items():
        if name in BATCHES.names:
            continue
        built = DEFAULTS | changes
        arguments = {key: value for key, value in built.items() if key != "stamp"}
        for key in ("values", "subjects", "keys", "header_blocks"):
            arguments[key] = octets(arguments[key])
        encoded = encode(**arguments)
        encoded.stamp(*built["stamp"])
        data = encoded.to_bytes()
        batch = Batch.decode(data)
        records = {
            "offsets": list(batch.offsets()),
            "timestamps": batch.timestamps(),
            "subjects": texts(batch.subjects()),
            "keys": texts(batch.keys()),
            "values": texts(batch.values()),
            "header_blocks": texts(batch.header_blocks()),
        }
        header = decode_header(data)._asdict()
        BATCHES.write(name, data, {"header": header, "records": records, "encode": built})
        print(name)


if __name__ == "__main__":
    main()
