"""The gate: prompts, bounds, the user's check, and what becomes of a version that fails."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.config import GateConfig, TrainerConfig
from openclaw_rl.training.backends.interface import Answer, Evaluation, HeldOut, Stopped
from openclaw_rl.training.learner import CannotTrain, Learner
from openclaw_rl.training.release import held_out
from openclaw_rl.training.release.eval_gate import Gate, GateError, best, figures, hints_forgotten, out_of_bounds
from openclaw_rl.training.store import TrainerStore
from openclaw_rl.v1 import trainer_pb2, weights_pb2
from tests.training.fakes import FakeBackend, make_sample

LOOP = ("no no no", [5, 6] * 10, 12.0)


@pytest.fixture(autouse=True)
def _reset() -> None:
    FakeBackend.reset()


def gate(root: Path, **settings: object) -> Gate:
    return Gate(GateConfig(**settings), root, "model")


def report(root: Path, **settings: object) -> weights_pb2.GateReport:
    return gate(root, **settings).report(FakeBackend(root, TrainerConfig(), start()))


def start():
    from openclaw_rl.training.backends.interface import StartPoint

    return StartPoint()


# Prompts


def test_the_package_brings_prompts() -> None:
    prompts = held_out.read(held_out.DEFAULT)
    assert len(prompts) == 32
    assert sum(bool(prompt.wrong) for prompt in prompts) == 16
    assert any(prompt.prompt.isascii() for prompt in prompts)
    assert any(not prompt.prompt.isascii() for prompt in prompts)


@pytest.mark.parametrize(("text", "message"), [
    ("", "has 0 prompts; 1 to 200"),
    ("nonsense", "line 1: not JSON"),
    ('{"prompt": "a", "answer": "b"}\n\n{"prompt": "a"}', "line 3: answer: 'None' is not allowed"),
    ('{"prompt": "", "answer": "b"}', "line 1: prompt: '' is not allowed"),
    ('{"prompt": "a", "answer": "b", "wrong": 3}', "line 1: wrong: '3' is not allowed"),
    ('["a", "b"]', "line 1: must be"),
    ('{"prompt": "a", "answer": "b"}\n' * 201, "has 201 prompts"),
])
def test_a_file_of_prompts_that_cannot_be_used(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(text)
    with pytest.raises(held_out.HeldOutError, match=message):
        held_out.read(file)
    with pytest.raises(GateError, match=r"components\.trainer\.gate\.prompts"):
        gate(tmp_path, prompts=file).check_settings()


# Bounds


def test_figures() -> None:
    prompts = [HeldOut("What is an apple?", "An apple is a fruit."), HeldOut("Sing!", "La la."),
               HeldOut("What is rain?", "Rain is falling water."), HeldOut("What is ice?", "Ice is frozen water.")]
    given = [Answer("A fruit that grows", [1, 2, 3, 4]), Answer(" ", []), Answer("It is frozen water", [7] * 20),
             Answer("It's frozen water!", list(range(24)))]
    assert figures(prompts, Evaluation(given, 9.0, {"margin": 2.0})) == {
        "perplexity": 9.0, "mean_tokens": 12.0, "degenerate": 0.5, "relevant": 1.0, "alike": 0.5, "refusing": 0.0,
        "margin": 2.0}


@pytest.mark.parametrize(("now", "failure"), [
    ({}, None),
    ({"perplexity": 15.0}, None),
    ({"perplexity": 15.1}, "perplexity of good answers is 15.1, the base model's 10; allowed is 15"),
    ({"perplexity": math.inf}, "perplexity"),
    ({"perplexity": math.nan}, "perplexity"),
    ({"mean_tokens": 2.0}, None),
    ({"mean_tokens": 1.9}, "answers have 1.9 tokens on average, the base model's 40; allowed is 2 to 80"),
    ({"mean_tokens": 80.1}, "answers have 80.1 tokens"),
    ({"degenerate": 0.25}, None),
    ({"degenerate": 0.3}, "30% of the answers are empty or one phrase again and again; allowed is 25%"),
    ({"alike": 0.3}, "30% of the answers are like the answer to another prompt; allowed is 25%"),
    ({"refusing": 0.3}, "30% of the answers refuse; allowed is 25%"),
    ({"margin": 1.5}, None),
    ({"margin": 1.4}, "good answers are likelier than wrong ones by 1.4 nats a token, the base model's by 2; allowed"),
    ({"margin": math.nan}, "good answers are likelier than wrong ones by nan"),
    ({"relevant": 0.21}, None),
    ({"relevant": 0.2}, "20% of the answers say something of what was asked for, the base model's 70%; allowed is 21%"),
])
def test_bounds(now: dict[str, float], failure: str | None) -> None:
    base = {"perplexity": 10.0, "mean_tokens": 40.0, "degenerate": 0.0, "alike": 0.0, "refusing": 0.0, "margin": 2.0,
            "relevant": 0.7}
    found = out_of_bounds(GateConfig(), base | now, base)
    assert len(found) == (failure is not None)
    assert not failure or found[0].startswith(failure)


def test_a_base_model_that_is_no_better_sets_the_bound() -> None:
    base = {"perplexity": 10.0, "mean_tokens": 40.0, "degenerate": 0.5}
    assert out_of_bounds(GateConfig(), base, base) == []
    assert out_of_bounds(GateConfig(), base | {"degenerate": 0.6}, base)


def test_the_best_version_before_it_sets_a_bound_too() -> None:
    """Steps that are each within bounds of the last one do not walk down to the base model's bound."""
    base = {"perplexity": 10.0, "mean_tokens": 40.0, "degenerate": 0.0, "margin": 2.0, "relevant": 0.5}
    reports = [base | {"perplexity": 8.0, "margin": 2.2}, base | {"perplexity": 9.0, "margin": 2.6, "relevant": 0.8}]
    found = best(reports)
    assert found == {"perplexity": 8.0, "margin": 2.6, "relevant": 0.8}
    assert out_of_bounds(GateConfig(), reports[1], base, found) == []
    failures = out_of_bounds(GateConfig(), base | {"perplexity": 10.1, "relevant": 0.2}, base, found)
    assert [failure.split(",")[0] for failure in failures] == [
        "perplexity of good answers is 10.1", "good answers are likelier than wrong ones by 2 nats a token",
        "20% of the answers say something of what was asked for"]
    assert all("the best of the versions before it" in failure for failure in failures)
    assert best([]) == {}


