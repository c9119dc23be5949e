"""Evaluation gate that a new version must pass on held-out prompts before it is offered to the policy servers.

Bounds are against the base model's figures and the best ones of the versions that it was made from, not against those
of the version before: many small steps, each within bounds of the last one, could otherwise walk anywhere. Half of the
answers are drawn at the temperature that users get, since a version may be fine where it is surest and nowhere else.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import logging
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from google.protobuf.json_format import MessageToDict, ParseDict, ParseError

from openclaw_rl.config import GateConfig
from openclaw_rl.training.backends.interface import Backend, BackendLost, Evaluation, HeldOut, Stopped
from openclaw_rl.training.buffer.repetition import looping
from openclaw_rl.training.release import answers, held_out
from openclaw_rl.v1 import weights_pb2
from openclaw_rl.weights.files import write_durably

logger = logging.getLogger(__name__)

#: Answers kept in a version's manifest, and characters of each.
SAMPLES, _CUT = 8, 400
#: Raised when figures can't be compared with earlier ones any more.
_FIGURES = 2
#: Figures that are compared with the best of earlier versions, and which value is the best.
_BEST: dict[str, Callable[[Iterable[float]], float]] = {"perplexity": min, "margin": max, "relevant": max}
_CONFIG = "components.trainer.gate"

Check = Callable[[list[dict[str, str]]], Any]


class GateError(Exception):
    """The gate can't run; the text says why and what to do. No version passes meanwhile."""


