"""A whole mesh in one program: `python servers/embedding/mesh_in_one_program.py "What is a heron?" "No, shorter."`.

Each argument is a message of the user. It prints the answers and their judgements, and ends. The model is the
configured one (`~/.openclaw-rl/config.yaml`), by default the small one that comes with the package.
"""

import asyncio
import sys

import httpx

from openclaw_rl.api.in_process import InProcessMesh
from openclaw_rl.client import AsyncJudgeServiceClient


async def main(*texts: str) -> None:
    async with InProcessMesh(any_ports=True) as mesh:
        print("components:", ", ".join(f"{name} {mesh.record(name).address}" for name in mesh.names), flush=True)
        async with httpx.AsyncClient(base_url=mesh.http_address, timeout=120, trust_env=False) as http, \
                AsyncJudgeServiceClient(home=mesh.home) as judge:
            messages, turns = [], []
            for text in texts:
                messages.append({"role": "user", "content": text})
                answer = await http.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 24},
                                         headers={"X-Session-Id": "example"})
                turns.append(answer.headers["x-openclaw-turn-id"])
                messages.append(answer.raise_for_status().json()["choices"][0]["message"])
                print(f"> {text}\n{messages[-1]['content']}", flush=True)
            # Each message judges the answer before it; the last answer has no judgement yet.
            async with asyncio.timeout(60):
                while len(judged := (await judge.list_judgements(turn_ids=turns)).judgements) + 1 < len(texts):  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            print("judged:", " ".join(f"{judgement.score:+d}" for judgement in judged), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*(sys.argv[1:] or ["What is a heron?", "That is wrong. A heron is a bird."])))