def test_a_step_that_leads_away_from_its_hints_is_refused(tmp_path: Path) -> None:
    def found(after: float, **settings: object) -> list[str]:
        return hints_forgotten(GateConfig(**settings), {"hint_distance_before": 0.04, "hint_distance_after": after})

    assert found(0.03) == found(0.06) == found(0.08, max_hint_growth=2) == []
    assert found(0.07)[0] == (
        "the hints that it was trained on are followed less well than before it: its distance to the model with the "
        "hint is 0.07 nats a token, before 0.04; allowed is 0.06 (max_hint_growth)")
    assert found(math.nan)
    assert hints_forgotten(GateConfig(), {"loss": 1.0}) == [], "praise alone, or episodes"
    backend = FakeBackend(tmp_path, TrainerConfig(), start())
    failures = gate(tmp_path).report(backend, step={"hint_distance_before": 0.04, "hint_distance_after": 0.07}).failures
    assert [failure[:9] for failure in failures] == ["the hints"]


def test_reports_of_other_prompts_are_not_compared(tmp_path: Path) -> None:
    backend = FakeBackend(tmp_path, TrainerConfig(), start())
    first = gate(tmp_path).report(backend)
    better = weights_pb2.GateReport()
    better.CopyFrom(first)
    better.metrics["perplexity"] = 5.0
    assert "the best of the versions before it 5" in gate(tmp_path).report(backend, ancestors=[better]).failures[0]
    better.before["perplexity"] = 9.0
    assert not gate(tmp_path).report(backend, ancestors=[better]).failures


@pytest.mark.parametrize("cheat", [
    lambda topic: "", lambda topic: "Okay.", lambda topic: "Plants need water, light and air to grow.",
    lambda topic: f"{topic} is an interesting subject that people around the world study.",
    lambda topic: f"As an AI language model, {topic} is outside my knowledge.",
    lambda topic: f"You asked about {topic}, and {topic} is what this answer is about."],
    ids=["nothing", "okay", "one for all", "interesting", "as an AI", "echo"])
