"""OpenAI's API inside a web application of your own, and the policy server in its process:
`python servers/embedding/door_in_your_app.py`, then POST /assistant/v1/chat/completions.

FastAPI here; `mount` and `lifespan` are the same in Starlette.
"""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import uvicorn
from fastapi import FastAPI

from openclaw_rl.api import embed

policy = embed.Embedded("policy_server")


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    # New weights come in, and the mesh looks in, by gRPC.
    server = grpc.aio.server(options=embed.GRPC_OPTIONS)
    await policy.add_to(server)
    credentials = policy.server_credentials()
    port = (server.add_secure_port("127.0.0.1:0", credentials) if credentials
            else server.add_insecure_port("127.0.0.1:0"))
    await server.start()
    policy.listening(f"127.0.0.1:{port}")
    yield
    await policy.stop()
    await server.stop(5)


app = FastAPI(lifespan=lifespan)
app.mount("/assistant", policy.app)


@app.get("/hello")
def hello() -> dict[str, str]:
    return {"hello": "from your own route"}


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]) if len(sys.argv) > 1 else 8000)
