"""Settings of the trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator

from openclaw_rl.config.base import Component, Float, Int, Port, Section


class GateConfig(Section):
    """Evaluation that a new version must pass before it is offered to policy servers."""

    enabled: bool = True
    """false: versions are offered without evaluation."""
    prompts: Path | None = None
    """JSON Lines file of held-out prompts, {"prompt": ..., "answer": ..., "wrong": ...}, with a good answer and, if
    wanted, a wrong one; default: the built-in set."""
    max_perplexity_ratio: Float = Field(1.5, gt=1)
    """Maximum perplexity of the good answers, relative to the base model's; where some prompts have a wrong answer too,
    of these alone."""
    max_perplexity_growth: Float = Field(1.25, gt=1)
    """The same, relative to the best of the versions that it was made from."""
    max_margin_drop: Float = Field(0.5, gt=0)
    """Maximum fall of the log-probability of good over wrong answers, in nats per token, below the base model's and
    below the best of the versions that it was made from."""
    min_tokens_ratio: Float = Field(0.05, ge=0, lt=1)
    """Minimum mean tokens of an answer, relative to the base model's."""
    max_tokens_ratio: Float = Field(2.0, gt=1)
    """Maximum mean tokens of an answer, relative to the base model's."""
    max_degenerate: Float = Field(0.25, ge=0, le=1)
    """Maximum share of answers that are empty or repeat one phrase, of those that are like the answer to another
    prompt, and of those that refuse, unless the base model's do."""
    min_relevant_ratio: Float = Field(0.3, ge=0, lt=1)
    """Minimum share of answers that have a word of the good answer which is not in the prompt, relative to the base
    model's and to the best of the versions that it was made from."""
    max_hint_growth: Float = Field(1.5, ge=1)
    """Maximum distance to the model with the hint after a step, relative to the distance before it, over the hinted
    turns of the step and earlier ones that it was shown again."""
    max_new_tokens: Int = Field(16, ge=1)
    """Maximum tokens of an answer; good and wrong ones are cut to it too."""
    temperature: Float = Field(0.7, ge=0, le=2)
    """Temperature of every second answer, as users get them; the others are decoded greedily."""
    check: str | None = None
    """Custom check, MODULE:FUNCTION: a Python function that takes a list of {"prompt", "answer"} and returns a list of
    problems, empty if there are none."""


class WatchConfig(Section):
    """Automatic rollback if live turns of a new version are judged worse."""

    enabled: bool = True
    """false: only operators roll back."""
    min_turns: Int = Field(20, ge=2)
    """Minimum number of judged turns of the new version and of its predecessors to compare."""
    significance: Float = Field(0.01, gt=0, lt=0.5)
    """Roll back if the probability of the observed drop by chance is below this."""
    min_drop: Float = Field(0.2, ge=0, le=2)
    """Smaller drops of the mean score are ignored, however significant."""


class MegatronConfig(Section):
    """Back end `megatron`; see openclaw_rl/training/backends/megatron/README.md. Unset values are derived from `gpus`
    and the model's size, and shown at the start."""

    tensor_parallel: Int | None = Field(None, ge=1)
    """Tensor-parallel degree; must divide the model's heads and key-value heads."""
    pipeline_parallel: Int | None = Field(None, ge=1)
    """Pipeline-parallel degree; must divide the number of layers."""
    data_parallel: Int | None = Field(None, ge=1)
    """Data-parallel degree."""
    processes: Int | None = Field(None, ge=1)
    """Number of ranks without a GPU (CPU, gloo); default: what the layout requires, else 1."""
    start_timeout: Float = Field(300, gt=0)
    """Timeout in seconds for the start of the group; imports alone take ten or more."""
    step_timeout: Float = Field(1800, gt=0)
    """Seconds after which a step counts as hung and the group is restarted."""


class PlaybookConfig(Section):
    """Back end `playbook`, for API models; see openclaw_rl/training/backends/playbook/README.md."""

    max_tokens: Int = Field(400, ge=50, le=16_000)
    """Maximum tokens of all instructions together."""
    max_entries: Int = Field(20, ge=1)
    """Maximum number of instructions."""
    model: str | None = None
    """Model that writes the instructions; default: the policy's."""
    base_url: str | None = None
    """Base URL of its API; default: as for the policy server."""
    api_key_env: str | None = None
    """Environment variable with its API key; default: as for the policy server."""
    requests_per_minute: Int | None = Field(None, ge=1)
    """Maximum requests per minute to it. Default: unlimited."""
    min_uses: Int = Field(8, ge=1)
    """Judged turns under an instruction before it may be removed as unhelpful."""
    min_score: Float = Field(-0.2, ge=-1, le=1)
    """Instructions whose turns have a lower mean score are removed."""


