"""Call any service of the mesh from Python, blocking or with asyncio.

    with PolicyServiceClient() as policy:                    # the running one of this machine's mesh
        policy.check()                                       # the right component, of a contract that we understand?
        answer = policy.ask("What is a heron?", session_id="birds")
        for text in answer:
            print(text, end="")
        policy.feedback(answer.turn_id, score=1)

    async with AsyncEnvironmentServiceClient("10.0.0.1:50052") as env:
        async with env.lease("tool_call") as lease: ...      # renewed while it is used, given back at the end

Each RPC of the contract is a method of its client (`base.py`); the others put several calls together. Failures are
MeshError. Importing this package loads gRPC and the contract, nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..mesh.contract import CONTRACT_VERSION, Report
from ..mesh.errors import MeshError
from .chat import AsyncChatAnswer, ChatAnswer
from .component import AsyncComponentServiceClient, ComponentServiceClient
from .environment import AsyncEnvironmentServiceClient, EnvironmentServiceClient
from .judge import AsyncJudgeServiceClient, JudgeServiceClient
from .lease import AsyncLease, Lease
from .live import AsyncLiveSession, LiveSession
from .policy import AsyncPolicyServiceClient, PolicyServiceClient
from .trainer import AsyncTrainerServiceClient, TrainerServiceClient

if TYPE_CHECKING:
    from ..mesh.tls import Credentials, OutsideCredentials
    from .ring import AsyncDelivery, Delivery

#: Loaded on first use: TLS needs `cryptography`, the ring's sender more of this package.
_LATER = {"Credentials": "..mesh.tls", "OutsideCredentials": "..mesh.tls", "AsyncDelivery": ".ring",
          "Delivery": ".ring"}

__all__ = [
    "CONTRACT_VERSION",
    "AsyncChatAnswer",
    "AsyncComponentServiceClient",
    "AsyncDelivery",
    "AsyncEnvironmentServiceClient",
    "AsyncJudgeServiceClient",
    "AsyncLease",
    "AsyncLiveSession",
    "AsyncPolicyServiceClient",
    "AsyncTrainerServiceClient",
    "ChatAnswer",
    "ComponentServiceClient",
    "Credentials",
    "Delivery",
    "EnvironmentServiceClient",
    "JudgeServiceClient",
    "Lease",
    "LiveSession",
    "MeshError",
    "OutsideCredentials",
    "PolicyServiceClient",
    "Report",
    "TrainerServiceClient",
]


def __getattr__(name: str) -> Any:
    if name in _LATER:
        import importlib

        return getattr(importlib.import_module(_LATER[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
