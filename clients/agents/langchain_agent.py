"""A LangChain agent whose model is the mesh: only the base URL and a header are new.

    python clients/agents/langchain_agent.py [http://127.0.0.1:30000/v1]
"""

import sys

import openai
from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

BASE_URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:30000/v1"


@tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"It is sunny in {city}."


name = openai.OpenAI(base_url=BASE_URL, api_key="none").models.list().data[0].id
# The header names the conversation, so that all of its turns are one session whatever the agent drops from it.
model = ChatOpenAI(base_url=BASE_URL, api_key="none", model=name, max_tokens=60, temperature=0,
                   default_headers={"X-Session-Id": "langchain"})

# One call of the function, made by hand: `tool_choice` makes a small model call it; a larger one decides by itself.
call = model.bind_tools([weather], tool_choice="weather").invoke("What is the weather in Paris?")
print(call.tool_calls)

# The agent calls functions until it has an answer.
agent = create_agent(model, [weather], system_prompt="Answer in one short sentence.")
state = agent.invoke({"messages": [{"role": "user", "content": "What is the weather in Paris?"}]},
                     {"recursion_limit": 8})
print(state["messages"][-1].content)
for chunk in model.stream([*state["messages"], ("user", "Thanks, that is right!")]):
    print(chunk.content, end="", flush=True)
print()
