"""An agent of the OpenAI Agents SDK whose model is the mesh: only the base URL and a header are new.

    python clients/agents/openai_agents.py [http://127.0.0.1:30000/v1]
"""

import asyncio
import sys

from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI

BASE_URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:30000/v1"
set_tracing_disabled(True)  # the SDK's own traces go to OpenAI; the mesh has its own: `openclaw-rl trace --session ...`


@function_tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"It is sunny in {city}."


async def main() -> None:
    # The header names the conversation, so that all of its turns are one session whatever the agent drops from it.
    client = AsyncOpenAI(base_url=BASE_URL, api_key="none", default_headers={"X-Session-Id": "agents-sdk"})
    model = OpenAIChatCompletionsModel(model=(await client.models.list()).data[0].id, openai_client=client)
    # `tool_choice` makes a small model call the function; a larger one decides by itself.
    agent = Agent(name="assistant", instructions="Answer in one short sentence.", model=model, tools=[weather],
                  model_settings=ModelSettings(tool_choice="weather", max_tokens=60, temperature=0))
    result = await Runner.run(agent, "What is the weather in Paris?", max_turns=4)
    print(result.final_output)
    conversation = [*result.to_input_list(), {"role": "user", "content": "Thanks, that is right!"}]
    streamed = Runner.run_streamed(agent, conversation, max_turns=4)
    async for event in streamed.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            print(event.data.delta, end="", flush=True)
    print()


asyncio.run(main())
