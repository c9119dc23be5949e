"""Chat over gRPC with asyncio, token by token, with each token's version and log-probability.

    python clients/python/chat_grpc.py [127.0.0.1:50051]
"""

import asyncio
import sys

from openclaw_rl.client import AsyncPolicyServiceClient
from openclaw_rl.v1.turn_pb2 import ChatMessage, SamplingParams


async def main() -> None:
    async with AsyncPolicyServiceClient(sys.argv[1] if len(sys.argv) > 1 else None) as policy:
        request = policy.chat(messages=[ChatMessage(role="user", content="Name three birds.")],
                              sampling=SamplingParams(max_tokens=40))
        async for event in request:
            match event.WhichOneof("event"):
                case "start":
                    print(f"turn {event.start.turn_id}, version {event.start.policy_version}")
                case "delta":
                    print(event.delta.content, end="", flush=True)
                case "end":
                    spans = [(s.version, s.begin, s.end) for s in event.end.generation.spans]
                    print(f"\n{event.end.generation.completion_tokens} tokens, versions {spans}")


asyncio.run(main())
