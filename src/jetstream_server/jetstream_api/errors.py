"""The errors of the JetStream API: NATS's own numbers, which clients compare.

{"code": 404, "err_code": 10059, "description": "stream not found"}
"""

from __future__ import annotations

from typing import Any

from jetstream_protocol.errors import (
    JetstreamError,
    PermissionDeniedError,
    StreamNotFoundError,
    TooManyRequestsError,
    UnauthenticatedError,
)

_DESCRIPTION_LENGTH_MAX = 500


class ApiError(Exception):
    """A refusal. status: code and text where a status is the answer, not JSON; "": these. Clients
    take 503 for "no responders", and do not show its text."""

    def __init__(self, code: int, err_code: int, description: str, status: str = "") -> None:
        super().__init__(description)
        self.code = code
        self.err_code = err_code
        self.description = " ".join(description.split())[:_DESCRIPTION_LENGTH_MAX]
        self.status = status or f"{code} {self.description}"

    def to_json(self) -> dict[str, Any]:
        return {"code": self.code, "err_code": self.err_code, "description": self.description}


def bad_request_error(why: str = "bad request") -> ApiError:
    return ApiError(400, 10003, why, "408 Bad Request")


def invalid_json_error(why: str) -> ApiError:
    return ApiError(400, 10025, f"invalid JSON: {why}", "408 Malformed Request")


def stream_not_found_error() -> ApiError:
    return ApiError(404, 10059, "stream not found", "503")


def no_message_error() -> ApiError:
    return ApiError(404, 10037, "no message found", "404 Message Not Found")


def not_supported_error(what: str) -> ApiError:
    """What this server does not do. Clients know the number as "not in clustered mode"."""
    return ApiError(503, 10036, f"not supported: {what}")


def not_searched_error(sequence: int) -> ApiError:
    """A search that has looked at as much as one request may. sequence: where it ended."""
    return ApiError(
        503,
        10023,
        f"insufficient resources: subjects have no index, and one request searches no further: "
        f"sequence {sequence} was reached",
        "500 Insufficient Resources",
    )


def too_many_subjects_error(most: int) -> ApiError:
    return ApiError(
        503,
        10023,
        f"insufficient resources: the last messages of more than {most} subjects",
        "500 Insufficient Resources",
    )


def busy_error() -> ApiError:
    return ApiError(
        503,
        10023,
        "insufficient resources: too many requests at once",
        "500 Insufficient Resources",
    )


def too_large_error(length: int, limit: int) -> ApiError:
    return ApiError(
        400,
        10054,
        f"message size exceeds maximum allowed: the answer has {length} bytes, and NATS's "
        f"max_payload is {limit}",
        "413 Message Too Large",
    )


def api_error(error: JetstreamError) -> ApiError:
    """The API's error for one of ours."""
    if isinstance(error, StreamNotFoundError):
        return stream_not_found_error()
    if isinstance(error, PermissionDeniedError | UnauthenticatedError):
        return ApiError(403, 10003, error.message, "403 Permission Denied")
    if isinstance(error, TooManyRequestsError):
        return busy_error()
    return ApiError(
        503,
        10008,
        f"JetStream system temporarily unavailable: {error.message}",
        "500 Temporarily Unavailable",
    )


def not_enabled_error() -> ApiError:
    return ApiError(
        503,
        10039,
        "JetStream not enabled for account: nats.api_principal names a principal without a right",
        "503",
    )
