"""gRPC's own failures in words that say what to do."""

from __future__ import annotations

from typing import Any

import grpc

from openclaw_rl.rpc.channel import MAX_MESSAGE
from openclaw_rl.rpc.errors import MeshError, from_rpc_error, handshake_failure, unavailable

_Code = grpc.StatusCode


def explained(error: Any, component: str, address: str) -> MeshError:
    """A call's failure. What a component of the mesh says of it stays as it is.

    Args:
        error: gRPC's; with code and details.
        component: whom the call was for, for the words.
        address: HOST:PORT.
    """
    text = error.details() or ""
    if "failed to connect" in text.lower():
        why = handshake_failure(text)
        return unavailable(f"{component} does not answer at {address}{f' ({why})' if why else ''}; "
                           "`openclaw-rl status` tells what runs")
    made = from_rpc_error(error)
    if made.reason != made.code.name or made.violations or made.retry_after is not None:
        return made
    if what := _advice(made.code, text, component, address):
        return MeshError(made.code, made.reason, what, metadata=made.metadata)
    return made


def _advice(code: grpc.StatusCode, text: str, component: str, address: str) -> str:
    if code is _Code.UNIMPLEMENTED and ("Method not found" in text or "unknown service" in text
                                        or "unknown method" in text.lower()):
        return (f"what answers at {address} does not serve this call: it is not {component}, or of an older release; "
                f"`check()` tells which ({text})")
    if code in (_Code.RESOURCE_EXHAUSTED, _Code.OUT_OF_RANGE) and "larger than max" in text:
        return f"a message has at most {MAX_MESSAGE >> 20} MiB: send less at once, or ask for less ({text})"
    if code is _Code.DEADLINE_EXCEEDED:
        return (f"{component} at {address} did not answer in time: give the call a longer `timeout`, or see what it is "
                f"busy with (`openclaw-rl status`) ({text})")
    if code is _Code.UNAVAILABLE and "errors resolving" in text:
        return f"there is no host {address!r}: an address is HOST:PORT ({text})"
    if code is _Code.UNAVAILABLE and "Socket closed" in text:
        return f"the connection to {component} at {address} broke: the same call is worth repeating ({text})"
    return ""
