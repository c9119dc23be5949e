"""Parsed errors of a server."""

from __future__ import annotations

from dataclasses import dataclass, field

import grpc
from google.rpc import error_details_pb2, status_pb2

from openclaw_rl.rpc.errors import DOMAIN, STATUS_KEY


@dataclass
class Refusal:
    """An error that a server answered, taken apart.

    Attributes:
        code, message: of the status.
        reason, domain: of ErrorInfo; "" without one.
        violations: field -> description, of BadRequest.
        retry_after: seconds, of RetryInfo; None without one.
        detailed: the answer had a google.rpc.Status at all.
    """

    code: grpc.StatusCode
    message: str
    reason: str = ""
    domain: str = ""
    violations: dict[str, str] = field(default_factory=dict)
    retry_after: float | None = None
    detailed: bool = False

    def __str__(self) -> str:
        return f"{self.code.name} ({self.message[:160] or 'no message'})"

    @property
    def ours(self) -> bool:
        """It has the ErrorInfo that every error of the contract has."""
        return bool(self.reason) and self.domain == DOMAIN


def refusal(error: grpc.RpcError) -> Refusal:
    """What a server said with an error; of details that can't be read there are none."""
    result = Refusal(error.code(), error.details() or "")  # type: ignore[attr-defined]
    trailing = error.trailing_metadata() or ()  # type: ignore[attr-defined]
    raw = next((value for key, value in trailing if key == STATUS_KEY), None)
    if raw is None:
        return result
    try:
        status = status_pb2.Status.FromString(raw)
        result.detailed = True
        for detail in status.details:
            info, bad, retry = (error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest(),
                                error_details_pb2.RetryInfo())
            if detail.Unpack(info):
                result.reason, result.domain = info.reason, info.domain
            elif detail.Unpack(bad):
                result.violations = {v.field: v.description for v in bad.field_violations}
            elif detail.Unpack(retry):
                result.retry_after = retry.retry_delay.ToNanoseconds() / 1e9
    except Exception:  # bytes of a stranger
        result.detailed = False
    return result
