"""Policy servers that are wrong in one thing each fail the check that is about it, with its sentence, and no other."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.conformance import policy_chat, policy_turns, weights_stream
from openclaw_rl.conformance.context import Context
from openclaw_rl.conformance.frame import Level, Outcome, checks_of
from openclaw_rl.conformance.runner import chosen, run
from openclaw_rl.conformance.services import ALL, SERVICES
from tests.conformance.policy_rig import PYTHON, VALUES, check, check_process, exactly, failures, skipped
from tests.conformance.wrong_weights.door import DOORS, WithDoor
from tests.conformance.wrong_weights.faults import FAULTS, Fixed, Tokens
from tests.conformance.wrong_weights.right import Serving, SmallPolicy

#: Those that are tried with each change; the others with the slow tests.
QUICK = {"NoSpans", "AnyVersion", "NeverRecords", "ResendsBackwards", "ActivatesWhenStaged", "ServesTheOldOne",
         "IgnoresCredit", "DropsTheStream", "NoDigestCheck", "TakesNaN", "FromTheBeginning", "TakesOldOnes"}
#: So many at a time: most of them wait for what never comes.
AT_A_TIME = 4


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a wrong server never does is not waited for as long as for a slow one."""
    monkeypatch.setattr(policy_chat, "FREED", 1.0)
    monkeypatch.setattr(policy_turns, "ARRIVES", 5.0)
    monkeypatch.setattr(weights_stream, "ANSWER", 5.0)


@pytest.mark.parametrize("service", ALL)
def test_checks_come_behind_those_that_they_stand_on(service: Any) -> None:
    done: set[str] = set()
    for one in checks_of(service):
        assert done.issuperset(one.after), one.id
        done.add(one.id)


@pytest.mark.slow
@pytest.mark.parametrize("server", [SmallPolicy, Tokens, Fixed])
async def test_a_right_one_passes(server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((policy_turns, "ARRIVES"), (weights_stream, "ANSWER")):
        monkeypatch.setattr(module, name, 30.0)
    report = await check(server, tmp_path)
    assert not report.could_not and failures(report) == {}
    allowed = ["--start", "API model", "HTTP", "the engine takes weights", "depends on"]
    if server is Fixed:
        assert "weights.refuses.unsupported_engine" not in skipped(report)
        allowed.append("takes no weights (accepts_weights)")
    needless = {id: why for id, why in skipped(report).items() if not any(word in why for word in allowed)}
    assert not needless
    assert len(report.of(Outcome.PASSED)) > (25 if server is Fixed else 40)


async def problems(names, folder):
    """Of each fault that the kit does not find as it should, what it found."""
    places = asyncio.Semaphore(AT_A_TIME)

    async def judged(name):
        fault, own = FAULTS[name], folder / name
        own.mkdir()
        async with places:
            if fault.start:
                command = f"{PYTHON} -m tests.conformance.wrong_weights {VALUES} --fault {name}"
                report = await check_process(command, own, exactly(fault.check))
            else:
                report = await check(fault.server, own, exactly(fault.check))
        seen = failures(report)
        level = next((one.check.level for one in report.results if one.check.id == fault.check), None)
        fine = list(seen) == [fault.check] and fault.seen in seen[fault.check]
        return "" if fine and report.exit_code == (1 if level is Level.MUST else 0) else f"{name}: {seen}"

    return [one for one in await asyncio.gather(*map(judged, names)) if one]


async def test_some_wrong_ones_fail(tmp_path: Path) -> None:
    assert await problems(sorted(QUICK), tmp_path) == []


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_wrong_ones_fail(tmp_path: Path) -> None:
    assert await problems(sorted(FAULTS.keys() - QUICK), tmp_path) == []


@pytest.mark.slow
async def test_a_right_door_passes(tmp_path: Path) -> None:
    report = await check(WithDoor, tmp_path, "policy.http*")
    assert failures(report) == {} == skipped(report)


@pytest.mark.slow
@pytest.mark.parametrize("wrong", DOORS)
async def test_a_wrong_door_fails(wrong: Any, tmp_path: Path) -> None:
    id, seen = DOORS[wrong]
    found = failures(await check(wrong, tmp_path, exactly(id)))
    assert list(found) == [id] and seen in found[id], found


@pytest.mark.slow
async def test_a_right_one_may_be_killed(tmp_path: Path) -> None:
    command = f"{PYTHON} -m tests.conformance.wrong_weights {VALUES}"
    report = await check_process(command, tmp_path, "policy.turns.killed", "weights.killed*")
    assert failures(report) == {} and len(report.of(Outcome.PASSED)) > 4


async def test_versions_are_made_only_where_they_may_be(tmp_path: Path) -> None:
    serving = Serving(SmallPolicy(tmp_path))
    await serving.start()
    kit = Context(SERVICES["policy"], serving.address)
    try:
        report = await run(kit, chosen(checks_of("policy"), ["weights.*"]))
    finally:
        await kit.close()
        await serving.stop()
    assert {one.outcome for one in report.results if one.check.id.startswith("weights.")} == {Outcome.SKIPPED}
    assert "needs --weights or --start" in {one.seen for one in report.results}
    assert serving.policy.versions.kept() == [0]


async def test_a_trainer_that_is_connected_is_left_alone(tmp_path: Path) -> None:
    serving = Serving(SmallPolicy(tmp_path))
    await serving.start()
    kit = Context(SERVICES["policy"], serving.address)
    kit.weights = True
    await kit.join((await kit.status()).mesh_id)
    trainer = weights_stream.Sync(kit, "trainer_" + "ab" * 16)
    try:
        async with trainer:
            report = await run(kit, chosen(checks_of("policy"), ["weights.*"]))
            assert not trainer.ended
    finally:
        await kit.close()
        await serving.stop()
    assert failures(report) == {} and "ANOTHER_TRAINER" in skipped(report)["weights.state"]
    assert serving.policy.versions.kept() == [0]