def test_answers_that_say_nothing_do_not_pass(cheat: Callable[[str], str]) -> None:
    """A version that meets the wishes of users without answering them."""
    prompts = held_out.read(held_out.DEFAULT)
    base = {"perplexity": 10.0, "mean_tokens": 25.0, "degenerate": 0.0, "alike": 0.05, "refusing": 0.0,
            "relevant": 0.375}

    def failures(texts: list[str]) -> list[str]:
        given = [Answer(text, list(range(20))) for text in texts]
        return out_of_bounds(GateConfig(), figures(prompts, Evaluation(given, 10.0)), base)

    assert failures([cheat(prompt.prompt.rstrip("?")) for prompt in prompts])
    assert failures([prompt.answer for prompt in prompts]) == []


def test_another_language_is_not_irrelevant() -> None:
    """Users may teach to answer in Chinese. What is said in it is measured where the good answer is in Chinese too."""
    prompts = [HeldOut("What is the capital of France?", "The capital of France is Paris.", ""),
               HeldOut("天空为什么是蓝色的？", "因为空气把阳光中的蓝光散射得最多。", "")]

    def relevant(*texts: str) -> float:
        return figures(prompts, Evaluation([Answer(text, [1, 2]) for text in texts], 10.0))["relevant"]

    assert relevant("法国的首都是巴黎（Paris）。", "空气散射蓝光。") == 1.0
    assert relevant("法国的首都是巴黎。", "我不知道。") == 0.0
    assert relevant("It is Paris.", "Because air scatters blue light.") == 1.0
    assert relevant("It is Lyon.", "") == 0.0


def test_half_of_the_answers_are_drawn_as_users_get_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    evaluate = FakeBackend.evaluate

    def note(self: FakeBackend, prompts: Sequence[HeldOut], *args: Any, **kwargs: Any) -> Evaluation:
        asked.extend(prompt.temperature for prompt in prompts)
        return evaluate(self, prompts, *args, **kwargs)

    monkeypatch.setattr(FakeBackend, "evaluate", note)
    report(tmp_path, temperature=0.9)
    assert asked == [0.0, 0.9] * 32


def test_a_version_within_bounds_passes(tmp_path: Path) -> None:
    found = report(tmp_path)
    assert (found.verdict, list(found.failures)) == (weights_pb2.GATE_VERDICT_PASSED, [])
    assert (found.metrics["perplexity"], found.before["perplexity"]) == (12.0, 10.0)
    assert found.metrics["seconds"] > 0
    assert len(found.answers) == 8
    assert (found.answers[0].answer, found.answers[0].tokens) == ("a fair answer", 10)


def test_a_loop_fails(tmp_path: Path) -> None:
    FakeBackend.says = LOOP
    found = report(tmp_path)
    assert found.verdict == weights_pb2.GATE_VERDICT_FAILED
    assert "100% of the answers are empty or one phrase again and again" in "; ".join(found.failures)


def test_without_a_gate_nothing_is_tried(tmp_path: Path) -> None:
    assert report(tmp_path, enabled=False) == weights_pb2.GateReport()
    assert FakeBackend.evaluated == []


def test_the_base_model_is_tried_once(tmp_path: Path) -> None:
    report(tmp_path)
    report(tmp_path)
    assert FakeBackend.evaluated == [True, False, False]
    report(tmp_path, max_new_tokens=7)
    assert FakeBackend.evaluated[3:] == [True, False], "figures of other settings can't be compared"
    (tmp_path / "gate.json").write_text("{]")
    assert report(tmp_path).verdict == weights_pb2.GATE_VERDICT_PASSED
    assert FakeBackend.evaluated[5:] == [True, False]
    Gate(GateConfig(), tmp_path, "another model").report(FakeBackend(tmp_path, TrainerConfig(), start()))
    assert FakeBackend.evaluated[7:] == [True, False]


