"""Runs the kit inside a test, against a judge in this process or one of its own."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from openclaw_rl.conformance.context import Context
from openclaw_rl.conformance.frame import Check, Failed, Outcome, checks_of
from openclaw_rl.conformance.listener import Listener
from openclaw_rl.conformance.process import ServerProcess
from openclaw_rl.conformance.runner import Report, chosen, run
from openclaw_rl.conformance.services import SERVICES
from openclaw_rl.rpc.auth import tls
from tests.conformance.wrong.judge import Judge
from tests.support.ports import free_port

#: Seconds for a call to a server of the tests.
DEADLINE = 3.0


@contextlib.asynccontextmanager
async def in_process(make: type[Judge], folder: Path, certs: Path | None = None) -> AsyncIterator[Context]:
    """A kit and a judge in this process.

    Args:
        certs: speak TLS, with this folder's certificates.
    """
    listener = Listener("127.0.0.1:0")
    await listener.start()
    judge, ready = make("127.0.0.1:0", folder, listener.address), asyncio.Event()
    judge.certs = certs
    task = asyncio.create_task(judge.run(ready))
    try:
        async with asyncio.timeout(10):
            await ready.wait()
        kit = Context(SERVICES["judge"], judge.address, deadline=DEADLINE, listener=listener,
                      credentials=tls.Credentials(certs, "operator") if certs else None,
                      certs=str(certs) if certs else None)
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


async def report_of(make: type[Judge], folder: Path, checks: Sequence[Check], certs: Path | None = None) -> Report:
    """The report on a judge in this process."""
    async with in_process(make, folder, certs) as kit:
        return await run(kit, checks, drain=True)


async def of_process(service: str, command: str, folder: Path, checks: Sequence[Check]) -> Report:
    """The report on a server in a process of its own, which the kit starts.

    Args:
        command: its arguments behind `python`, with {address}, {data} and {listen}.
    """
    listener = Listener("127.0.0.1:0")
    await listener.start()
    address = f"127.0.0.1:{free_port()}"
    process = ServerProcess(f"{sys.executable} {command}", address, folder / "data", listener.address)
    try:
        await process.start()
        kit = Context(SERVICES[service], process.address, listener=listener, process=process)
        try:
            return await run(kit, checks)
        finally:
            await kit.close()
    except Failed as seen:
        return Report(service, address, could_not=str(seen))
    finally:
        await process.stop()
        await listener.stop()


def checks(*, without: tuple[str, ...] = ()) -> list[Check]:
    """The judge's, but for some and those that stand on them."""
    left: dict[str, Check] = {}
    for one in checks_of("judge"):
        if one.id not in without and all(id in left for id in one.after):
            left[one.id] = one
    return list(left.values())


def only(service: str, id: str) -> list[Check]:
    """One check, and what it stands on."""
    return chosen(checks_of(service), [f"{id[:-1]}?"])


def failed(report: Report) -> dict[str, str]:
    """What failed: check -> what was seen."""
    return {one.check.id: one.seen for one in report.results if one.outcome in (Outcome.FAILED, Outcome.ERROR)}
