"""Runs the kit inside a test, against a server in this process or one of its own."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from openclaw_rl.conformance.context import Context
from openclaw_rl.conformance.frame import Check, Outcome, checks_of
from openclaw_rl.conformance.listener import Listener
from openclaw_rl.conformance.process import ServerProcess
from openclaw_rl.conformance.runner import Report, run
from openclaw_rl.conformance.services import SERVICES

from .wrong.judge import Judge


@contextlib.asynccontextmanager
async def in_process(make: type[Judge], tmp_path: Path) -> AsyncIterator[Context]:
    """A kit and a judge in this process."""
    listener = Listener("127.0.0.1:0")
    await listener.start()
    judge, ready = make("127.0.0.1:0", tmp_path, listener.address), asyncio.Event()
    task = asyncio.create_task(judge.run(ready))
    try:
        async with asyncio.timeout(10):
            await ready.wait()
        kit = Context(SERVICES["judge"], judge.address, deadline=3.0, listener=listener)
        try:
            yield kit
        finally:
            await kit.close()
    finally:
        judge.stop_requested.set()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await listener.stop()
        judge.store.db.close()


async def of_process(fault: str, tmp_path: Path, checks: list[Check], port: int) -> Report:
    """The report on a judge in a process of its own, which the kit starts."""
    listener = Listener("127.0.0.1:0")
    await listener.start()
    command = (f"{sys.executable} -m tests.conformance.wrong.judge --fault '{fault}' --address {{address}} "
               "--data {data} --next {listen}")
    process = ServerProcess(command, f"127.0.0.1:{port}", tmp_path / "data", listener.address)
    try:
        await process.start()
        kit = Context(SERVICES["judge"], process.address, deadline=3.0, listener=listener, process=process)
        try:
            return await run(kit, checks)
        finally:
            await kit.close()
    finally:
        await process.stop()
        await listener.stop()


async def report_of(make: type[Judge], tmp_path: Path, checks: list[Check]) -> Report:
    """The report on a judge in this process."""
    async with in_process(make, tmp_path) as kit:
        return await run(kit, checks, drain=True)


def checks(*, without: tuple[str, ...] = ()) -> list[Check]:
    """The judge's, but for some and those that stand on them."""
    left: dict[str, Check] = {}
    for one in checks_of("judge"):
        if one.id not in without and all(id in left for id in one.after):
            left[one.id] = one
    return list(left.values())


def failed(report: Report) -> dict[str, str]:
    """What failed: check -> what was seen."""
    return {one.check.id: one.seen for one in report.results if one.outcome in (Outcome.FAILED, Outcome.ERROR)}

