"""Short forms of the campaign, and of what it is made of."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from openclaw_rl.runtime import failpoint
from tests.mesh.in_process import quick_config, tiny_model
from tools.campaign.checker import Facts, Table, check
from tools.campaign.grpc_messages import GrpcMessages
from tools.campaign.hostile import attack
from tools.campaign.http_requests import HttpRequests

ROOT = Path(__file__).parents[2]


def facts(**changed: object) -> Facts:
    """A mesh in which t1 trained version 1, and t2 was dropped."""
    version = SimpleNamespace(manifest=SimpleNamespace(turn_ids=["t1"], digest="d"), detail="")
    given: dict[str, object] = {
        "turns": {"t1": "TURN_STATE_SENT", "t2": "TURN_STATE_SENT", "t3": "TURN_STATE_NOT_TRAINABLE"},
        "samples": {"t1": ("SAMPLE_FATE_TRAINED", 1), "t2": ("SAMPLE_FATE_DROPPED", 0)}, "versions": {1: version},
        "active": 1, "active_digest": "d", "kept": [0, 1], **changed}
    return Facts(**given)  # type: ignore[arg-type]


LOG = [{"turn_id": turn, "outcome": "complete", "version": version, "session": turn}
       for turn, version in (("t1", 0), ("t2", 1), ("t3", 1))]


def table(found: Facts, log: list[dict[str, object]] | None = None, forgotten: tuple[str, ...] = ()) -> Table:
    made = Table()
    check(made, found, LOG if log is None else log, forgotten)
    return made


def test_a_mesh_that_is_right_passes() -> None:
    made = table(facts())
    assert not made.failed, made.text()
    assert made.rows["answered turns"]["checked"] == 3


@pytest.mark.parametrize(("changed", "row", "kind"), [
    ({"turns": {"t1": "TURN_STATE_SENT", "t3": "TURN_STATE_NOT_TRAINABLE"},
      "samples": {"t1": ("SAMPLE_FATE_TRAINED", 1)}}, "answered turns", "lost"),
    ({"samples": {"t1": ("SAMPLE_FATE_TRAINED", 1)}}, "answered turns", "wrong"),
    ({"samples": {"t1": ("SAMPLE_FATE_TRAINED", 1), "t2": ("SAMPLE_FATE_DROPPED", 0),
                  "t3": ("SAMPLE_FATE_DROPPED", 0)}}, "answered turns", "twice"),
    ({"versions": {number: SimpleNamespace(manifest=SimpleNamespace(turn_ids=["t1"], digest="d"), detail="")
                   for number in (1, 2)}}, "turns in versions", "twice"),
    ({"versions": {1: SimpleNamespace(manifest=SimpleNamespace(turn_ids=["t2"], digest="d"), detail="")}},
     "turns in versions", "wrong"),
    ({"active_digest": "other"}, "versions on both sides", "wrong"),
    ({"kept": [0, 1, 7]}, "versions on both sides", "lost"),
    ({"versions": {}, "samples": {"t1": ("SAMPLE_FATE_DROPPED", 0), "t2": ("SAMPLE_FATE_DROPPED", 0)}, "active": 0,
      "kept": [0]}, "answers of a version that exists", "wrong"),
])
def test_a_mesh_that_is_wrong_is_found_out(changed: dict[str, object], row: str, kind: str) -> None:
    made = table(facts(**changed))
    assert made.failed
    assert made.rows[row][kind], made.text()


def version(number: int, *turns: str, detail: str = "") -> dict[int, SimpleNamespace]:
    return {number: SimpleNamespace(manifest=SimpleNamespace(turn_ids=turns, digest="d"), detail=detail)}


def test_a_turn_of_a_void_version_is_trained_anew() -> None:
    rebuilt = {**version(1, "t1", "t9", detail="void: a session was forgotten"), **version(2, "t1")}
    samples = {"t1": ("SAMPLE_FATE_TRAINED", 2), "t2": ("SAMPLE_FATE_DROPPED", 0)}
    assert not table(facts(versions=rebuilt, samples=samples, active=2)).failed
    assert table(facts(versions=rebuilt, samples=samples, active=1)).rows["versions void by forgetting"]["wrong"] == 1


def test_a_trained_turn_that_its_version_does_not_name_is_lost() -> None:
    assert table(facts(versions=version(1, "t9"))).rows["turns in versions"]["lost"] == 1


def test_what_a_damaged_file_takes_away_is_not_held_against_the_mesh() -> None:
    gone = facts(turns={"t1": "TURN_STATE_SENT", "t3": "TURN_STATE_NOT_TRAINABLE"},
                 samples={"t1": ("SAMPLE_FATE_TRAINED", 1)})
    made = Table()
    check(made, gone, LOG, (), at_risk={"t2"})
    assert not made.failed, made.text()
    assert made.rows["turns in damaged files"]["checked"] == 1


def test_versions_that_a_damaged_file_of_the_trainer_took_away_are_known() -> None:
    gone = facts(versions={}, samples={"t1": ("SAMPLE_FATE_TRAINED", 1), "t2": ("SAMPLE_FATE_DROPPED", 0)})
    assert table(gone).failed
    made = Table()
    check(made, gone, LOG, (), versions_at_risk={1})
    assert not made.failed, made.text()
    assert made.rows["answers of versions in damaged files"]["checked"] == 2
    check(made, gone, LOG, (), versions_at_risk={7})
    assert made.failed


def test_feedback_may_be_refused_while_the_disk_is_full() -> None:
    refused = {"what": "feedback", "outcome": "refused", "status": 429}
    assert not table(facts(), [*LOG, {**refused, "error": '"code":"disk_full"'}]).failed
    assert table(facts(), [*LOG, {**refused, "error": '"code":"other"'}]).failed


def test_refusals_and_what_was_forgotten_are_seen() -> None:
    refused: list[dict[str, object]] = [{"outcome": "refused", "status": 503}, {"outcome": "refused", "excused": True}]
    assert table(facts(), [*LOG, *refused]).rows["requests"]["wrong"] == 1
    assert table(facts(), forgotten=("t3",)).rows["turns of forgotten sessions"]["wrong"] == 1
    gone = facts(turns={"t1": "TURN_STATE_SENT", "t2": "TURN_STATE_SENT"})
    assert not table(gone, forgotten=("t3",)).failed


def test_the_same_seed_makes_the_same() -> None:
    first, second, other = HttpRequests(1), HttpRequests(1), HttpRequests(2)
    made = [first.one() for _ in range(200)]
    assert made == [second.one() for _ in range(200)]
    assert made != [other.one() for _ in range(200)]
    again = [[made.payloads(made.method(["trainer"])[1]) for _ in range(50)]
             for made in (GrpcMessages(1), GrpcMessages(1))]
    assert again[0] == again[1]


def test_each_failpoint_is_one_line_of_the_product() -> None:
    text = "".join(file.read_text() for file in (ROOT / "openclaw_rl").rglob("*.py"))
    assert [text.count(f'failpoint("{name}")') for name in failpoint.NAMES] == [1] * len(failpoint.NAMES)


def test_a_failpoint_kills_once_and_only_when_it_is_wanted(tmp_path: Path) -> None:
    program = ("from openclaw_rl.runtime.failpoint import failpoint\n"
               "failpoint('start.ready')\nfailpoint('start.made')\nprint('on')\n")
    (tmp_path / "start.made").touch()

    def run(*, wanted: bool) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=ROOT,
                              env={failpoint.VARIABLE: str(tmp_path)} if wanted else {})

    assert run(wanted=False).stdout == "on\n"
    assert run(wanted=True).returncode == -9
    assert [file.stem for file in tmp_path.iterdir()] == ["start.made"]
    assert run(wanted=True).stdout == "on\n"


def test_a_hook_stands_in_for_the_kill() -> None:
    seen = []
    with failpoint.armed("start.made", lambda: seen.append(1)):
        failpoint.failpoint("start.made")
        failpoint.failpoint("start.ready")
    failpoint.failpoint("start.made")
    assert seen == [1]


async def test_hostile_requests_harm_nothing(tmp_path: Path) -> None:
    config = quick_config(tiny_model(tmp_path / "model"), {"prm_judge": {"judge": "rules"}})
    made = await attack(tmp_path / "home", config, seed=1, requests=600, messages=300)
    assert not made.failed, made.text()
