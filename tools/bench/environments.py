#!/usr/bin/env python3
"""What a lease costs, and how many environments are up at once.

    .venv/bin/python tools/bench/environments.py [--leases 100] [--terminals 128] [--screens 64] [--json]

An environment server of its own, in a process and folder of its own, is asked over gRPC as any client asks it.
`warm_lease`: from Acquire to its answer while one is ready (goal: p50 of at most 20 ms), against starting one by hand
in the same run: a shell in bubblewrap (`bwrap_by_hand`), and in a container where an engine and an image are
(`container_by_hand`), each until its first output. `up`: all terminals and all screens leased at once and reset, memory
(PSS: what they share counts once) with what the server itself takes left out, an action in each at the same time, then
given back until no process of theirs is left.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import yaml
from google.protobuf.duration_pb2 import Duration

from openclaw_rl.client.environment import AsyncEnvironmentServiceClient
from openclaw_rl.rollouts.sandboxes.interface import WORK
from openclaw_rl.runtime.home import Home, read_record

GOAL_MS = 20.0
_SHELL = ["sh", "-c", "echo up; cat"]
_ACTIONS = {"terminal": {"name": "run", "arguments": {"command": "echo $((6 * 7))"}},
            "gui": {"name": "screenshot", "arguments": {}}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--leases", type=int, default=100)
    parser.add_argument("--terminals", type=int, default=128)
    parser.add_argument("--screens", type=int, default=64)
    parser.add_argument("--image", help="of the container by hand; default: the first one that the engine has")
    parser.add_argument("--json", action="store_true", help="one JSON line")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = asyncio.run(measure(options, Home(Path(folder)).create()))
    print(json.dumps(result) if options.json else yaml.safe_dump(result, sort_keys=False))
    warm = result["warm_lease"]["p50_ms"]
    sys.exit(0 if warm <= GOAL_MS and not result.get("left_over", 0) else 1)


async def measure(options: argparse.Namespace, home: Home) -> dict[str, Any]:
    environments = {"terminal": {"count": max(options.terminals, 8), "warm": 8}}
    if options.screens:
        environments["gui"] = {"count": options.screens, "warm": 0}
    config = home.root / "config.yaml"
    config.write_text(yaml.safe_dump({"components": {"env_server": {"port": 0, "environments": environments}},
                                      "security": {"tls": "off"}}))
    server = _start(home, config)
    process = psutil.Process(server.pid)
    try:
        async with AsyncEnvironmentServiceClient(home=home) as client:
            result: dict[str, Any] = {"warm_lease": await warm_leases(client, options.leases),
                      "bwrap_by_hand": by_hand(_bwrap(), options.leases)}
            if command := _container(options.image):
                result["container_by_hand"] = by_hand(command, 10)
            up: dict[str, Any] = {}
            for type, number in (("terminal", options.terminals), ("gui", options.screens)):
                if number:
                    up[type] = await all_up(client, process, type, number)
            leases = (await client.list_leases()).leases
            result["up"] = up | {"at_once": len(leases)}
            children = process.children(recursive=True)
            began = time.perf_counter()
            await asyncio.gather(*(client.release(lease_id=lease.lease_id, timeout=300) for lease in leases))
            await asyncio.to_thread(_wait, children, 120)
            result["up"]["gone_seconds"] = round(time.perf_counter() - began, 2)
        children += process.children(recursive=True)
        server.send_signal(signal.SIGTERM)
        server.wait(120)
        result["left_over"] = _wait(children, 10)
        return result
    finally:
        server.kill()
        server.wait()


def _start(home: Home, config: Path) -> subprocess.Popen[bytes]:
    """An environment server that answers."""
    log = home.logs / "env_server.log"
    server = subprocess.Popen([sys.executable, "-m", "openclaw_rl.launch.component", "env_server", "--config", config],
                              env=os.environ | {"OPENCLAW_RL_HOME": str(home.root)}, stdout=log.open("wb"),
                              stderr=subprocess.STDOUT)
    while read_record(home, "env_server") is None:
        if server.poll() is not None:
            sys.exit(log.read_text())
        time.sleep(0.05)
    return server


async def _infos(client: AsyncEnvironmentServiceClient) -> list[Any]:
    return list((await client.list_environments(timeout=120)).environments)


async def warm_leases(client: AsyncEnvironmentServiceClient, number: int) -> dict[str, float]:
    """Milliseconds from Acquire to its answer while an environment is ready."""
    times = []
    for one in range(number):
        while not next(info for info in await _infos(client) if info.type == "terminal").warm:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        began = time.perf_counter()
        await client.acquire(lease_id=f"warm-{one}", type="terminal")
        times.append((time.perf_counter() - began) * 1000)
        await client.release(lease_id=f"warm-{one}")
    return _figures(times)


def by_hand(command: list[str], number: int) -> dict[str, float]:
    """Milliseconds from the start of a shell's process to its first output."""
    times = []
    for _ in range(number):
        began = time.perf_counter()
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as shell:
            assert shell.stdout is not None and shell.stdin is not None and shell.stderr is not None
            if shell.stdout.readline() != b"up\n":
                sys.exit(f"{command[0]} does not start: {shell.stderr.read().decode()}")
            times.append((time.perf_counter() - began) * 1000)
            shell.stdin.close()
    return _figures(times)


