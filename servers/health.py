"""Is the component of this container well? `python health.py NAME CONFIG [--alive]`

Asks the component's grpc.health.v1.Health, by mutual TLS as the component itself where the mesh has it (a probe of the
container engine's own knows no client certificate). Exit code 0: it serves; with --alive: it answers at all.
"""

from __future__ import annotations

import argparse
import sys

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from openclaw_rl.config import load_config
from openclaw_rl.rpc.auth import tls
from openclaw_rl.rpc.channel import sync_connect
from openclaw_rl.runtime.home import COMPONENTS, Home, read_record

#: Seconds for the answer.
_PATIENCE = 4.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=COMPONENTS)
    parser.add_argument("config", help="the file that the component was started with")
    parser.add_argument("--alive", action="store_true")
    args = parser.parse_args()
    home = Home.default()
    record = read_record(home, args.name)
    if record is None:
        print(f"{args.name} has not come up yet", file=sys.stderr)
        return 1
    credentials = tls.credentials(load_config(args.config), home, args.name)
    try:
        with sync_connect(record.address, credentials=credentials) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            answer = health.Check(health_pb2.HealthCheckRequest(), timeout=_PATIENCE)
    except grpc.RpcError as error:
        print(f"{args.name} at {record.address}: {error}", file=sys.stderr)
        return 1
    if args.alive or answer.status == health_pb2.HealthCheckResponse.SERVING:
        return 0
    print(f"{args.name} is {health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
