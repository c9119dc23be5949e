"""The one catalogue of errors: a code, a public message that says what to do, and `google.rpc` details.

Handlers raise a `MeshError`; the server's interceptor sends it as a rich status, and `from_rpc_error` gives the caller
the same `MeshError` back.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from google.rpc import code_pb2, error_details_pb2, status_pb2

from openclaw_rl.runtime import redact

#: `ErrorInfo.domain` of all our errors.
DOMAIN = "openclaw-rl"

#: Trailing metadata that holds a serialized google.rpc.Status.
STATUS_KEY = "grpc-status-details-bin"

_Code = grpc.StatusCode

#: Every reason: its code, and what it means.
CATALOGUE: dict[str, tuple[grpc.StatusCode, str]] = {
    "INVALID_ARGUMENT": (_Code.INVALID_ARGUMENT, "A field has a value that is not allowed; the violations name it."),
    "NOT_FOUND": (_Code.NOT_FOUND, "There is nothing of this id."),
    "UNAVAILABLE": (_Code.UNAVAILABLE, "It can't be done just now; repeat the call a little later."),
    "RESOURCE_EXHAUSTED": (_Code.RESOURCE_EXHAUSTED, "Too much at once; repeat the call a little later."),
    "DISK_FULL": (_Code.RESOURCE_EXHAUSTED, "The disk is full; free some space, the call is then worth repeating."),
    "STORE_UNUSABLE": (_Code.INTERNAL, "The component's file can't be read or written; the message names it."),
    "STORE_NEWER": (_Code.FAILED_PRECONDITION, "A newer release wrote the component's file; it is left as it is."),
    "ANOTHER_TRAINER": (_Code.FAILED_PRECONDITION, "Another trainer updates this policy server; stop one of the two."),
    "UNIMPLEMENTED": (_Code.UNIMPLEMENTED, "The contract has it, this release does not do it yet."),
    "NO_CREDENTIALS": (_Code.UNAUTHENTICATED, "A certificate of the mesh or a bearer key is needed."),
    "UNKNOWN_KEY": (_Code.UNAUTHENTICATED, "The bearer key is not one of this mesh, or no good any more."),
    "FOREIGN_MESH": (_Code.PERMISSION_DENIED, "The certificate is of another mesh, or names no role in this one."),
    "WRONG_MESH": (_Code.FAILED_PRECONDITION, "The other side is of another mesh, or names none where it must."),
    "WRONG_ROLE": (_Code.PERMISSION_DENIED, "The caller's role may not call this; SECURITY.md has the table."),
    "WRONG_SCOPE": (_Code.PERMISSION_DENIED, "The bearer key's scopes don't open this; SECURITY.md has the table."),
    "INTERNAL": (_Code.INTERNAL, "A fault of ours; the log has more under the incident's id."),
    "FAILED_PRECONDITION": (_Code.FAILED_PRECONDITION, "The component is not in the state that the call needs."),
    "VERSION_UNKNOWN": (_Code.FAILED_PRECONDITION, "The policy version is not kept here; `versions` lists those kept."),
    "VERSION_NOT_ACTIVE": (_Code.FAILED_PRECONDITION, "The request pins a version that is not the active one."),
    "FED_BY_RELAY": (_Code.FAILED_PRECONDITION, "The policy server copies another one; the trainer can't feed it."),
    "PINNED": (_Code.FAILED_PRECONDITION, "An operator pinned the active version; unpin it, or pin another one."),
    "NO_WEIGHTS": (_Code.FAILED_PRECONDITION, "The policy is an API: it has no weights and no token ids."),
    "REFUSED_BY_GATE": (_Code.FAILED_PRECONDITION, "The gate refused the version: it is kept and not served."),
    "PAUSED": (_Code.FAILED_PRECONDITION, "Training is paused; resume it first."),
    "NOTHING_TO_TRAIN": (_Code.FAILED_PRECONDITION, "No sample is pending that a step could learn from."),
    "SESSION_ENDED": (_Code.FAILED_PRECONDITION, "The session has ended."),
    "ENVIRONMENT_UNUSABLE": (_Code.FAILED_PRECONDITION, "No sandbox of the environment can be made; it says why."),
    "LEASE_LOST": (_Code.NOT_FOUND, "There is no such lease (any more); acquire another one."),
    "LEASE_ENDED": (_Code.FAILED_PRECONDITION, "The lease was given back or taken back; acquire another one."),
    "SANDBOX_LOST": (_Code.UNAVAILABLE, "The lease's sandbox died; release the lease and acquire another one."),
    "NOT_RESET": (_Code.FAILED_PRECONDITION, "The lease has no task yet: reset it first."),
    "STEP_OUT_OF_ORDER": (_Code.FAILED_PRECONDITION, "The step's number is not the next one; the message tells it."),
    "EPISODE_OVER": (_Code.FAILED_PRECONDITION, "The episode is over: evaluate it, or reset."),
    "CONTEXT_TOO_LONG": (_Code.INVALID_ARGUMENT, "The prompt is longer than the model's context."),
    # Made by a client, of what it sees.
    "CONTRACT_MISMATCH": (_Code.FAILED_PRECONDITION, "The component speaks another MAJOR of the contract."),
    "WRONG_COMPONENT": (_Code.FAILED_PRECONDITION, "Another component answers at the address."),
    "NO_ACK": (_Code.UNAVAILABLE, "The receiver of a ring stream did not acknowledge a message in time."),
    "FOREIGN_ACK": (_Code.INTERNAL, "The receiver of a ring stream acknowledged a message that was never sent."),
    "LEASE_CLOSED": (_Code.FAILED_PRECONDITION, "The lease was given back by this program."),
}
# What comes from gRPC itself, or from a component of another make, has its code's name as the reason.
CATALOGUE.update({code.name: (code, "An error of gRPC.") for code in _Code
                  if code is not _Code.OK and code.name not in CATALOGUE})

_RETRYABLE = {_Code.UNAVAILABLE, _Code.ABORTED}


class MeshError(Exception):
    """An error with everything that a caller needs.

    Attributes:
        code: the gRPC status code.
        reason: key of `CATALOGUE`.
        message: for the public, secrets blotted out; says what is wrong and what to do.
        violations: (field, description) of each bad field.
        retry_after: seconds after which a repeated call makes sense; None when the error does not say.
        metadata: more, by name, for `ErrorInfo.metadata`.
    """

    def __init__(self, code: grpc.StatusCode, reason: str, message: str, *,
                 violations: Iterable[tuple[str, str]] = (), retry_after: float | None = None,
                 metadata: dict[str, str] | None = None) -> None:
        message = redact.text(message)
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.violations = [(field, redact.text(description)) for field, description in violations]
        self.retry_after = retry_after
        self.metadata = metadata or {}

    @property
    def retryable(self) -> bool:
        """The same call may succeed later."""
        return self.retry_after is not None or self.code in _RETRYABLE

    def to_status(self) -> status_pb2.Status:
        """The `google.rpc.Status`, with ErrorInfo and, where they apply, BadRequest and RetryInfo."""
        status = status_pb2.Status(code=self.code.value[0], message=self.message)
        status.details.add().Pack(
            error_details_pb2.ErrorInfo(reason=self.reason, domain=DOMAIN, metadata=self.metadata))
        if self.violations:
            status.details.add().Pack(error_details_pb2.BadRequest(field_violations=[
                error_details_pb2.BadRequest.FieldViolation(field=f, description=d) for f, d in self.violations]))
        if self.retry_after is not None:
            info = error_details_pb2.RetryInfo()
            info.retry_delay.FromNanoseconds(int(self.retry_after * 1e9))
            status.details.add().Pack(info)
        return status

    def trailing_metadata(self) -> tuple[tuple[str, bytes], ...]:
        """What a server sends behind the code and the message."""
        return ((STATUS_KEY, self.to_status().SerializeToString()),)


def invalid(field: str, value: Any, allowed: str) -> MeshError:
    """A field with a value that is not allowed; `allowed` completes "must be ..."."""
    shown = repr(value)
    if len(shown) > 80:
        shown = shown[:77] + "..."
    return invalid_many([(field, f"{shown} is not allowed: must be {allowed}")])


def invalid_many(violations: Iterable[tuple[str, str]]) -> MeshError:
    """Several bad fields: (field, what is wrong with it)."""
    violations = list(violations)
    return MeshError(_Code.INVALID_ARGUMENT, "INVALID_ARGUMENT", "; ".join(f"{f}: {text}" for f, text in violations),
                     violations=violations)


def not_found(what: str, id: str, hint: str = "") -> MeshError:
    """There is no `what` of this id, of which 80 characters are shown."""
    id = id if len(id) <= 80 else id[:77] + "..."
    return MeshError(_Code.NOT_FOUND, "NOT_FOUND", f"there is no {what} {id!r}" + (f"; {hint}" if hint else ""),
                     metadata={"id": id})


def unavailable(message: str, retry_after: float = 1.0) -> MeshError:
    """It can't be done now; `retry_after` in seconds."""
    return MeshError(_Code.UNAVAILABLE, "UNAVAILABLE", message, retry_after=retry_after)