class Gate:
    """Tries versions on held-out prompts.

    Args:
        config: its bounds.
        root: the trainer's folder; the base model's figures are kept there.
        model_id: of the base model.
        limit: held-out prompts that are asked, the first ones; None: all.

    Attributes:
        problem: why it can't be asked at all, so that nothing is trained; empty when it can.
    """

    def __init__(self, config: GateConfig, root: Path, model_id: str, limit: int | None = None) -> None:
        self.problem = ""
        self._config, self._file, self._model_id, self._limit = config, root / "gate.json", model_id, limit

    def check_settings(self) -> None:
        """Check that the prompts can be read and the user's check imported.

        Raises:
            GateError: they can't; `problem` says so until they can.
        """
        try:
            if self._config.enabled:
                self._prompts()
                self._check()
            self.problem = ""
        except GateError as error:
            self.problem = str(error)
            raise

    def report(self, backend: Backend, stop: Callable[[], bool] = lambda: False,
               ancestors: Iterable[weights_pb2.GateReport] = (),
               step: Mapping[str, float] | None = None) -> weights_pb2.GateReport:
        """Evaluate the version that `backend` holds. A version that can't be evaluated never passes.

        Args:
            stop: asked now and then; true gives it up.
            ancestors: reports of the versions that it was made from. One that was measured otherwise (other prompts or
                settings, so another `before`) does not count.
            step: figures of the step that made it.

        Raises:
            Stopped: it was given up.
            BackendLost: it ended, which says nothing about the version.
        """
        if not self._config.enabled:
            return weights_pb2.GateReport()
        started = time.perf_counter()
        report = weights_pb2.GateReport()
        try:
            self._fill(report, backend, stop, ancestors, step or {})
        except (Stopped, BackendLost):
            raise
        except Exception as error:  # whatever it was: fail closed
            logger.warning("the gate can't run: %s", error, exc_info=not isinstance(error, GateError))
            text = str(error) if isinstance(error, GateError) else f"{type(error).__name__}: {error}"
            report.failures.append(f"the gate can't run: {text}")
        report.metrics["seconds"] = time.perf_counter() - started
        report.verdict = weights_pb2.GATE_VERDICT_FAILED if report.failures else weights_pb2.GATE_VERDICT_PASSED
        return report

    def _fill(self, report: weights_pb2.GateReport, backend: Backend, stop: Callable[[], bool],
              ancestors: Iterable[weights_pb2.GateReport], step: Mapping[str, float]) -> None:
        prompts, check = self._prompts(), self._check()
        before = self._base_figures(prompts, backend, stop)
        tried = backend.evaluate(prompts, self._config.max_new_tokens, stop)
        report.before.update(before)
        _tell(report, prompts, tried)
        report.failures.extend(out_of_bounds(
            self._config, dict(report.metrics), before,
            best([dict(other.metrics) for other in ancestors if dict(other.before) == before and not other.failures])))
        report.failures.extend(hints_forgotten(self._config, step))
        if check is not None:
            report.failures.extend(self._ask(check, [{"prompt": prompt.prompt, "answer": answer.text}
                                                     for prompt, answer in zip(prompts, tried.answers, strict=True)]))

    def _prompts(self) -> list[HeldOut]:
        try:
            prompts = held_out.read(self._config.prompts or held_out.DEFAULT)[:self._limit]
        except held_out.HeldOutError as error:
            raise GateError(f"{_CONFIG}.prompts: {error}") from None
        return [replace(prompt, temperature=self._config.temperature) if i % 2 else prompt
                for i, prompt in enumerate(prompts)]

    def _check(self) -> Check | None:
        name = self._config.check
        if name is None:
            return None
        module, colon, function = name.partition(":")
        if not (module and colon and function):
            raise GateError(f"{_CONFIG}.check: {name!r} is not allowed: MODULE:FUNCTION is needed")
        # As for `python -m`: a module in the folder that the mesh was started in is found.
        if os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())
        try:
            found = getattr(importlib.import_module(module), function)
        except Exception as error:  # what a module does when it is imported is not ours
            raise GateError(f"{_CONFIG}.check: {name} can't be imported: {type(error).__name__}: {error}") from None
        if not callable(found):
            raise GateError(f"{_CONFIG}.check: {name} is no function but a {type(found).__name__}")
        return cast(Check, found)

    def _ask(self, check: Check, answers: list[dict[str, str]]) -> list[str]:
        try:
            found = check(answers)
        except Exception as error:
            raise GateError(f"{_CONFIG}.check: {self._config.check} raised {type(error).__name__}: {error}") from None
        if not isinstance(found, list) or not all(isinstance(sentence, str) for sentence in found):
            raise GateError(f"{_CONFIG}.check: {self._config.check} returned {str(found)[:80]!r}: a list of sentences "
                            "is needed, empty when all is well")
        return [f"{self._config.check}: {sentence}" for sentence in found]

    def base(self) -> weights_pb2.GateReport | None:
        """Return the base model's report; None when it was not evaluated on these prompts with these settings."""
        try:
            kept = json.loads(self._file.read_bytes())
            if kept["key"] == self._key(self._prompts()):
                report = weights_pb2.GateReport()
                ParseDict(kept["report"], report)
                return report
        except FileNotFoundError:
            pass
        except GateError:
            pass  # told by `check_settings`
        except (OSError, ValueError, KeyError, TypeError, ParseError) as error:
            logger.warning("%s is unusable and will be recreated: %s", self._file, error)
        return None

    def _base_figures(self, prompts: Sequence[HeldOut], backend: Backend,
                      stop: Callable[[], bool]) -> dict[str, float]:
        """Return the base model's figures, from disk or computed and kept there."""
        report = self.base()
        if report is None or not {"mean_tokens", "degenerate", "alike"} <= set(report.metrics):
            report = weights_pb2.GateReport()
            _tell(report, prompts, backend.evaluate(prompts, self._config.max_new_tokens, stop, base=True))
            try:
                write_durably(self._file, json.dumps({"key": self._key(prompts), "report": MessageToDict(
                    report, preserving_proto_field_name=True)}).encode())
            except OSError as error:
                logger.warning("%s can't be written; the next version evaluates the base model again: %s",
                               self._file, error)
        return dict(report.metrics)

    def _key(self, prompts: Sequence[HeldOut]) -> str:
        what = [_FIGURES, self._model_id, held_out.digest(prompts), self._config.max_new_tokens,
                self._config.temperature]
        return hashlib.sha256(json.dumps(what).encode()).hexdigest()


def _tell(report: weights_pb2.GateReport, prompts: Sequence[HeldOut], tried: Evaluation) -> None:
    """Add figures and some answers to a report: greedy ones, in which versions differ by what they learned alone."""
    report.metrics.update(figures(prompts, tried))
    greedy = [pair for pair in zip(prompts, tried.answers, strict=True) if not pair[0].temperature]
    for prompt, answer in greedy[:SAMPLES]:
        report.answers.add(prompt=prompt.prompt[:_CUT], answer=answer.text[:_CUT], tokens=len(answer.ids))


