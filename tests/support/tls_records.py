"""A client of TLS 1.3 that seals its records by hand, for what no library would send."""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
import ssl
import struct
import tempfile
from collections.abc import Sequence

from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

APPLICATION_DATA, HANDSHAKE = 23, 22
_KEY_UPDATE = b"\x18\x00\x00\x01"


class RecordClient:
    """Shakes hands when it is made. `sock` is the plain socket below it."""

    def __init__(self, address: tuple[str, int], protocols: Sequence[str] = ()) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        if protocols:
            context.set_alpn_protocols(list(protocols))
        number, secrets = tempfile.mkstemp()
        os.close(number)
        context.keylog_filename = secrets
        try:
            self.sock = socket.create_connection(address)
            cipher = self._shake_hands(context)
            with open(secrets) as lines:
                found = [line.split() for line in lines if not line.startswith("#")]
        finally:
            os.unlink(secrets)
        self._secret = bytes.fromhex({a: c for a, _, c in found}["CLIENT_TRAFFIC_SECRET_0"])
        self._hash = hashlib.sha384 if len(self._secret) == 48 else hashlib.sha256
        self._is_chacha = "CHACHA" in cipher
        self._key_bytes = 16 if "128" in cipher else 32
        self._take_keys()

    def _shake_hands(self, context: ssl.SSLContext) -> str:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        session = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
        while True:
            try:
                session.do_handshake()
                break
            except ssl.SSLWantReadError:
                self.sock.sendall(outgoing.read())
                incoming.write(self.sock.recv(65_536))
        self.sock.sendall(outgoing.read())
        cipher = session.cipher()
        assert cipher is not None
        return cipher[0]

    def _expanded(self, label: bytes, length: int) -> bytes:
        """HKDF-Expand-Label of RFC 8446."""
        label = b"tls13 " + label
        info = struct.pack(">HB", length, len(label)) + label + b"\x00"
        found, last = b"", b""
        for number in range(1, 1 + -(-length // self._hash().digest_size)):
            last = hmac.new(self._secret, last + info + bytes([number]), self._hash).digest()
            found += last
        return found[:length]

    def _take_keys(self) -> None:
        key = self._expanded(b"key", self._key_bytes)
        self._cipher = ChaCha20Poly1305(key) if self._is_chacha else AESGCM(key)
        self._iv = int.from_bytes(self._expanded(b"iv", 12), "big")
        self._number = 0

    def record(self, data: bytes, kind: int = APPLICATION_DATA, padding: int = 0) -> bytes:
        """The next record, to be sent."""
        inner = data + bytes([kind]) + bytes(padding)
        head = b"\x17\x03\x03" + (len(inner) + 16).to_bytes(2, "big")
        nonce = (self._iv ^ self._number).to_bytes(12, "big")
        self._number += 1
        return head + self._cipher.encrypt(nonce, inner, head)

    def key_update(self, *, asks: bool = False) -> bytes:
        """A record that changes this end's keys. asks: the other end has to answer with another."""
        found = self.record(_KEY_UPDATE + bytes([asks]), HANDSHAKE)
        self._secret = self._expanded(b"traffic upd", self._hash().digest_size)
        self._take_keys()
        return found

    def is_hung_up_on(self, seconds: float) -> bool:
        """Whether the other end closes within that time."""
        self.sock.settimeout(seconds)
        try:
            while self.sock.recv(65_536):
                pass
        except TimeoutError:
            return False
        except OSError:
            pass
        return True