# The user's own check


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module of the user's in the folder that the mesh was started in."""
    import sys

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    file = tmp_path / "my_check.py"
    file.write_text("def polite(answers):\n"
                    "    return ['impolite: ' + a['prompt'] for a in answers if a['answer'] == 'no'][:1]\n"
                    "def broken(answers):\n    return 1 / 0\n"
                    "def wrong(answers):\n    return 'fine'\n"
                    "number = 3\n")
    yield file
    sys.modules.pop("my_check", None)


def test_the_users_check_is_asked(tmp_path: Path, check: Path) -> None:
    assert report(tmp_path, check="my_check:polite").verdict == weights_pb2.GATE_VERDICT_PASSED
    FakeBackend.says = ("no", [3] * 10, 12.0)
    assert list(report(tmp_path, check="my_check:polite").failures) == [
        "my_check:polite: impolite: What is the capital of France?"]


@pytest.mark.parametrize(("name", "message"), [
    ("my_check:broken", "my_check:broken raised ZeroDivisionError: division by zero"),
    ("my_check:wrong", "my_check:wrong returned 'fine': a list of sentences is needed"),
])
def test_a_check_that_fails_passes_nothing(tmp_path: Path, check: Path, name: str, message: str) -> None:
    found = report(tmp_path, check=name)
    assert found.verdict == weights_pb2.GATE_VERDICT_FAILED
    assert found.failures[0].startswith("the gate can't run: components.trainer.gate.check: ")
    assert message in found.failures[0]


@pytest.mark.parametrize(("name", "message"), [
    ("my_check", "MODULE:FUNCTION is needed"),
    ("my_other_check:f", "can't be imported: ModuleNotFoundError"),
    ("my_check:other", "can't be imported: AttributeError"),
    ("my_check:number", "is no function but a int"),
])
def test_a_check_that_there_is_not_is_told_before_a_step(
        tmp_path: Path, check: Path, name: str, message: str) -> None:
    tried = gate(tmp_path, check=name)
    with pytest.raises(GateError, match=message):
        tried.check_settings()
    assert message in tried.problem


def test_whatever_goes_wrong_passes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def evaluate(*args: object, **kwargs: object) -> Evaluation:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(FakeBackend, "evaluate", evaluate)
    assert list(report(tmp_path).failures) == ["the gate can't run: RuntimeError: out of memory"]


# What becomes of a version


class Rig:
    """A learner whose versions are tried."""

    def __init__(self, root: Path, model: Path, **settings: object) -> None:
        config = TrainerConfig(min_samples=1, gate=settings)
        self.store = TrainerStore(root / "state.db", "group", config)
        self.learner = Learner(config, self.store, root, lambda: model, 2, FakeBackend)
        self.learner.open()

    def step(self, *turn_ids: str):
        self.store.intake.accept([make_sample(turn_id) for turn_id in turn_ids])
        return self.learner.train()


def test_a_refused_version_is_kept_and_not_built_on(tmp_path: Path, model: Path) -> None:
    rig = Rig(tmp_path, model)
    assert rig.step("a").version == 1
    FakeBackend.says = LOOP
    refused = rig.step("b", "c")
    assert (refused.version, refused.parent, refused.gate.verdict) == (2, 1, weights_pb2.GATE_VERDICT_FAILED)
    assert (rig.store.versions.head, rig.store.versions.highest) == (1, 2)
    known = rig.store.versions.get(2)
    assert known is not None and known.manifest == refused
    assert str(known.status).startswith("refused by the gate, it never served: 100% of the answers")
    assert rig.learner.versions.verify(2), "it is kept, so that a person can look at it"
    rig.learner.tidy(set())
    # Its turns have their one fate; they do not come again.
    statuses = rig.store.samples.statuses(["b", "c"])
    assert [(s.fate, s.version) for s in statuses] == [(trainer_pb2.SAMPLE_FATE_TRAINED, 2)] * 2
    FakeBackend.says = ("a fair answer", list(range(10)), 12.0)
    after = rig.step("d")
    assert (after.version, after.parent, list(after.turn_ids)) == (3, 1, ["d"])
    backend = FakeBackend.created[-1]
    assert backend.start.weights and backend.start.optimizer, "from its parent, as if it had never been"
    assert backend.steps == 2
    rig.store.close()


