"""Stands for `openclaw_rl.launch.component` in the launcher's tests: the real server plumbing without the work.

Files in the home: with NAME.crash that component ends with code 3 at its start, with NAME.refuse it says that it can't
run, and goes on closing what it has; while NAME.mute is there it starts without answering, while NAME.degraded is there
it says that it is.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

if (Path(os.environ["OPENCLAW_RL_HOME"]) / f"{sys.argv[1]}.crash").exists():  # sooner than a start counts as a success
    print("this component was told to crash", file=sys.stderr)
    sys.exit(3)

from openclaw_rl.config import load_config
from openclaw_rl.rpc.component_run import reason
from openclaw_rl.rpc.server import ComponentServer
from openclaw_rl.runtime import notify
from openclaw_rl.runtime.home import Home
from openclaw_rl.runtime.process import end_with_parent
from openclaw_rl.v1 import component_pb2


async def run(name: str, config_file: str) -> None:
    home = Home.default()
    section = getattr(load_config(config_file).components, name)
    port = getattr(section, "grpc_port", section.port)
    server = ComponentServer(name, section.host, port, home, lambda: component_pb2.ComponentStatus(
        state=component_pb2.COMPONENT_STATE_DEGRADED if (home.root / f"{name}.degraded").exists()
        else component_pb2.COMPONENT_STATE_RUNNING, counters={"turns_main": 3, "samples_accepted": 2, "updates": 1},
        dropped={"judge failed": 1}, policy_version=1, gauges={"training": 1, "pending": 4, "qps": 2.5}))
    if name == "policy_server":
        server.http_address = "http://127.0.0.1:1"
    await server.start()
    print("key is", os.environ.get("OPENAI_API_KEY"), "threads", os.environ.get("OMP_NUM_THREADS"), file=sys.stderr)
    await server.run_until_stopped()


if __name__ == "__main__":
    if "--with-parent" in sys.argv:
        end_with_parent(int(sys.argv[5]))
    home = Home.default()
    if (home.root / f"{sys.argv[1]}.refuse").exists():
        notify.failed("the model can't be loaded")
        time.sleep(600)
    while (home.root / f"{sys.argv[1]}.mute").exists():
        time.sleep(0.05)
    try:
        asyncio.run(run(sys.argv[1], sys.argv[3]))
    except OSError as error:
        notify.failed(reason(sys.argv[1], error))
        sys.exit(1)
