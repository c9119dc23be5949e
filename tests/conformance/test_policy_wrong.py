"""Policy servers that are wrong in one thing each fail the check that is about it, with its sentence, and no other."""

from __future__ import annotations

import shlex
import socket
import sys
from pathlib import Path

import pytest

from openclaw_rl.conformance import policy_chat, policy_turns, weights_stream
from openclaw_rl.conformance.context import Context
from openclaw_rl.conformance.frame import Level, Outcome, checks_of
from openclaw_rl.conformance.listener import Listener
from openclaw_rl.conformance.process import ServerProcess
from openclaw_rl.conformance.runner import Report, chosen, run
from openclaw_rl.conformance.services import SERVICES

from .wrong_weights.faults import FAULTS, Tokens
from .wrong_weights.right import Serving, SmallPolicy


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a wrong server never does is not waited for as long as for a slow one."""
    monkeypatch.setattr(policy_chat, "FREED", 1.0)
    monkeypatch.setattr(policy_turns, "ARRIVES", 2.0)
    monkeypatch.setattr(weights_stream, "ANSWER", 2.0)


_OURS = [one for one in checks_of("policy") if one.id.startswith(("policy.", "weights."))]


async def check(server: type[SmallPolicy], folder: Path, *patterns: str) -> Report:
    """The kit's report on a server in this process."""
    listener = Listener("127.0.0.1:0")
    await listener.start()
    serving = Serving(server(folder, listener.address))
    await serving.start()
    kit = Context(SERVICES["policy"], serving.address, deadline=1.5, listener=listener)
    kit.weights = True
    try:
        return await run(kit, chosen(_OURS, patterns))
    finally:
        await kit.close()
        await serving.stop()
        await listener.stop()


async def check_process(fault: str | None, folder: Path, *patterns: str) -> Report:
    """The same of one that the kit starts and kills."""
    listener = Listener("127.0.0.1:0")
    await listener.start()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    command = f"{shlex.quote(sys.executable)} -m tests.conformance.wrong_weights"
    command += " --address {address} --data {data} --listen {listen}" + (f" --fault {fault}" if fault else "")
    process = ServerProcess(command, address, folder, listener.address)
    await process.start()
    kit = Context(SERVICES["policy"], address, deadline=5.0, listener=listener, process=process)
    try:
        return await run(kit, chosen(_OURS, patterns))
    finally:
        await kit.close()
        await process.stop()
        await listener.stop()


def exactly(id: str) -> str:
    """A pattern for this one check."""
    return f"{id[:-1]}?"


def failures(report: Report) -> dict[str, str]:
    return {one.check.id: one.seen for one in report.results if one.outcome in (Outcome.FAILED, Outcome.ERROR)}


@pytest.mark.parametrize("server", [SmallPolicy, Tokens])
async def test_a_right_one_passes(server, tmp_path):
    report = await check(server, tmp_path)
    assert not report.could_not and failures(report) == {}
    skipped = {one.check.id: one.seen for one in report.results if one.outcome is Outcome.SKIPPED}
    needless = [id for id, why in skipped.items() if "--start" not in why and "API model" not in why
                and "HTTP" not in why and "the engine takes weights" not in why and "stands on" not in why]
    assert not needless, skipped
    assert len(report.of(Outcome.PASSED)) > 40


@pytest.mark.parametrize("name", [name for name, fault in FAULTS.items() if not fault.start])
async def test_a_wrong_one_fails(name, tmp_path):
    fault = FAULTS[name]
    report = await check(fault.server, tmp_path, exactly(fault.check))
    seen = failures(report)
    assert list(seen) == [fault.check] and fault.seen in seen[fault.check], seen
    level = next(one.check.level for one in report.results if one.check.id == fault.check)
    assert report.exit_code == (1 if level is Level.MUST else 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", [None, *(name for name, fault in FAULTS.items() if fault.start)])
async def test_what_takes_a_killed_process(name, tmp_path):
    report = await check_process(name, tmp_path, *(["killed"] if name is None else [exactly(FAULTS[name].check)]))
    seen = failures(report)
    if name is None:
        assert seen == {} and len(report.of(Outcome.PASSED)) > 4
    else:
        assert list(seen) == [FAULTS[name].check] and FAULTS[name].seen in seen[FAULTS[name].check], seen


async def test_versions_are_made_only_where_they_may_be(tmp_path):
    serving = Serving(SmallPolicy(tmp_path))
    await serving.start()
    kit = Context(SERVICES["policy"], serving.address)
    try:
        report = await run(kit, chosen(_OURS, ["weights.*"]))
    finally:
        await kit.close()
        await serving.stop()
    assert {one.outcome for one in report.results if one.check.id.startswith("weights.")} == {Outcome.SKIPPED}
    assert "needs --weights or --start" in {one.seen for one in report.results}
    assert serving.policy.versions.kept() == [0]

