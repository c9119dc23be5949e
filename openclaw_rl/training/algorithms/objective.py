"""Objective of a training step: the configured losses of a batch, piece by piece, and the step's figures."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from openclaw_rl.config import TrainerConfig
from openclaw_rl.training.algorithms import losses
from openclaw_rl.training.algorithms.example import AbnormalStep, Example

#: Tokens whose logits, by far the largest tensors (tokens x vocabulary), exist at once.
LOGIT_ROWS = 128

_HINTS = "hint_distance_before", "hint_distance_after"


def pieces(tokens: int) -> Iterator[slice]:
    """Yield the parts of a response, of LOGIT_ROWS tokens each."""
    return (slice(begin, begin + LOGIT_ROWS) for begin in range(0, tokens, LOGIT_ROWS))


@dataclass(frozen=True, slots=True)
class Totals:
    """Tokens of a batch: the divisors of its token means, known before its first piece is computed."""

    samples: int  #: new ones: those that are replayed are not among them
    tokens: int  #: response tokens of new samples
    hinted: int  #: response tokens of samples whose teacher has a hint, new or replayed
    episodes: bool  #: they are steps of episodes, which have advantages; else turns of users

    @classmethod
    def of(cls, examples: Sequence[Example]) -> Totals:
        new = [e for e in examples if not e.replayed]
        return cls(sum(e.turns for e in new), sum(len(e.response_ids) for e in new),
                   sum(len(e.response_ids) for e in examples if e.teacher_prompt_ids is not None),
                   any(e.advantages is not None for e in examples))


class Objective:
    """loss = distillation + weight x policy gradient + kl_weight x KL(student || frozen base)

    | algorithm | distillation (over tokens of hinted turns) | weight of the score's policy gradient (over all tokens) |
    |---|---|---|
    | binary_rl | none | 1 |
    | opd | `opd` | 0 |
    | opd_full | `opd_full` | 0 |
    | combine | `opd_full` | `reward_weight` |

    The policy gradient's advantage is the score; of `combine`, the score minus its recent mean (`Example.baseline`), so
    that praise has a weight where it is rare, and a judge that always says the same has none (a baseline as in
    REINFORCE, Williams, Machine Learning 8, 1992).

    Steps of episodes are learned from by GRPO, whatever the algorithm: loss = clipped surrogate of their advantages, at
    `grpo.clip_low` and `grpo.clip_high`, + `grpo.kl_weight` x KL, both a mean over all tokens.

    Distillation and policy gradient are means over those tokens. The KL is `kl_k3`, weighted by the importance ratio, a
    mean over all tokens. Samples that are replayed are distilled and nothing else: "all tokens" are those of new ones.
    `version` is the policy version that the student is before the step.
    """

    def __init__(self, config: TrainerConfig, totals: Totals, version: int) -> None:
        self._config = config
        self._totals = totals
        self._version = version
        self._reward_weight = {"binary_rl": 1.0, "combine": config.reward_weight}.get(config.algorithm, 0.0)
        self.distils = config.algorithm != "binary_rl" and not totals.episodes
        self._kl_weight, self._low, self._high = config.kl_weight, config.clip_ratio, config.clip_ratio
        names = ["loss", "distillation", "reward_loss", "kl", "mean_ratio", "clipped", "truncated", "step_kl",
                 "kl_after", *_HINTS]
        if totals.episodes:
            self._reward_weight, self._kl_weight = 1.0, config.grpo.kl_weight
            self._low, self._high = config.grpo.clip_low, config.grpo.clip_high
            names += ["clipped_low", "clipped_high", "entropy"]
        self._sums = dict.fromkeys(names, 0.0)
        # Of each piece of the batch: which way its tokens are to go, log-probabilities before the step, those of the
        # base model.
        self._before: list[tuple[Tensor, Tensor, Tensor]] = []
        self._scores = 0
        self.compare_again()
        self._difference_sum, self._difference_max, self._compared = 0.0, 0.0, 0

    def __call__(self, example: Example, rows: slice, ids: Tensor, behaviour: Tensor, *, student: Tensor,
                 base: Tensor | None, teacher: Tensor | None) -> Tensor:
        """Return the share of the batch's loss that some response tokens of a sample have.

        Args:
            example: the sample.
            rows: which of its response tokens.
            ids, behaviour: (r,), those tokens and their recorded log-probabilities.
            student, base, teacher: (r, V) logits; base None when it is replayed, teacher None without a hint.
        """
        cap, totals = self._config.importance_cap, self._totals
        logprobs = losses.token_logprobs(student, ids)
        zero = logprobs.new_zeros(())
        distillation = reward = zero
        if teacher is not None:
            values = divergence = losses.opd_full(student, teacher)
            if self._config.algorithm == "opd":
                values = losses.opd(logprobs, behaviour, losses.token_logprobs(teacher, ids), self._low, cap)
            distillation = losses.token_mean([values], totals.hinted)
            self._sums["hint_distance_before"] += losses.token_mean([divergence.detach()], totals.hinted).item()
        if base is None:
            self._sums["loss"] += distillation.item()
            self._sums["distillation"] += distillation.item()
            return distillation
        advantage = example.score - example.baseline if example.score else 0.0
        advantages = torch.full_like(logprobs, advantage, requires_grad=False)
        if example.advantages is not None:
            advantages = torch.tensor(example.advantages[rows], device=logprobs.device)
        if self._reward_weight and (example.score or totals.episodes):
            reward = losses.token_mean([losses.policy_gradient(
                logprobs, behaviour, advantages, self._low, cap, self._high)], totals.tokens)
        ratio = losses.importance_ratio(logprobs.detach(), behaviour, cap)
        base_logprobs = losses.token_logprobs(base, ids)
        kl = losses.token_mean([ratio * losses.kl_k3(logprobs, base_logprobs)], totals.tokens)
        loss = distillation + self._reward_weight * reward + self._kl_weight * kl
        if totals.episodes:
            self._sums["entropy"] += losses.token_mean([losses.entropy(student.detach())], totals.tokens).item()
        ways = advantages if example.advantages is not None else torch.full_like(logprobs, example.score)
        self._before.append((ways.sign(), logprobs.detach(), base_logprobs))
        if rows.start == 0:
            self._scores += example.score
        self._note(example, rows, logprobs.detach(), behaviour, ratio, loss=loss, distillation=distillation,
                   reward_loss=reward, kl=kl)
        return loss

    @torch.no_grad()
    def _note(self, example: Example, rows: slice, logprobs: Tensor, behaviour: Tensor, ratio: Tensor,
              **parts: Tensor) -> None:
        for name, value in parts.items():
            self._sums[name] += value.item()
        tokens, cap = self._totals.tokens, self._config.importance_cap
        self._sums["mean_ratio"] += ratio.sum().item() / tokens
        low, high = ((part.sum().item() / tokens) for part in (ratio < 1 - self._low, ratio > 1 + self._high))
        self._sums["clipped"] += low + high
        if self._totals.episodes:
            self._sums["clipped_low"] += low
            self._sums["clipped_high"] += high
        self._sums["truncated"] += (logprobs - behaviour > math.log(cap)).sum().item() / tokens
        # Only tokens of the very version in training tell how far engine and trainer compute apart; for older ones
        # the difference is what was learned since.
        same = torch.tensor([v == self._version for v in example.versions[rows]], device=logprobs.device)
        difference = (logprobs - behaviour).abs()[same]
        if difference.numel():
            self._difference_sum += difference.sum().item()
            self._difference_max = max(self._difference_max, difference.max().item())
            self._compared += difference.numel()

    def compare_again(self) -> None:
        """Begin to measure the step: `moved` is told all pieces of new samples next, `followed` all of hinted ones."""
        self._compared_pieces = 0
        self._sums["step_kl"] = self._sums["kl_after"] = self._sums["hint_distance_after"] = 0.0
        self._groups = {name: [0.0, 0.0, 0] for name in ("", "_praised", "_complained")}  # before, after, tokens

    @torch.no_grad()
    def moved(self, ids: Tensor, behaviour: Tensor, student: Tensor) -> None:
        """Note how far the step moved the policy, and where to: `step_kl`, the mean KL(before || after) over the
        batch's tokens, and what `metrics` tells of before and after.

        KLs are `kl_k3` with the importance ratio of the policy that they are of. Must be told the same pieces of new
        samples in the same order as the loss was.

        Args:
            ids, behaviour: as for the loss.
            student: (r, V) logits after the step.
        """
        ways, before, base = self._before[self._compared_pieces]
        self._compared_pieces += 1
        after, cap, tokens = losses.token_logprobs(student, ids), self._config.importance_cap, self._totals.tokens
        ratio = losses.importance_ratio(before, behaviour, cap)
        self._sums["step_kl"] += losses.token_mean([ratio * losses.kl_k3(before, after)], tokens).item()
        ratio = losses.importance_ratio(after, behaviour, cap)
        self._sums["kl_after"] += losses.token_mean([ratio * losses.kl_k3(after, base)], tokens).item()
        for name, counts in (("", ways >= -1), ("_praised", ways > 0), ("_complained", ways < 0)):
            group = self._groups[name]
            group[0] += before[counts].sum().item()
            group[1] += after[counts].sum().item()
            group[2] += int(counts.sum())

    @torch.no_grad()
    def followed(self, student: Tensor, teacher: Tensor) -> None:
        """Note how far from the teacher a piece of a hinted sample, new or replayed, is after the step; (r, V) logits
        each."""
        self._sums["hint_distance_after"] += losses.token_mean(
            [losses.opd_full(student, teacher)], self._totals.hinted).item()

    def noted(self) -> tuple[list[float], float]:
        """Return what `metrics` is computed from: figures that add up over processes that share the batch (each with an
        Objective of the batch's Totals), and the one of which the largest counts."""
        return [*self._sums.values(), float(self._scores), *(x for group in self._groups.values() for x in group),
                self._difference_sum, float(self._compared)], self._difference_max

    def metrics(self, noted: tuple[Sequence[float], float] | None = None) -> dict[str, float]:
        """Return the figures of the batch. `clipped` and `truncated` are shares of its tokens; `logprob_diff_*` (nats)
        compare engine and trainer and are left out when no token is of the version in training. `score_mean` is what
        was thought of its turns.

        Before the step are all losses, `kl` (to the base model) and `logprob_before`; after it `kl_after` and
        `logprob_after`: the mean log-probability of the response tokens, in nats, also of the turns that were praised
        and of those complained about alone (`logprob_praised_before`, ...; of episodes, of the steps with an advantage
        above and below 0), where there are any: the step should make the former more probable and the latter less.
        `hint_distance_before` and `_after` are the mean Jensen-Shannon divergence to the teacher over the tokens of
        hinted samples, new and replayed, in nats, where there are any: it should fall.

        Of episodes there are also `clipped_low` and `clipped_high`, parts of `clipped`, and `entropy` of the policy at
        the response tokens before the step, in nats.

        Args:
            noted: of all processes that share the batch; default: this one has all of it.
        """
        added, largest = noted or self.noted()
        values = iter(added)
        figures = {name: next(values) for name in self._sums} | {
            "samples": float(self._totals.samples),
            "tokens": float(self._totals.tokens),
            "hinted_tokens": float(self._totals.hinted),
            "score_mean": next(values) / self._totals.samples,
        }
        for name in self._groups:
            before, after, tokens = next(values), next(values), next(values)
            if tokens:
                figures |= {f"logprob{name}_before": before / tokens, f"logprob{name}_after": after / tokens}
        if not (self.distils and self._totals.hinted):
            for name in _HINTS:
                del figures[name]
        difference, compared = values
        if compared:
            figures["logprob_diff_mean"] = difference / compared
            figures["logprob_diff_max"] = largest
            figures["logprob_diff_tokens"] = compared
        return figures


#: Norms beyond this many times `max_grad_norm` are not clipped but refused.
EXPLODING = 1000.0


def check_gradients(loss: float, norm: float, config: TrainerConfig) -> None:
    """Refuse a step before it is made.

    Args:
        loss: the batch's.
        norm: of all gradients, before they are clipped.
    Raises:
        AbnormalStep: one isn't finite, or the norm is over EXPLODING.
    """
    limit = EXPLODING * config.max_grad_norm
    if not math.isfinite(loss):
        raise AbnormalStep(f"the loss is {loss}")
    if not math.isfinite(norm) or norm > limit:
        raise AbnormalStep(f"the gradient's norm is {norm:.3g}, the limit is {limit:g}")