def exhausted(message: str, retry_after: float = 1.0) -> MeshError:
    """Too much at once; `retry_after` in seconds."""
    return MeshError(_Code.RESOURCE_EXHAUSTED, "RESOURCE_EXHAUSTED", message, retry_after=retry_after)


def failed_precondition(reason: str, message: str) -> MeshError:
    """The component is not in the state that the call needs; `reason` is a key of `CATALOGUE`."""
    return MeshError(_Code.FAILED_PRECONDITION, reason, message)


def unimplemented(what: str) -> MeshError:
    """Part of the contract that this release does not do yet."""
    return MeshError(_Code.UNIMPLEMENTED, "UNIMPLEMENTED", f"{what} comes in a later release")


def internal(incident_id: str) -> MeshError:
    """A fault of ours, logged under the id."""
    return MeshError(_Code.INTERNAL, "INTERNAL",
                     f"internal error; the component's log has more under incident {incident_id}",
                     metadata={"incident": incident_id})


#: What gRPC says when no connection comes about, and what that means.
_HANDSHAKES = {
    "Failed parsing HTTP/2": "it speaks HTTP/1, not gRPC: take the component's gRPC port, not that of its HTTP door",
    "Connection refused": "nothing listens there",
    "WRONG_VERSION_NUMBER": "it speaks plain text, and this side TLS: `security.tls` must be the same on both sides",
    "CERTIFICATE_VERIFY_FAILED": "its certificate is not of this mesh's CA, or out of date, or a clock is wrong: "
                                 "compare `openclaw-rl certs show` on both sides",
    "Hostname Verification Check failed": "its certificate is that of another component or host than was expected "
                                          "there: check the configured address",
    "Socket closed": "it closed the connection at once. If it uses TLS, this side has no certificate or one that it "
                     "does not take: compare `openclaw-rl certs show` on both sides",
}


