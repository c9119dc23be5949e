"""The model card of an exported version: what it is, and what it learned from. It quotes no conversation."""

from __future__ import annotations

import json

from openclaw_rl.v1.weights_pb2 import GATE_VERDICT_PASSED, VersionManifest

_FIGURES = ("loss", "kl", "step_kl", "grad_norm", "reward_mean")


def model_card(manifest: VersionManifest, lineage: list[VersionManifest], *, base_model: str, mesh: str,
               adapter: bool) -> str:
    """Return README.md of a version's folder.

    Args:
        manifest: of the version.
        lineage: of the version and those that it was made from, newest first; the base model is left out.
        base_model: its name.
        adapter: there is one in the folder.
    """
    judges: dict[str, int] = {}
    for step in lineage:
        for judge, count in step.judges.items():
            judges[judge] = judges.get(judge, 0) + count
    turns = sum(len(step.turn_ids) for step in lineage)
    first, last = lineage[-1].created_at.ToDatetime(), manifest.created_at.ToDatetime()
    lines = [
        "---", f"base_model: {json.dumps(base_model)}", "library_name: transformers", "pipeline_tag: text-generation",
        "tags: [openclaw-rl, reinforcement-learning]", "---", "",
        f"# {base_model}, version {manifest.version}", "",
        f"`{base_model}` after {len(lineage)} training step{'s' if len(lineage) != 1 else ''} on {turns} judged turns "
        f"of conversations (OpenClaw-RL, mesh `{mesh}`, {first:%Y-%m-%d} to {last:%Y-%m-%d}). The turns are not part "
        "of this folder; as weights may repeat what they were trained on, it is as private as they are.", "",
        "## Use", "", "```python", "from transformers import AutoModelForCausalLM, AutoTokenizer", "",
        'model = AutoModelForCausalLM.from_pretrained("FOLDER")',
        'tokenizer = AutoTokenizer.from_pretrained("FOLDER")', "```", "",
        *(["`adapter/` is the same as a LoRA adapter for peft: `PeftModel.from_pretrained(base, \"FOLDER/adapter\")`.",
           ""] if adapter else []),
        "Another OpenClaw-RL mesh with the same base model takes it by `openclaw-rl versions import FOLDER`.", "",
        "## Training", "", "| step | made | algorithm | turns | " + " | ".join(_FIGURES) + " |",
        "|---|---|---|---|" + "---|" * len(_FIGURES)]
    for step in reversed(lineage):
        figures = (f"{step.metrics[name]:.3g}" if name in step.metrics else "" for name in _FIGURES)
        lines.append(f"| {step.version} | {step.created_at.ToDatetime():%Y-%m-%d %H:%M} UTC | {step.algorithm} | "
                     f"{len(step.turn_ids)} | {' | '.join(figures)} |")
    if judges:
        votes = ", ".join(f"{judge} {count}" for judge, count in sorted(judges.items()))
        lines += ["", f"Votes on these turns: {votes}."]
    settings = ", ".join(f"`{name}` {value}" for name, value in sorted(manifest.settings.items()))
    lines += ["", f"Settings of the last step: {settings}."]
    if manifest.HasField("gate"):
        lines += ["", "## Evaluation", "", "On prompts that nobody trains on, beside the base model"
                  + (" (passed)." if manifest.gate.verdict == GATE_VERDICT_PASSED else "."), "",
                  "| figure | base model | this version |", "|---|---|---|"]
        for name, value in sorted(manifest.gate.metrics.items()):
            if name != "seconds":
                before = manifest.gate.before
                lines.append(f"| {name} | {f'{before[name]:.3g}' if name in before else ''} | {value:.3g} |")
    return "\n".join(lines) + "\n"