async def all_up(client: AsyncEnvironmentServiceClient, server: psutil.Process, type: str,
                 number: int) -> dict[str, Any]:
    """All environments of a type at once: seconds and memory, and an action in each."""
    before, pss = time.perf_counter(), 0 if type == "terminal" else _pss(server)  # the warm ones are some of them
    wait = Duration(seconds=600)
    ids = [f"{type}-{one}" for one in range(number)]
    await asyncio.gather(*(client.acquire(lease_id=id, type=type, wait=wait, ttl=Duration(seconds=3600), timeout=600)
                           for id in ids))
    leased = time.perf_counter()
    await asyncio.gather(*(client.reset(lease_id=id, timeout=600) for id in ids))
    reset = time.perf_counter()
    answers = await asyncio.gather(*(client.step(lease_id=id, step=1, action_json=json.dumps(_ACTIONS[type]),
                                                 timeout=600) for id in ids))
    acted = time.perf_counter()
    good = sum("42" in answer.observation.json if type == "terminal" else answer.observation.image_png[:4] == b"\x89PNG"
               for answer in answers)
    return {"number": number, "leased_seconds": round(leased - before, 2), "reset_seconds": round(reset - leased, 2),
            "action_in_each_seconds": round(acted - reset, 2), "good_answers": good,
            "memory_mib_each": round((_pss(server) - pss) / number / 2**20, 2)}


def _figures(times: list[float]) -> dict[str, float]:
    return {"p50_ms": round(statistics.median(times), 2), "p95_ms": round(sorted(times)[int(len(times) * 0.95)], 2)}


def _wait(processes: list[psutil.Process], seconds: float) -> int:
    """Wait until all are gone; a zombie is. How many are not."""
    until = time.perf_counter() + seconds
    while (left := sum(map(_lives, processes))) and time.perf_counter() < until:
        time.sleep(0.01)
    return left


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _pss(process: psutil.Process) -> int:
    """Bytes of all its descendants."""
    total = 0
    for child in process.children(recursive=True):
        try:
            total += child.memory_full_info().pss
        except psutil.Error:
            pass
    return total


def _bwrap() -> list[str]:
    links = [part for name in ("bin", "lib", "lib64", "sbin") if Path(f"/{name}").is_symlink()
             for part in ("--symlink", os.readlink(f"/{name}"), f"/{name}")]
    return ["bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--ro-bind", "/usr", "/usr", *links,
            "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", WORK, "--chdir", WORK, "--clearenv",
            "--setenv", "PATH", "/usr/bin:/bin", *_SHELL]


def _container(image: str | None) -> list[str]:
    """A shell in a container; empty without an engine or an image."""
    program = shutil.which("docker") or shutil.which("podman")
    if program is None:
        return []
    listed = subprocess.run([program, "images", "--format", "{{.Repository}}:{{.Tag}}"], capture_output=True, text=True,
                            check=False)
    image = image or next(iter(listed.stdout.split()), None)
    if listed.returncode or image is None:
        return []
    return [program, "run", "--rm", "-i", "--network", "none", image, *_SHELL]


if __name__ == "__main__":
    main()