def figures(prompts: Sequence[HeldOut], evaluation: Evaluation) -> dict[str, float]:
    """Return `perplexity` of the good answers, where it is known; `mean_tokens` of those given; `degenerate`, the share
    of those that are empty or repeat one phrase (buffer.repetition); the shares of answers.figures; and `parts` of the
    evaluation."""
    given = evaluation.answers
    bad = sum(not answer.text.strip() or looping(answer.ids) for answer in given)
    known = {} if evaluation.perplexity is None else {"perplexity": evaluation.perplexity}
    return {**known, "mean_tokens": sum(len(a.ids) for a in given) / len(given), "degenerate": bad / len(given),
            **answers.figures(prompts, [answer.text for answer in given]), **evaluation.parts}


def best(reports: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the best of each figure that is compared with earlier versions'; none where there is no report."""
    return {name: choose(found[name] for found in reports if name in found)
            for name, choose in _BEST.items() if any(name in found for found in reports)}


def out_of_bounds(config: GateConfig, now: dict[str, float], before: dict[str, float],
                  ancestors: dict[str, float] | None = None) -> list[str]:
    """Return a sentence for each of a version's figures that is out of bounds.

    Args:
        now, before: figures of the version, and of the base model.
        ancestors: the best figures of the versions that it was made from.
    """
    found = []
    others = [("the base model's", before, config.max_perplexity_ratio, "max_perplexity_ratio"),
              ("the best of the versions before it", ancestors or {}, config.max_perplexity_growth,
               "max_perplexity_growth")]
    for whose, figure, ratio, setting in others:
        limit = ratio * figure.get("perplexity", math.inf)
        if "perplexity" in now and "perplexity" in figure and not now["perplexity"] <= limit < math.inf:
            found.append(f"perplexity of good answers is {now['perplexity']:.4g}, {whose} "
                         f"{figure['perplexity']:.4g}; allowed is {limit:.4g} ({setting})")
        if "margin" in now and "margin" in figure and not now["margin"] >= figure["margin"] - config.max_margin_drop:
            found.append(f"good answers are likelier than wrong ones by {now['margin']:.3g} nats a token, {whose} by "
                         f"{figure['margin']:.3g}; allowed is a fall by {config.max_margin_drop:g} (max_margin_drop)")
        share = config.min_relevant_ratio * figure.get("relevant", 0.0)
        if now.get("relevant", 1.0) < share:
            found.append(f"{now['relevant']:.0%} of the answers say something of what was asked for, {whose} "
                         f"{figure['relevant']:.0%}; allowed is {share:.0%} (min_relevant_ratio)")
    least, most = (ratio * before["mean_tokens"] for ratio in (config.min_tokens_ratio, config.max_tokens_ratio))
    if not least <= now["mean_tokens"] <= most:
        found.append(f"answers have {now['mean_tokens']:.3g} tokens on average, the base model's "
                     f"{before['mean_tokens']:.3g}; allowed is {least:.3g} to {most:.3g} (min_tokens_ratio, "
                     "max_tokens_ratio)")
    for name, what in (("degenerate", "are empty or one phrase again and again"),
                       ("alike", "are like the answer to another prompt"), ("refusing", "refuse")):
        share = max(config.max_degenerate, before.get(name, 0.0))
        if now.get(name, 0.0) > share:
            found.append(f"{now[name]:.0%} of the answers {what}; allowed is {share:.0%} (max_degenerate)")
    return found


def hints_forgotten(config: GateConfig, step: Mapping[str, float]) -> list[str]:
    """Return a sentence when a step led away from what the model says with the hints that it was to learn from, its own
    and those of earlier steps that it was shown again.

    Args:
        step: its figures, with `hint_distance_before` and `_after` where it had hints; see algorithms.objective.
    """
    if "hint_distance_after" not in step:
        return []
    before, after = step["hint_distance_before"], step["hint_distance_after"]
    limit = config.max_hint_growth * before
    return [] if after <= limit else [
        f"the hints that it was trained on are followed less well than before it: its distance to the model with "
            f"the hint is {after:.3g} nats a token, before {before:.3g}; allowed is {limit:.3g} (max_hint_growth)"]
