"""The checks see a turn that was lost, one that was trained twice, a wrong digest: fed with made-up stores."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.chaos.stores import MadeUp, received
from tools.chaos.books import read_books, snapshot
from tools.chaos.checks import Damage, Violation, check_all
from tools.chaos.damage import damage


@pytest.fixture
def made(tmp_path: Path) -> MadeUp:
    """Sound books: of six turns each stands somewhere else, and one version is active on both sides."""
    made = MadeUp(tmp_path)
    made.sample(made.turn("turn_1"), "trained", 1)
    made.sample(made.turn("turn_2"), "dropped", reason="stale: too old")
    made.turn("turn_3", "superseded", reason="a later attempt")
    made.turn("turn_4", "open")
    made.waits("prm_judge", "samples", made.turn("turn_5"))
    made.waits("policy_server", "turns", "turn_6")
    made.waits("policy_server", "turns", "fb_1")
    made.version(1, ["turn_1"])
    return made


SIX = [received(f"turn_{i}") for i in range(1, 7)]


def found(made: MadeUp, entries: list[dict[str, object]] | None = None, damages: list[Damage] | None = None
          ) -> dict[str, Violation]:
    violations = check_all(SIX if entries is None else entries, read_books(made.home), damages or [])[1]
    assert len({v.rule for v in violations}) == len(violations), violations
    return {violation.rule: violation for violation in violations}


def test_sound_books_have_no_fault(made: MadeUp) -> None:
    account, violations = check_all(SIX, read_books(made.home))
    assert not violations
    assert account.fates == {
        "turn_1": "trained: version 1", "turn_2": "dropped: stale: too old",
        "turn_3": "not trainable: superseded, a later attempt", "turn_4": "pending: open, waits for its next state",
        "turn_5": "pending: waits for the trainer to take it", "turn_6": "pending: waits for the environment server"}
    assert account.totals() == {"trained": 1, "dropped": 1, "not trainable": 1, "pending": 3,
                                "lost by a damaged file": 0}


def test_a_turn_in_no_store_is_lost(made: MadeUp) -> None:
    violation = found(made, [*SIX, received("turn_7")])["lost"]
    assert violation.turns == ("turn_7",) and "in no store" in violation.text


def test_a_turn_that_was_sent_and_is_nowhere_behind_is_lost(made: MadeUp) -> None:
    made.turn("turn_7")
    violation = found(made)["lost"]
    assert violation.turns == ("turn_7",) and "sent by the environment server" in violation.text


def test_only_a_damaged_file_that_had_the_turn_excuses_its_loss(made: MadeUp) -> None:
    entries = [*SIX, received("turn_7"), received("turn_8")]
    account, violations = check_all(entries, read_books(made.home), [
        Damage("policy_server", "policy_server/state.db-wal", "cut", 0.0, {"turn_7"})])
    assert [v.turns for v in violations] == [("turn_8",)]
    assert list(account.lost_by_damage) == ["turn_7"]


def test_a_turn_in_two_manifests_is_trained_twice(made: MadeUp) -> None:
    made.version(2, ["turn_1"], parent=1)
    violation = found(made)["trained twice"]
    assert violation.turns == ("turn_1",)
    assert "versions [1, 2], 2 of them in the history of the active version" in violation.text


def test_a_turn_twice_in_one_manifest(made: MadeUp) -> None:
    made.sample(made.turn("turn_7"), "trained", 2)
    made.version(2, ["turn_7", "turn_7"], parent=1)
    assert "2 times in version 2" in found(made)["trained twice"].text


def test_a_manifest_that_names_what_was_not_trained(made: MadeUp) -> None:
    made.version(2, ["turn_2"], parent=1)
    assert "its fate is dropped" in found(made)["manifest and fate differ"].text


def test_a_trained_turn_that_no_manifest_names(made: MadeUp) -> None:
    made.sample(made.turn("turn_7"), "trained", 1)
    assert "that manifest does not name it" in found(made)["manifest and fate differ"].text


def test_two_fates(made: MadeUp) -> None:
    made.sample("turn_3", "dropped", reason="stale")
    assert found(made)["two fates"].turns == ("turn_3",)


@pytest.mark.parametrize("component", ["trainer", "policy_server"])
def test_one_wrong_byte_of_a_version(made: MadeUp, component: str) -> None:
    file = made.home.component(component) / "versions/1/model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    assert f"{component}, version 1: tensor w" in found(made)["wrong digest"].text


def test_a_manifest_with_another_digest(made: MadeUp) -> None:
    file = made.home.component("trainer") / "versions/1/manifest.json"
    data = json.loads(file.read_bytes())
    data["manifest"]["digest"] = "0" * 64
    file.write_text(json.dumps(data))
    violations = check_all(SIX, read_books(made.home))[1]
    assert {violation.rule for violation in violations} == {"wrong digest"}


def test_damage_of_ours_to_weights_is_no_fault_until_they_are_used(made: MadeUp) -> None:
    def damaged(component: str) -> Damage:
        done = damage(made.home, component, "weights", "truncate", 1)
        assert done is not None
        return done

    assert not found(made, damages=[damaged("trainer")])
    assert "policy_server, version 1" in found(made, damages=[Damage("trainer", "trainer/versions/1/model.safetensors",
                                                                     "", 0), damaged("policy_server")]
                                               )["wrong digest"].text


def test_an_active_version_that_the_trainer_does_not_know(made: MadeUp) -> None:
    (made.home.component("policy_server") / "policy.json").write_text('{"active": 3}')
    assert "version 3 is active" in found(made)["active version"].text


def test_refusals_count_unless_their_policy_process_was_killed(made: MadeUp) -> None:
    refused = {"user": "u", "what": "chat", "outcome": "refused", "status": 503, "error": "getting ready", "at": 1.0}
    assert not found(made, [*SIX, {**refused, "excused": True}])
    assert "503 getting ready" in found(made, [*SIX, {**refused, "excused": False}])["refused"].text


def test_feedback_may_be_refused_while_the_disk_is_full(made: MadeUp) -> None:
    refused = {"user": "u", "what": "feedback", "outcome": "refused", "status": 503, "excused": False}
    assert not found(made, [*SIX, {**refused, "error": "state.db: the disk is full; free some space"}])
    assert "refused" in found(made, [*SIX, {**refused, "error": "something else"}])


def test_a_text_that_is_not_what_was_received(made: MadeUp) -> None:
    assert found(made, [received("turn_1", "Another answer."), *SIX[1:]])["other text"].turns == ("turn_1",)


def test_a_cut_log_puts_exactly_the_last_turns_at_risk(tmp_path: Path) -> None:
    """Of a store that was killed, the damage takes away what the last transactions brought, and says so."""
    import os
    import subprocess
    import sys

    folder = tmp_path / "policy_server"
    folder.mkdir()
    program = ("import sys, os\nfrom pathlib import Path\nfrom openclaw_rl.storage.outbox import Outbox\n"
               "from openclaw_rl.storage.database import Database\nstore = Database(Path(sys.argv[1]))\n"
               "box = Outbox(store, 'turns')\n"
               "for i in range(50): box.put(f'turn_{i}', bytes(900))\nos.kill(os.getpid(), 9)\n")
    subprocess.run([sys.executable, "-c", program, str(folder / "state.db")], env={**os.environ}, check=False)
    from openclaw_rl.runtime.home import Home

    before = snapshot(folder / "state.db", "policy_server")
    assert len(before) == 50
    done = damage(Home(tmp_path), "policy_server", "wal", "garbage", 4)
    assert done is not None
    after = snapshot(folder / "state.db", "policy_server")
    assert 0 < len(done.at_risk) < 20
    assert before.keys() - after.keys() == done.at_risk == {f"turn_{i}" for i in range(50 - len(done.at_risk), 50)}
