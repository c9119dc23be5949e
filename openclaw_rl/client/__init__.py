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

from openclaw_rl.client.chat import AsyncChatAnswer, ChatAnswer
from openclaw_rl.client.component import AsyncComponentServiceClient, ComponentServiceClient
from openclaw_rl.client.environment import AsyncEnvironmentServiceClient, EnvironmentServiceClient
from openclaw_rl.client.judge import AsyncJudgeServiceClient, JudgeServiceClient
from openclaw_rl.client.lease import AsyncLease, Lease
from openclaw_rl.client.live import AsyncLiveSession, LiveSession
from openclaw_rl.client.policy import AsyncPolicyServiceClient, PolicyServiceClient
from openclaw_rl.client.trainer import AsyncTrainerServiceClient, TrainerServiceClient
from openclaw_rl.rpc.contract import CONTRACT_VERSION, Report
from openclaw_rl.rpc.errors import MeshError

if TYPE_CHECKING:
    from openclaw_rl.client.ring import AsyncDelivery, Delivery
    from openclaw_rl.rpc.auth.tls import Credentials, OutsideCredentials

#: Loaded on first use: TLS needs `cryptography`, the ring's sender more of this package.
_LATER = {
    "Credentials": "openclaw_rl.rpc.auth.tls",
    "OutsideCredentials": "openclaw_rl.rpc.auth.tls",
    "AsyncDelivery": "openclaw_rl.client.ring",
    "Delivery": "openclaw_rl.client.ring",
}

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

        return getattr(importlib.import_module(_LATER[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