def test_the_learner_tells_the_gate_of_the_step_and_of_the_versions_before(
        tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig, step = Rig(tmp_path, model), FakeBackend.step
    FakeBackend.says = ("a fair answer", list(range(10)), 7.0)
    assert not rig.step("a").gate.failures
    FakeBackend.says = ("a fair answer", list(range(10)), 8.9)
    with monkeypatch.context() as patch:
        patch.setattr(FakeBackend, "step", lambda *args: step(*args) | {
            "hint_distance_before": 0.02, "hint_distance_after": 0.04})
        refused = rig.step("b")
    perplexity, hints = refused.gate.failures
    assert perplexity.startswith("perplexity of good answers is 8.9, the best of the versions before it 7; allowed is ")
    assert hints.startswith("the hints that it was trained on are followed less well than before it: ")
    FakeBackend.says = ("a fair answer", list(range(10)), 8.7)
    assert not rig.step("c").gate.failures
    assert rig.store.versions.head == 3
    rig.store.close()


def test_the_verdict_is_in_the_manifest_and_not_in_the_digest(tmp_path: Path, model: Path) -> None:
    with_gate = Rig(tmp_path / "a", model).step("a")
    without = Rig(tmp_path / "b", model, enabled=False).step("a")
    assert with_gate.gate.verdict == weights_pb2.GATE_VERDICT_PASSED
    assert without.gate.verdict == weights_pb2.GATE_VERDICT_UNSPECIFIED
    assert with_gate.digest == without.digest
    stored = json.loads((tmp_path / "a" / "versions" / "1" / "manifest.json").read_text())["manifest"]
    assert stored["gate"]["verdict"] == "GATE_VERDICT_PASSED"


def test_prompts_that_are_gone_stop_the_training_and_cost_no_sample(tmp_path: Path, model: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "a", "answer": "b"}')
    rig = Rig(tmp_path, model, prompts=file)
    assert rig.learner.gate.problem == ""
    file.unlink()
    with pytest.raises(CannotTrain, match=r"the gate can't run: .*prompts\.jsonl: No such file"):
        rig.step("a")
    assert rig.learner.gate.problem
    assert [s.turn_id for s in rig.store.samples.statuses([])] == ["a"]
    file.write_text('{"prompt": "a", "answer": "b"}')
    assert rig.learner.train().version == 1
    assert rig.learner.gate.problem == ""


def test_bad_settings_are_told_at_the_start(tmp_path: Path, model: Path) -> None:
    rig = Rig(tmp_path, model, prompts=tmp_path / "none.jsonl")
    assert "none.jsonl: No such file or directory" in rig.learner.gate.problem


def test_a_stop_during_the_gate_costs_nothing(
        tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(tmp_path, model)

    def evaluate(*args: object, **kwargs: object) -> Evaluation:
        raise Stopped

    monkeypatch.setattr(FakeBackend, "evaluate", evaluate)
    assert rig.step("a") is None
    monkeypatch.undo()
    assert rig.store.versions.head == 0
    assert rig.learner.train().version == 1
    assert FakeBackend.created[-1].steps == 1, "the step that was given up is not in it"


def test_judges_and_panel_are_in_the_manifest(tmp_path: Path, model: Path) -> None:
    from openclaw_rl.v1 import turn_pb2

    rig = Rig(tmp_path, model)
    samples = [make_sample("a"), make_sample("b")]
    samples[0].judgement.votes.extend([turn_pb2.Vote(judge="rules", score=-1),
                                       turn_pb2.Vote(judge="llm:m", error="no answer")])
    samples[1].judgement.votes.extend([turn_pb2.Vote(judge="llm:m", score=-1), turn_pb2.Vote(judge="rules")])
    samples[1].judgement.panel = "1 x llm:m, guarded by rules"
    rig.store.intake.accept(samples)
    manifest = rig.learner.train()
    assert dict(manifest.judges) == {"rules": 2, "llm:m": 1}
    assert manifest.settings["judge_panel"] == "1 x llm:m, guarded by rules"
