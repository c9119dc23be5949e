"""Errors in OpenAI's shape, so that its SDKs raise the exceptions their users expect."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import grpc
import orjson
from starlette.responses import Response

from openclaw_rl.rpc.errors import MeshError

_STATUS = {
    grpc.StatusCode.INVALID_ARGUMENT: 400, grpc.StatusCode.OUT_OF_RANGE: 400,
    grpc.StatusCode.UNAUTHENTICATED: 401, grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404, grpc.StatusCode.ALREADY_EXISTS: 409,
    # The SDKs retry a 409, which suits a version that may become active in a moment.
    grpc.StatusCode.FAILED_PRECONDITION: 409, grpc.StatusCode.ABORTED: 409,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429, grpc.StatusCode.UNIMPLEMENTED: 501,
    grpc.StatusCode.UNAVAILABLE: 503, grpc.StatusCode.DEADLINE_EXCEEDED: 504,
}
_TYPE = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


class ApiError(Exception):
    """An error response.

    Attributes:
        status: HTTP status.
        message, type, param, code: the fields of OpenAI's error body; `param` names the bad field.
        headers: further headers, such as Retry-After.
    """

    def __init__(self, status: int, message: str, *, type: str | None = None, param: str | None = None,
                 code: str | None = None, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.type = type or _TYPE.get(status) or ("invalid_request_error" if status < 500 else "server_error")
        self.headers = headers or {}

    def body(self) -> dict[str, Any]:
        """The JSON body."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}

    def response(self, shape: ErrorShape | None = None) -> Response:
        """The HTTP response."""
        return Response(orjson.dumps((shape or OPENAI).body(self)), self.status, self.headers, "application/json")


class ErrorShape(NamedTuple):
    """How an API writes errors."""

    body: Callable[[ApiError], dict[str, Any]]  #: of the response
    event: bytes = b""  #: what comes before the body where a stream has begun


#: SDKs raise an APIError for an event that has an `error`.
OPENAI = ErrorShape(ApiError.body)


def from_mesh(error: MeshError) -> ApiError:
    """Convert a mesh error. An API model's own HTTP status is kept (metadata `http_status`)."""
    status = int(error.metadata.get("http_status", 0)) or (
        400 if error.reason == "NO_WEIGHTS" else _STATUS.get(error.code, 500))  # a retry would not help
    headers = {} if error.retry_after is None else {"Retry-After": str(max(1, math.ceil(error.retry_after)))}
    code = {"CONTEXT_TOO_LONG": "context_length_exceeded", "INVALID_ARGUMENT": "invalid_value",
            "RESOURCE_EXHAUSTED": "rate_limit_exceeded"}.get(error.reason, error.reason.lower())
    return ApiError(status, error.message, param=error.violations[0][0] if error.violations else None, code=code,
                    headers=headers)


def wrong_type(param: str, value: Any, expected: str) -> ApiError:
    """400: a field has the wrong JSON type."""
    shown = repr(value)
    if len(shown) > 60:
        shown = shown[:57] + "..."
    return ApiError(400, f"Invalid type for '{param}': expected {expected}, but got {json_type(value)} instead "
                         f"({shown}).", param=param, code="invalid_type")


def wrong_value(param: str, value: Any, allowed: str) -> ApiError:
    """400: a field has a value that is not allowed; `allowed` completes "must be ..."."""
    shown = repr(value)
    if len(shown) > 60:
        shown = shown[:57] + "..."
    return ApiError(400, f"Invalid value for '{param}': {shown}; it must be {allowed}.", param=param,
                    code="invalid_value")


def missing(param: str, why: str = "") -> ApiError:
    """400: a required field is missing."""
    return ApiError(400, f"Missing required parameter: '{param}'." + (f" {why}" if why else ""), param=param,
                    code="missing_required_parameter")


def json_type(value: Any) -> str:
    """The JSON type of a value, with its article."""
    names = {bool: "a boolean", int: "an integer", float: "a decimal", str: "a string", list: "an array",
             dict: "an object"}
    return names.get(type(value), "null")