def handshake_failure(details: str) -> str:
    """Why no connection came about, for a person; "" when that is something else, or not known.

    Args:
        details: of gRPC's error.
    """
    if "failed to connect" not in details:
        return ""
    return next((text for mark, text in _HANDSHAKES.items() if mark in details), "")


def from_rpc_error(error: grpc.RpcError) -> MeshError:
    """The `MeshError` that the server raised, or one made from code and text for a server of another make."""
    code = error.code() if callable(getattr(error, "code", None)) else None
    code = code or _Code.UNKNOWN
    text = (error.details() if callable(getattr(error, "details", None)) else None) or code.name
    result = MeshError(code, code.name, text + (f" ({why})" if (why := handshake_failure(text)) else ""))
    trailing = error.trailing_metadata() if callable(getattr(error, "trailing_metadata", None)) else None
    raw = next((value for key, value in trailing or () if key == STATUS_KEY), None)
    if raw is None:
        return result
    try:
        status = status_pb2.Status.FromString(raw)
    except DecodeError:
        return result
    if status.code == code_pb2.OK:
        return result
    for detail in status.details:
        info = error_details_pb2.ErrorInfo()
        bad = error_details_pb2.BadRequest()
        retry = error_details_pb2.RetryInfo()
        if detail.Unpack(info):
            result.reason, result.metadata = info.reason or result.reason, dict(info.metadata)
        elif detail.Unpack(bad):
            result.violations = [(v.field, v.description) for v in bad.field_violations]
        elif detail.Unpack(retry):
            result.retry_after = retry.retry_delay.ToNanoseconds() / 1e9
    return result
