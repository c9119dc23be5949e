"""Child processes and their end."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time

import psutil
import pytest

from openclaw_rl.runtime.process import all_processes, end_all, end_group

#: Starts a child in its group, says so, and ignores the signals that are named.
LEADER = """
import signal, subprocess, sys, time
for name in sys.argv[1:]:
    signal.signal(getattr(signal, name), signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""


async def start(*ignored: str) -> tuple[asyncio.subprocess.Process, int]:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", LEADER, *ignored, start_new_session=True,
                                                   stdout=subprocess.PIPE)
    assert process.stdout is not None
    return process, int(await process.stdout.readline())


async def gone(pid: int) -> bool:
    async with asyncio.timeout(10):
        while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return True


@pytest.mark.parametrize("leader_only", [False, True])
async def test_nothing_of_a_group_is_left(leader_only: bool) -> None:
    process, child = await start()
    # What the leader leaves is killed when the time is over.
    await end_group(process, 2 if leader_only else 10, leader_only=leader_only)
    assert process.returncode == -signal.SIGTERM and await gone(child)
    await end_group(process, 10)  # again: nothing happens


async def test_one_that_does_not_listen_is_killed() -> None:
    process, child = await start("SIGTERM")
    began = time.monotonic()
    await end_group(process, 0.2)
    assert process.returncode == -signal.SIGKILL and await gone(child)
    assert time.monotonic() - began < 10


def test_processes_of_others_are_ended_too() -> None:
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"
    children = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
                for code in (deaf, "print(flush=True); import time; time.sleep(600)")]
    for child in children:
        assert child.stdout is not None
        child.stdout.readline()
    began = time.monotonic()
    end_all([psutil.Process(child.pid) for child in children], 0.3)
    assert time.monotonic() - began < 10 and not any(psutil.pid_exists(child.pid) for child in children)
    for child in children:
        child.stdout.close()  # type: ignore[union-attr]
        child.wait(5)


def test_a_process_whose_pid_was_anothers_is_not_skipped() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        list(psutil.process_iter())
        psutil._pids_reused.add(child.pid)  # as psutil notes when it finds the pid in use again
        assert child.pid in {process.pid for process in all_processes()}
        child.kill()
