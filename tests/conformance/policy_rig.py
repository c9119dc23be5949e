"""The kit on a policy server, as tests call it."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from openclaw_rl.conformance.context import Context
from openclaw_rl.conformance.frame import Outcome, checks_of
from openclaw_rl.conformance.listener import Listener
from openclaw_rl.conformance.process import ServerProcess
from openclaw_rl.conformance.runner import Report, chosen, run
from openclaw_rl.conformance.services import SERVICES
from tests.conformance.wrong_weights.right import Serving, SmallPolicy
from tests.support.ports import free_port

#: How a Python program of the tests is started with the kit's values.
PYTHON = shlex.quote(sys.executable)
VALUES = " --address {address} --data {data} --listen {listen}"


async def check(server: type[SmallPolicy], folder: Path, *patterns: str) -> Report:
    """The kit's report on a small policy server in this process: on its policy and weights checks."""
    listener = Listener("127.0.0.1:0")
    await listener.start()
    serving = Serving(server(folder, listener.address))
    await serving.start()
    kit = Context(SERVICES["policy"], serving.address, deadline=1.5, listener=listener)
    kit.weights = True
    checks = [one for one in checks_of("policy") if one.id.startswith(("policy.", "weights."))]
    try:
        return await run(kit, chosen(checks, patterns))
    finally:
        await kit.close()
        await serving.stop()
        await listener.stop()


async def check_process(command: str, folder: Path, *patterns: str) -> Report:
    """The same of one that the kit starts and kills, on all checks."""
    listener = Listener("127.0.0.1:0")
    await listener.start()
    address = f"127.0.0.1:{free_port()}"
    process = ServerProcess(command, address, folder, listener.address)
    await process.start()
    kit = Context(SERVICES["policy"], address, deadline=10.0, listener=listener, process=process)
    try:
        return await run(kit, chosen(checks_of("policy"), patterns))
    finally:
        await kit.close()
        await process.stop()
        await listener.stop()


def exactly(id: str) -> str:
    """A pattern for this one check."""
    return f"{id[:-1]}?"


def failures(report: Report) -> dict[str, str]:
    """What was seen, by the id of the check."""
    return {one.check.id: one.seen for one in report.results if one.outcome in (Outcome.FAILED, Outcome.ERROR)}


def skipped(report: Report) -> dict[str, str]:
    """Why, by the id of the check."""
    return {one.check.id: one.seen for one in report.results if one.outcome is Outcome.SKIPPED}
