"""The version of the contract in protos/, and its compatibility with another."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import grpc

from openclaw_rl.rpc.errors import MeshError

if TYPE_CHECKING:
    from openclaw_rl.v1.component_pb2 import ComponentStatus

#: As in protos/VERSION: MAJOR.MINOR; each release that adds something makes MINOR grow (protos/VERSIONING.md).
CONTRACT_VERSION = "1.1"


@dataclass(frozen=True)
class Report:
    """A component that can be used, by its own words."""

    status: ComponentStatus
    contract_version: str  #: that it was built with
    warnings: list[str] = field(default_factory=list)  #: for a person; it can be used in spite of them


def check(status: ComponentStatus, component: str, address: str) -> Report:
    """Look whether this is the right component, and one that understands us.

    Args:
        status: what it says of itself.
        component: its name, one of home.COMPONENTS; "" for any.
        address: HOST:PORT, for the words.

    Raises:
        MeshError: WRONG_COMPONENT, or CONTRACT_MISMATCH: it speaks another MAJOR of the contract.
    """
    if component and status.name != component:
        raise _unusable("WRONG_COMPONENT", f"{status.name or 'a component without a name'} answers at {address}, not "
                        f"{component}: correct the address; `openclaw-rl status` tells all of them",
                        expected=component, found=status.name)
    theirs = status.contract_version or "1.0"
    there, here = _numbers(theirs), _numbers(CONTRACT_VERSION)
    assert here is not None
    if there is None or there[0] != here[0]:
        package = status.package_version or "unknown"
        raise _unusable("CONTRACT_MISMATCH", f"{status.name} at {address} (package {package}) speaks contract "
                        f"{theirs}, this side {CONTRACT_VERSION}: use packages of one MAJOR on both sides",
                        server=theirs, client=CONTRACT_VERSION)
    warnings = [f"{alarm.name}: {alarm.message}" for alarm in status.alarms]
    if there < here:
        warnings.insert(0, f"{status.name} at {address} speaks contract {theirs}, older than this side's "
                           f"{CONTRACT_VERSION}: what was added since is not there")
    return Report(status, theirs, warnings)


def _numbers(version: str) -> tuple[int, int] | None:
    found = re.fullmatch(r"(\d{1,6})\.(\d{1,6})", version)
    return (int(found[1]), int(found[2])) if found else None


def _unusable(reason: str, message: str, **metadata: str) -> MeshError:
    return MeshError(grpc.StatusCode.FAILED_PRECONDITION, reason, message, metadata=metadata)
