"""Call any service of the mesh from Python, blocking or with asyncio.

    with JudgeServiceClient() as judge:                      # the running one of this machine's mesh
        judgement = judge.judge(transition=transition).judgement

    async with AsyncPolicyServiceClient("10.0.0.1:50051") as policy:
        async for piece in policy.chat(messages=[ChatMessage(role="user", content="Hello")]):
            print(piece.delta.content, end="")

Failures are openclaw_rl.mesh.errors.MeshError.
"""

from .component import AsyncComponentServiceClient, ComponentServiceClient
from .environment import AsyncEnvironmentServiceClient, EnvironmentServiceClient
from .judge import AsyncJudgeServiceClient, JudgeServiceClient
from .policy import AsyncPolicyServiceClient, PolicyServiceClient
from .trainer import AsyncTrainerServiceClient, TrainerServiceClient

__all__ = [
    "AsyncComponentServiceClient",
    "AsyncEnvironmentServiceClient",
    "AsyncJudgeServiceClient",
    "AsyncPolicyServiceClient",
    "AsyncTrainerServiceClient",
    "ComponentServiceClient",
    "EnvironmentServiceClient",
    "JudgeServiceClient",
    "PolicyServiceClient",
    "TrainerServiceClient",
]
