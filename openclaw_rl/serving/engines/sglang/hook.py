"""The hook inside SGLang's scheduler: exact log-probabilities, versions, and seeds; see `request_tag`.

SGLang finds `register` by the entry point `openclaw_rl` of the group `sglang.srt.plugins` (its plug-in mechanism) and
runs it in each of its processes.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from typing import Any

from openclaw_rl.serving.engines.sglang import request_tag

_SAMPLER = "sglang.srt.layers.sampler.Sampler.forward"
_SHAPING = "sglang.srt.sampling.sampling_batch_info.SamplingBatchInfo.apply_logits_bias"


def register() -> None:
    """Hook SGLang's sampler and what comes before it, only in servers started for this engine."""
    if os.environ.get(request_tag.VARIABLE):
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType

        HookRegistry.register(_SAMPLER, sampler_forward, HookType.AROUND)
        HookRegistry.register(_SHAPING, shape, HookType.AROUND)


def shape(original: Callable[..., Any], sampling_info: Any, logits: Any) -> None:
    """Wrap SamplingBatchInfo.apply_logits_bias and keep the model's own logits, where penalties, a bias or a grammar
    change them in place."""
    orchestrator = sampling_info.penalizer_orchestrator
    if (orchestrator and orchestrator.is_required) or any(
            getattr(sampling_info, name, None) is not None
            for name in ("acc_additive_penalties", "acc_scaling_penalties", "grammar_mask", "logit_bias")):
        sampling_info.openclaw_rl_logits = logits.clone()
    original(sampling_info, logits)


def sampler_forward(original: Callable[..., Any], sampler: Any, logits_output: Any, sampling_info: Any,
                    return_logprob: bool, top_logprobs_nums: Any, token_ids_logprobs: Sequence[Sequence[int] | None],
                    *args: Any, **kwargs: Any) -> Any:
    """Wrap Sampler.forward and add exact figures for tagged requests. Returns token ids [requests]."""
    rows = [i for i, ids in enumerate(token_ids_logprobs or []) if request_tag.asked(ids)] if return_logprob else []
    if not rows:
        return original(sampler, logits_output, sampling_info, return_logprob, top_logprobs_nums, token_ids_logprobs,
                        *args, **kwargs)
    # The sampler works in place and overwrites its input.
    logits = logits_output.next_token_logits[rows].float()
    own = getattr(sampling_info, "openclaw_rl_logits", None)
    if own is not None:
        sampling_info.openclaw_rl_logits = None
        own = own[rows].float()
    positions: Any = kwargs.get("positions", args[0] if args else None)
    drawn = original(sampler, logits_output, sampling_info, return_logprob, top_logprobs_nums, token_ids_logprobs,
                     *args, **kwargs)
    asked = [token_ids_logprobs[i] or [] for i in rows]
    seeds = [request_tag.seed_of(ids) for ids in asked]
    if any(seed is not None for seed in seeds):
        at = positions[rows].tolist()
        uniform = [None if seed is None else random.Random(f"{seed} {place}").random()
                   for seed, place in zip(seeds, at, strict=True)]
    else:
        uniform = [None] * len(rows)
    min_ps = sampling_info.min_ps[rows] if getattr(sampling_info, "need_min_p_sampling", False) else None
    ids, model, chosen = figures(
        logits, drawn[rows], sampling_info.temperatures[rows], sampling_info.top_ps[rows],
        sampling_info.top_ks[rows], uniform, min_ps, own)
    drawn[rows] = ids.to(drawn.dtype)
    version = served_version()
    for i, row in enumerate(rows):
        values = model.new_zeros(len(asked[i]))
        values[0], values[1], values[2] = model[i], chosen[i], version
        logits_output.next_token_token_ids_logprobs_val[row] = values
    if logits_output.next_token_logprobs is not None:  # of the final token, in case a seed chose another
        logits_output.next_token_logprobs[rows] = model.to(logits_output.next_token_logprobs.dtype)
    return drawn


def figures(logits: Any, drawn: Any, temperatures: Any, top_ps: Any, top_ks: Any,
            uniform: Sequence[float | None], min_ps: Any = None, model_logits: Any = None) -> tuple[Any, Any, Any]:
    """Compute tokens and their log-probabilities (natural), of the model and of the sampling distribution.

    The sampling distribution is softmax(logits / temperature), cut to the likeliest tokens preceded by less than top_p
    of the mass (at most top_k of them, none below min_p times the likeliest one), and normalized.

    Args:
        logits: float32 [rows, vocabulary], with penalties, bias and grammar.
        drawn: token ids [rows] that SGLang drew.
        temperatures, top_ps, top_ks: [rows], or [rows, 1]; top_k 1 is greedy.
        uniform: for each row a number in [0, 1) that draws its token, or None to keep SGLang's.
        min_ps: [rows], or [rows, 1]; None: all 0.
        model_logits: the model's own, as `logits`; None: the same.

    Returns:
        ids [rows] (int64), model's and drawn log-probabilities [rows] (float64).
    """
    import torch

    ids = drawn.long().clone()
    temperatures, top_ps, top_ks = (value.reshape(-1) for value in (temperatures, top_ps, top_ks))
    p = torch.softmax(logits / temperatures[:, None], dim=-1, dtype=torch.float64)
    chosen = torch.empty_like(p[:, 0])
    for row, (top_p, top_k) in enumerate(zip(top_ps.tolist(), top_ks.tolist(), strict=True)):
        mass = p[row]
        if top_p < 1 or top_k < mass.shape[0]:
            mass = _cut(mass, top_p, top_k)
        if min_ps is not None:
            mass = torch.where(mass >= min_ps.reshape(-1)[row] * mass.max(), mass, 0)
        number = uniform[row]
        if number is not None and top_k != 1:
            cumulated = mass.cumsum(-1)
            at = torch.searchsorted(cumulated, (cumulated[-1] * number).reshape(1), right=True)
            ids[row] = at.clamp_(max=mass.shape[0] - 1)[0]
        # SGLang's kernels may keep a token at the very edge of the cut: it then keeps its mass.
        own, whole, total = mass[ids[row]], p[row, ids[row]], mass.sum()
        total = torch.where(own > 0, total, total + whole)
        own = torch.where(own > 0, own, whole)
        chosen[row] = torch.log(own / total)
    logits = logits if model_logits is None else model_logits
    model = logits.double().gather(1, ids[:, None])[:, 0] - logits.double().logsumexp(-1)
    chosen[top_ks == 1] = 0.0
    return ids, model, chosen


def _cut(p: Any, top_p: float, top_k: int) -> Any:
    """Zero the tokens of p [vocabulary] that top_p and top_k exclude."""
    import torch

    values, order = p.sort(descending=True)
    kept = values.cumsum(-1) - values < top_p
    kept[top_k:] = False
    kept[0] = True
    return torch.zeros_like(p).scatter_(0, order[kept], values[kept])


def served_version() -> int:
    """The version that this scheduler serves, set by `version.tag`; -1 when somebody else set it."""
    from sglang.srt.runtime_context import get_serving

    from openclaw_rl.serving.engines.sglang.version import parse

    return parse(get_serving().weight_version)
