"""The kit fails each wrong judge on its fault, with the sentence that says so."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from openclaw_rl.conformance import component_end, ring_onward
from openclaw_rl.conformance.frame import Need, Outcome
from openclaw_rl.rpc.auth import ca
from openclaw_rl.rpc.auth.certificates import ROLES
from tests.conformance.harness import checks, failed, in_process, of_process, only, report_of
from tests.conformance.wrong.fault import Fault
from tests.conformance.wrong.judge import Judge
from tests.conformance.wrong.judges import FAULTS

#: What takes a while, and is seen of wrong judges.
_LONG = ("component.stats", "component.deadline", "component.big", "component.big.refused", "component.big.code",
         "component.slow", "ring.window", "ring.big", "ring.big.refused", "ring.slow", "onward.cut", "onward.silent",
         "onward.slow", "onward.away", "onward.refused", "onward.once")
_QUICK = ("LetsOthersIn", "AcksForeignIds", "NoDetails", "AnotherContract", "VotesSeven", "LetsAnybodyJudge")
#: So many at a time: most of them wait for what never comes.
_AT_A_TIME = 6


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What never comes is not waited for as long as on a real machine."""
    monkeypatch.setattr(component_end, "_END_SECONDS", 4.0)
    monkeypatch.setattr(ring_onward, "_ARRIVE", 6.0)


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A mesh's certificates."""
    folder = tmp_path_factory.mktemp("certs")
    ca.make_authority(folder)
    for role in ROLES:
        ca.issue(folder, role)
    return folder


async def _problems(names: list[str], folder: Path, certs: Path) -> list[str]:
    """Of each fault that the kit does not find as it should, what it found."""
    places = asyncio.Semaphore(_AT_A_TIME)

    async def judge(name: str, fault: Fault) -> str:
        async with places:
            if fault.start:
                report = await of_process(
                    "judge", f"-m tests.conformance.wrong.judge --fault {name} --address {{address}} --data {{data}} "
                    "--next {listen}", folder / name, only("judge", fault.check))
            else:
                report = await report_of(fault.server, folder / name, only("judge", fault.check),
                                         certs if ".secure." in fault.check else None)
        found = failed(report)
        right = list(found) == [fault.check] and re.search(fault.seen, found[fault.check])
        if right and report.exit_code == (0 if report.conforms else 1):
            return ""
        return f"{name}: {fault.check} should say {fault.seen!r}; {found or report.could_not}"

    return [one for one in await asyncio.gather(*(judge(name, FAULTS[name]) for name in names)) if one]


async def test_the_right_judge_conforms(tmp_path: Path) -> None:
    report = await report_of(Judge, tmp_path, checks(without=_LONG))
    assert not failed(report)
    assert report.conforms and report.exit_code == 0
    assert len(report.of(Outcome.PASSED)) > 45


@pytest.mark.slow
async def test_the_right_judge_conforms_in_all(tmp_path: Path) -> None:
    report = await report_of(Judge, tmp_path, checks())
    assert not failed(report)
    assert {one.check.id for one in report.of(Outcome.SKIPPED) if one.seen != "needs --certs"} <= {
        one.id for one in checks() if Need.START in one.needs}


async def test_over_tls(tmp_path: Path, certs: Path) -> None:
    """The ring's calls are made with the certificate of the component that may make them."""
    async with in_process(Judge, tmp_path, certs) as kit:
        some = checks(without=(*_LONG, "onward.arrives", "judge.sample"))
        from openclaw_rl.conformance.runner import run

        report = await run(kit, some, drain=True)
    assert not failed(report)
    assert {one.check.id: one.seen for one in report.of(Outcome.SKIPPED)} == {
        one.id: "needs --start" for one in some if Need.START in one.needs} | {
        "component.mesh.unnamed": "certificates name the mesh"}


async def test_over_tls_without_the_certificate_of_the_neighbour(tmp_path: Path, certs: Path) -> None:
    folder = tmp_path / "certs"
    folder.mkdir()
    for name in ("ca.crt", "operator.crt", "operator.key", "prm_judge.crt", "prm_judge.key"):
        (folder / name).write_bytes((certs / name).read_bytes())
        (folder / name).chmod(0o600)
    report = await report_of(Judge, tmp_path / "data", checks(without=_LONG), folder)
    assert not failed(report)
    skipped = {one.check.id: one.seen for one in report.of(Outcome.SKIPPED)}
    assert "only the env_server of the mesh may call this" in skipped["ring.acks"]
    assert "lacks env_server.crt" in skipped["ring.acks"]
    assert skipped["ring.acks.once"] == "depends on ring.acks, which was skipped"
    assert not {"component.secure.role", "component.drain.streams", "judge.judge"} & skipped.keys()


async def test_some_wrong_judges_fail(tmp_path: Path, certs: Path) -> None:
    assert await _problems([*_QUICK], tmp_path, certs) == []


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_wrong_judges_fail(tmp_path: Path, certs: Path) -> None:
    assert await _problems([name for name in FAULTS if name not in _QUICK], tmp_path, certs) == []


@pytest.mark.slow
async def test_the_right_judge_may_be_killed(tmp_path: Path) -> None:
    report = await of_process("judge", "-m tests.conformance.wrong.judge --address {address} --data {data} --next "
                              "{listen}", tmp_path, [one for one in checks(without=_LONG) if Need.START in one.needs
                                                     or one.gate or one.id.startswith(("ring.acks", "ring.duplicate",
                                                                                      "onward.arrives", "component."))])
    assert not failed(report) and len(report.of(Outcome.PASSED)) > 20


def test_every_fault_is_of_a_check() -> None:
    assert {fault.check for fault in FAULTS.values()} <= {one.id for one in checks()}
