"""The kit fails each wrong judge on its fault, with the sentence that says so, and on nothing else."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest

from openclaw_rl.conformance import component_end, ring_onward
from openclaw_rl.conformance.frame import Need, Outcome

from .harness import checks, failed, of_process, report_of
from .wrong.judge import Judge
from .wrong.judges import EXPECTED, FAULTS

#: What takes a while and finds nothing that the others don't, except where it is what has to fail.
_LONG = ("component.stats", "component.deadline", "component.big", "component.big.refused", "component.big.code",
         "component.slow", "ring.window", "ring.big", "ring.big.refused", "ring.slow", "onward.cut", "onward.silent",
         "onward.slow", "onward.away", "onward.refused", "onward.once")
#: Those that a server in a process of its own shows.
_OF_PROCESS = [name for name, (id, _) in EXPECTED.items() if id in ("ring.kill", "component.sigterm")]
_QUICK = ("AcksForeignIds", "NoDetails", "AnotherContract", "VotesSeven")


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What never comes is not waited for as long as on a real machine."""
    monkeypatch.setattr(component_end, "_END_SECONDS", 4.0)
    monkeypatch.setattr(ring_onward, "_ARRIVE", 4.0)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def test_the_right_judge_conforms(tmp_path: Path) -> None:
    report = await report_of(Judge, tmp_path, checks(without=_LONG))
    assert not failed(report)
    assert report.conforms and report.exit_code == 0
    assert len(report.of(Outcome.PASSED)) > 45


@pytest.mark.parametrize("fault", [
    name if name in _QUICK else pytest.param(name, marks=pytest.mark.slow) for name in FAULTS
    if name not in _OF_PROCESS])
async def test_a_wrong_judge_fails(fault: str, tmp_path: Path) -> None:
    id, seen = EXPECTED[fault]
    by_id = {one.id: one for one in checks()}
    wanted, rest = set[str](), [id]
    while rest:
        wanted.add(one := rest.pop())
        rest += by_id[one].after
    report = await report_of(FAULTS[fault], tmp_path, checks(without=tuple(set(_LONG) - wanted)))
    assert list(failed(report)) == [id]
    assert re.search(seen, failed(report)[id])
    assert report.exit_code == (0 if report.conforms else 1)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["", *_OF_PROCESS])
async def test_a_judge_that_is_killed(fault: str, tmp_path: Path) -> None:
    id, seen = EXPECTED[fault] if fault else ("", "")
    some = [one for one in checks(without=_LONG) if Need.START in one.needs or one.gate or one.id in (
        "ring.acks", "ring.acks.accepted", "ring.duplicate.other", "onward.arrives", "onward.away",
        "component.stats.cancel", "component.drain")]
    report = await of_process(fault, tmp_path, some, _free_port())
    assert list(failed(report)) == ([id] if fault else [])
    if fault:
        assert re.search(seen, failed(report)[id])


def test_every_fault_is_of_a_check() -> None:
    ids = {one.id for one in checks()}
    assert {id for id, _ in EXPECTED.values()} <= ids