class GrpoConfig(Section):
    """Training on episodes: groups of one task, compared with one another."""

    step_rewards: Literal["bounded", "full", "off"] = "bounded"
    """How the judge's votes on a step count beside the episode's outcome. bounded: where the outcomes of a group
    differ, and too little to outweigh them. full: everywhere, as much as the outcome, for a judge that is shown the
    task. off: not at all."""
    groups: Int = Field(4, ge=1)
    """Number of complete groups that starts a step at once; fewer are trained on after `update_interval`."""
    max_tokens: Int = Field(16_384, ge=256)
    """Maximum tokens of a step, prompts and responses together; further groups wait for the next step."""
    clip_low: Float = Field(0.2, gt=0, lt=1)
    """Lower clipping of importance ratios: 1 minus this."""
    clip_high: Float = Field(0.28, gt=0)
    """Upper clipping of importance ratios: 1 plus this."""
    kl_weight: Float = Field(0.01, ge=0)
    """Weight of the KL to the frozen base model (k3)."""
    min_episodes: Int = Field(2, ge=2)
    """Minimum number of episodes with an outcome in a group."""
    group_timeout: Float = Field(1800, gt=0)
    """Seconds without news of a group (or since the trainer's start) after which it is trained on as it is, or dropped.
    At least the environment server's `episodes.timeout`."""

    @field_validator("step_rewards", mode="before")
    @classmethod
    def _was_a_bool(cls, value: Any) -> Any:
        """Until 0.1 it was true or false; YAML also reads `off` as false."""
        return {True: "full", False: "off"}[value] if isinstance(value, bool) else value


class TrainerConfig(Component):
    """Trains the policy."""

    port: Port = 50054
    """gRPC port; 0: any free port."""
    update_interval: Float = Field(60, gt=0)
    """Seconds after which a step starts with fewer than `min_samples`, if there are any."""
    min_samples: Int = Field(4, ge=1)
    """Number of samples with a nonzero score or a hint that starts a step at once; neutral ones are included."""
    max_batch: Int = Field(16, ge=1)
    """Maximum samples per step. While more wait than would be taken before they are stale, this and the two limits
    below grow up to fourfold."""
    max_per_session: Int = Field(4, ge=1)
    """Maximum samples of one session per step; others wait for later steps."""
    max_per_branch: Int = Field(4, ge=1)
    """Maximum samples per step of one branch of a session (turns that continue one another)."""
    max_staleness: Int = Field(8, ge=0)
    """Samples from a version that is more than this many versions old are dropped."""
    truncated: Literal["keep", "drop", "penalise"] = "keep"
    """Handling of responses cut by the length limit, the client or an error. penalise: they count as -1 regardless of
    the judge."""
    degenerate: Literal["drop", "keep"] = "drop"
    """Handling of empty responses and of loops (four tokens make up over half). They are dropped by default even if
    judged -1: the loop's tokens would outweigh other turns, and a teacher that reads a loop continues it."""
    algorithm: Literal["combine", "binary_rl", "opd", "opd_full", "grpo"] = "combine"
    """Algorithm for users' turns; see openclaw_rl/training/README.md. Episodes are always trained on by GRPO; `grpo`
    trains on nothing else."""
    grpo: GrpoConfig = GrpoConfig()
    method: Literal["auto", "lora", "full"] = "auto"
    """Train low-rank adapters or all weights; auto: lora, which is cheaper."""
    learning_rate: Float | None = Field(None, gt=0)
    """Learning rate; default: 1e-3 for lora, 1e-4 for full."""
    lora_rank: Int = Field(16, ge=1)
    """Rank of the adapters."""
    reward_weight: Float = Field(0.05, ge=0)
    """Weight of the reward relative to distillation (combine)."""
    kl_weight: Float = Field(0.01, ge=0)
    """Weight of the KL to the frozen base model."""
    replay: Int = Field(4, ge=0, le=16)
    """Earlier samples with a hint that each step on users' turns is shown again, so that it does not undo what was
    learned from them."""
    clip_ratio: Float = Field(0.2, gt=0, lt=1)
    """Importance ratios are clipped to 1 minus and plus this."""
    importance_cap: Float = Field(2.0, ge=1)
    """Maximum weight of importance ratios (truncated importance sampling)."""
    max_grad_norm: Float = Field(1.0, gt=0)
    """Gradients are clipped to this norm."""
    max_kl: Float = Field(0.1, gt=0)
    """Maximum mean KL of a step (before against after, in nats per token). A longer step is shortened to it; one over
    50 times as long is discarded."""
    logprob_alarm: Float = Field(1.0, gt=0)
    """Threshold of the alarm on the difference between log-probabilities of engine and trainer in the last step (mean
    absolute difference in nats, over at least 128 tokens)."""
    max_tokens_per_sample: Int = Field(2048, ge=16)
    """Longer samples are dropped."""
    backend: Literal["auto", "torch", "megatron", "playbook"] = "auto"
    """auto: `playbook` for an API model, `megatron` if `gpus` or `model_size` is set, else `torch`."""
    megatron: MegatronConfig = MegatronConfig()
    playbook: PlaybookConfig = PlaybookConfig()
    device: str = "auto"
    """`cpu`, `cuda` or `auto`."""
    threads: Int = Field(1, ge=1)
    """PyTorch threads."""
    keep_versions: Int = Field(3, ge=1)
    """Versions whose weights are kept on disk, besides the newest."""
    policy_servers: list[str] = []
    """HOST:PORT of further policy servers that receive each version."""
    full_every: Int = Field(10, ge=1)
    """Send all tensors in full every this many versions; versions in between are sent as deltas if smaller."""
    gate: GateConfig = GateConfig()
    watch: WatchConfig = WatchConfig()
    tensorboard: bool = True
    """Also write metrics of each step as TensorBoard event files to `tensorboard/` in the trainer's folder."""
    gpus: Int | None = Field(None, ge=1)
    """GPUs of the megatron back end."""
    model_size: str | None = None
    """Size of the model for the megatron back end, such as 8B."""
