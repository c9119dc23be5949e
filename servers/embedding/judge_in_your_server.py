"""The judge beside a service of your own, in one gRPC server: `python servers/embedding/judge_in_your_server.py`."""

import asyncio
import signal
import sys

import grpc
from google.protobuf.timestamp_pb2 import Timestamp
from grpc_health.v1 import health

from openclaw_rl.api import embed
from openclaw_rl.runtime.home import Home


class Clock(grpc.GenericRpcHandler):
    """Your service: example.Clock/Now."""

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        if details.method != "/example.Clock/Now":
            return None
        return grpc.unary_unary_rpc_method_handler(self.now, response_serializer=Timestamp.SerializeToString)

    async def now(self, request: bytes, context: grpc.aio.ServicerContext) -> Timestamp:
        time = Timestamp()
        time.GetCurrentTime()
        return time


async def main(address: str) -> None:
    server = grpc.aio.server(options=embed.GRPC_OPTIONS)
    server.add_generic_rpc_handlers([Clock()])

    judge = embed.Embedded("prm_judge", home=Home.default())
    await judge.add_to(server)
    embed.add_reflection((*judge.service_names, health.SERVICE_NAME), server)  # v1 and v1alpha, with comments

    credentials = judge.server_credentials()  # None while the mesh is plain text, on one machine
    port = (server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address))
    await server.start()
    judge.listening(f"{address.rpartition(':')[0]}:{port}")
    print(f"example.Clock and the judge serve on port {port}", flush=True)

    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await asyncio.wait((asyncio.create_task(stop.wait()), asyncio.create_task(judge.wait())),
                       return_when=asyncio.FIRST_COMPLETED)
    await judge.stop()
    await server.stop(5)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:50053"))
