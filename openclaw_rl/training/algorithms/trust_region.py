"""Trust region of a step: its length is bounded by how far it moves the policy.

AdamW's step has a length that its gradient does not decide: from fresh moments every weight moves by the whole learning
rate, however noisy the batch. What it does to the policy is measured on the batch (`step_kl`), and a step that goes
further than `max_kl` is shortened along its way until it doesn't. For small steps the KL grows with the square of the
length (TRPO, Schulman et al., arXiv:1502.05477, appendix C, searches along the line in the same way), so that one or
two measurements find it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch.optim import AdamW

from openclaw_rl.config import TrainerConfig
from openclaw_rl.training.algorithms.example import AbnormalStep

#: A step that went this many times `max_kl` is refused and not shortened: of such a batch no part is to be trusted.
RUNAWAY = 50.0
#: Measurements of a step's length; each but the last may shorten it.
MEASUREMENTS = 4
#: A shortened step aims a little below the limit, so that the next measurement is within it.
_MARGIN = 0.9


def shortening(step_kl: float, config: TrainerConfig, measurement: int) -> float | None:
    """Return which share of a step's present length to keep; None when it is within `max_kl`.

    Args:
        step_kl: mean KL(before || after) of the step at its present length, in nats per token.
        measurement: how many measurements there were before, of MEASUREMENTS.

    Raises:
        AbnormalStep: the step can't be trusted at any length, or is still too long after the last measurement.
    """
    if step_kl <= config.max_kl:
        return None
    if not step_kl <= RUNAWAY * config.max_kl or measurement + 1 >= MEASUREMENTS:
        raise AbnormalStep(f"the policy moved {step_kl:.3g} nats per token, max_kl is {config.max_kl:g}")
    return _MARGIN * math.sqrt(config.max_kl / step_kl)


def stay_near(measure: Callable[[], dict[str, float]], shorten: Callable[[float, float], None],
              config: TrainerConfig) -> tuple[dict[str, float], float]:
    """Measure what a step did, and shorten one that went too far.

    Args:
        measure: compares the policy with the one before the step, on the batch; returns the figures, with `step_kl`.
        shorten: takes back a part of the step, as the function `shorten` does, of its arguments `taken` and `keep`.

    Returns:
        The figures of the last measurement, and the share of the step that is left.

    Raises:
        AbnormalStep: see `shortening`.
    """
    share, measurement = 1.0, 0
    while (keep := shortening((metrics := measure())["step_kl"], config, measurement)) is not None:
        shorten(share, keep)
        share, measurement = share * keep, measurement + 1
    return metrics, share


@torch.no_grad()
def shorten(optimizer: AdamW, taken: float, keep: float) -> None:
    """Take back a part of AdamW's last step. The step is computed from the moments that made it, so no copy of the
    weights is needed.

    Args:
        optimizer: without weight decay.
        taken: share of the step that was left so far.
        keep: share of that to leave.
    """
    for group in optimizer.param_groups:
        beta1, beta2 = group["betas"]
        for parameter in group["params"]:
            if not (state := optimizer.state.get(parameter)):
                continue  # it had no gradient
            count = float(state["step"])
            scale = state["exp_avg_sq"].sqrt().div_(math.sqrt(1 - beta2**count)).add_(group["eps"])
            parameter.addcdiv_(state["exp_avg"], scale, value=taken * (1 - keep) * group["lr"] / (1 - beta1**count))
