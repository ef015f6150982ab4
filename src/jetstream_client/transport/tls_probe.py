"""Finds out why a connection to a gRPC port fails: it should speak TLS, or should not.

gRPC says little more than that it cannot connect. The client asks only after a failure, and before
any server has answered.
"""

from __future__ import annotations

import asyncio
import ssl

from jetstream_client.values.tls import TlsConfig
from jetstream_protocol.errors import JetstreamError

ALERT_SECONDS = 0.5
"""TLS 1.3 tells a client last of all that its certificate is refused."""
_ALPN = ("h2",)
_WANTS_ONE = (
    "wants a certificate of the client: give cert and key (--cert and --key, JETSTREAM_CERT and "
    "JETSTREAM_KEY)"
)
_NOT_GRPC = "speaks TLS, and is no gRPC port: clients need the gRPC port, 9292 by default"
_REFUSES_IT = (
    "refuses this client's certificate: is it valid today, and signed by an authority that the "
    "server trusts?"
)


class NotGrpcError(Exception):
    """TLS is spoken there, and not gRPC over it."""


async def why_tls_fails(address: str, tls: TlsConfig) -> str:
    """What a user has to change, as "its certificate …"; "": nothing is known."""
    try:
        if await _connect(address, tls.ssl_context(_ALPN)):
            return ""
        # gRPC closes the connection silently if it does not accept the client.
        return _WANTS_ONE if tls.cert is None else _REFUSES_IT
    except NotGrpcError:
        return _NOT_GRPC
    except ssl.SSLCertVerificationError as error:
        return (
            f"shows a certificate that is not trusted: {error.verify_message}. Is its authority in "
            "the file that ca (--ca, JETSTREAM_CA) names?"
        )
    except ssl.SSLError as error:
        return _advice(error.reason or "", tls)
    except JetstreamError as error:
        return f"cannot be asked: {error.message}"
    except (OSError, UnicodeError):  # A UnicodeError: no possible host name.
        pass
    return ""


def _advice(reason: str, tls: TlsConfig) -> str:
    if reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"):
        return "does not speak TLS: connect without tls (--ca, JETSTREAM_CA)"
    if ("ALERT" in reason and "CERT" in reason) or "UNKNOWN_CA" in reason:
        return _WANTS_ONE if tls.cert is None else _REFUSES_IT
    return f"cannot be spoken to over TLS: {reason.replace('_', ' ').lower()}"


async def speaks_tls(address: str) -> bool:
    """Whether the port, which a plain client has tried, wants TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(list(_ALPN))
    try:
        await _connect(address, context)
    except NotGrpcError:
        return True
    except ssl.SSLError as error:
        return "ALERT" in (error.reason or "")
    except (OSError, UnicodeError):
        return False
    return True


async def _connect(address: str, context: ssl.SSLContext) -> bool:
    """Whether the server has taken us: it sends something, or waits for us. Raises what goes wrong
    with TLS, up to the answer to the certificate that was shown; NotGrpcError if the port is
    another one, which says so before it looks at certificates."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    reader, writer = await asyncio.open_connection(
        host, int(port), ssl=context, server_hostname=host
    )
    try:
        if writer.get_extra_info("ssl_object").selected_alpn_protocol() not in _ALPN:
            raise NotGrpcError
        async with asyncio.timeout(ALERT_SECONDS):
            return bool(await reader.read(1))
    except TimeoutError:
        return True
    except ConnectionError:
        return False
    finally:
        writer.transport.abort()
