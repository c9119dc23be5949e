from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from openclaw_rl.rollouts.environments.mcp.pipe import PlainProcess
from openclaw_rl.rollouts.sandboxes import host_processes

ENVIRONMENT = {"PATH": os.environ["PATH"]}


async def gone(pid: int) -> bool:
    try:
        await asyncio.to_thread(psutil.Process(pid).wait, 10)
    except psutil.NoSuchProcess:
        pass
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("command", ["sleep 600 >&- 2>&- & echo $!; exit 0", "setsid sleep 600 & echo $!; sleep 600"])
async def test_children_end_with_it_whether_it_has_ended_itself_or_not(command: str) -> None:
    process = await PlainProcess.start(["sh", "-c", command], ENVIRONMENT, "pipe")
    child = int(await process.read())
    if "exit" in command:
        await process._process.wait()
    await process.kill()
    assert await gone(child)


async def test_one_whose_starter_was_killed_is_found() -> None:
    label = f"pipe{os.getpid()}"
    program = ("import asyncio, os, sys\n"
               "from openclaw_rl.rollouts.environments.mcp.pipe import PlainProcess\n"
               "async def main():\n"
               f"    process = await PlainProcess.start(['sleep', '600'], dict(os.environ), '{label}')\n"
               "    print(process._process.pid, flush=True)\n    await asyncio.sleep(600)\nasyncio.run(main())\n")
    starter = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE,  # noqa: ASYNC220
                               cwd=Path(__file__).parents[3])
    assert starter.stdout is not None
    child = int(await asyncio.to_thread(starter.stdout.readline))
    assert await asyncio.to_thread(host_processes.remove_leftovers, label) == 0
    assert psutil.pid_exists(child)
    starter.kill()
    starter.wait()
    assert await asyncio.to_thread(host_processes.remove_leftovers, label) == 1
    assert await gone(child)
