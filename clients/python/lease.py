"""A sandbox from acquire to release, with asyncio: do a task by hand, and let it be checked.

    python clients/python/lease.py [127.0.0.1:50052]
"""

import asyncio
import json
import sys

from openclaw_rl.client import AsyncEnvironmentServiceClient


async def main() -> None:
    address = sys.argv[1] if len(sys.argv) > 1 else None
    async with (AsyncEnvironmentServiceClient(address) as env,
                env.lease("tool_call", wait=10, holder="an example") as lease):  # renewed while it is used
        opening = await lease.reset("weather-city", seed=1)
        print(opening.goal)
        print("actions:", ", ".join(tool.name for tool in opening.tools))
        city = opening.goal.removeprefix("What is the weather in ").rstrip("?")
        step = await lease.step("get_weather", {"city": city})
        print(json.loads(step.observation.json)["text"], step.error)
        outcome = await lease.evaluate()
        print(f"outcome {outcome.outcome:g} {outcome.detail}")
    # here it is given back, whatever happened


asyncio.run(main())
