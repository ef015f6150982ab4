"""A stream's settings in the message `StreamConfig` of api.proto: how choices are numbered."""

from __future__ import annotations

from collections.abc import Mapping

from jetstream_protocol.generated import api_pb2
from jetstream_protocol.settings import STREAM_SETTINGS, Kind, Setting


def _numbers(setting: Setting) -> dict[str, int]:
    """As ENCRYPTION_AES_256_GCM of the enum Encryption stands for "aes-256-gcm"."""
    enum = getattr(api_pb2, setting.type_name)
    prefix = f"{setting.name}_".upper()
    return {
        choice: enum.Value(prefix + choice.upper().replace("-", "_")) for choice in setting.choices
    }


NUMBERS: Mapping[str, Mapping[str, int]] = {
    setting.field: _numbers(setting) for setting in STREAM_SETTINGS if setting.kind is Kind.CHOICE
}
"""The numbers of the choices of each setting that has some; 0 leaves it to the server."""
