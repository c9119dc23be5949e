"""Chat through the OpenAI SDK, which works unchanged.

    python clients/python/chat_openai.py [http://127.0.0.1:30000/v1]
"""

import sys

from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam

client = OpenAI(base_url=sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:30000/v1", api_key="none")
model = client.models.list().data[0].id
messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is a heron?"}]

answer = ""
for chunk in client.chat.completions.create(model=model, messages=messages, stream=True, max_tokens=60):
    piece = chunk.choices[0].delta.content if chunk.choices else None
    if piece:
        answer += piece
        print(piece, end="", flush=True)
print()

# What comes next is what the answer is judged by. The session is found by the messages; X-Session-Id would name it.
messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": "Shorter, please: one sentence."}]
response = client.chat.completions.with_raw_response.create(model=model, messages=messages, max_tokens=60)
print(response.parse().choices[0].message.content)
print("turn", response.headers["x-openclaw-turn-id"], "version", response.headers["x-openclaw-policy-version"])
