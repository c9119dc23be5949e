"""A component's server in a process of its own, which hostile clients are let loose on: `victim.py CERTS HOME [plain]`.

Prints its address.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from openclaw_rl.launch.component import configure_logging
from openclaw_rl.rpc.auth.tls import Credentials
from openclaw_rl.rpc.server import ComponentServer
from openclaw_rl.runtime.home import Home
from openclaw_rl.runtime.runtime import Ambient, activated
from openclaw_rl.v1 import component_pb2 as pb
from openclaw_rl.v1 import judge_pb2, judge_pb2_grpc


class Judge(judge_pb2_grpc.JudgeServiceServicer):
    async def Judge(self, request: Any, context: Any) -> Any:
        return judge_pb2.JudgeResponse()

    async def JudgeTransitions(self, request_iterator: Any, context: Any) -> Any:
        async for _ in request_iterator:
            yield judge_pb2.JudgeTransitionsResponse()


async def main(certs: Path, home: Path, plain: bool) -> None:
    credentials = None if plain else Credentials(certs, "prm_judge")
    with activated(Ambient(credentials=credentials, identified=True)):
        await serve(home)


async def serve(home: Path) -> None:
    server = ComponentServer("prm_judge", "127.0.0.1", 0, Home(home).create(),
                             lambda: pb.ComponentStatus(state=pb.COMPONENT_STATE_RUNNING))
    server.add(judge_pb2_grpc.add_JudgeServiceServicer_to_server, Judge(), "openclaw_rl.v1.JudgeService")
    print(await server.start(), flush=True)
    await server.run_until_stopped()


if __name__ == "__main__":
    configure_logging("INFO")
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2]), "plain" in sys.argv))
