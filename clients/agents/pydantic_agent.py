"""A Pydantic AI agent whose model is the mesh: only the base URL and a header are new.

    python clients/agents/pydantic_agent.py [http://127.0.0.1:30000/v1]
"""

import asyncio
import sys

from openai import AsyncOpenAI
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.usage import UsageLimits

BASE_URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:30000/v1"


async def main() -> None:
    # The header names the conversation, so that all of its turns are one session whatever the agent drops from it.
    client = AsyncOpenAI(base_url=BASE_URL, api_key="none", default_headers={"X-Session-Id": "pydantic-ai"})
    name = (await client.models.list()).data[0].id
    agent = Agent(OpenAIChatModel(name, provider=OpenAIProvider(openai_client=client)),
                  system_prompt="Answer in one short sentence.", model_settings={"max_tokens": 60, "temperature": 0})

    @agent.tool_plain
    def weather(city: str) -> str:
        """The weather in a city."""
        return f"It is sunny in {city}."

    limits = UsageLimits(request_limit=6)
    result = await agent.run("What is the weather in Paris?", usage_limits=limits)
    print(result.output)
    async with agent.run_stream("Thanks, that is right!", message_history=result.all_messages(),
                                usage_limits=limits) as streamed:
        async for piece in streamed.stream_text(delta=True):
            print(piece, end="", flush=True)
    print()


asyncio.run(main())
