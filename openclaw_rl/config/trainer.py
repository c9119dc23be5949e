"""Settings of the trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from openclaw_rl.config.base import Component, Float, Int, Port, Section


class GateConfig(Section):
    """What a new version must pass before it is offered to the policy servers."""

    enabled: bool = True
    """False: versions are offered as they are."""
    prompts: Path | None = None
    """JSON lines of held-out prompts, {"prompt": ..., "answer": ...} each, `answer` being a good one; default: the set
    that comes with the package."""
    max_perplexity_ratio: Float = Field(2.0, gt=1)
    """Perplexity of the good answers may be at most this many times the base model's."""
    min_tokens_ratio: Float = Field(0.05, ge=0, lt=1)
    """Mean tokens of an answer must be at least this part of the base model's."""
    max_tokens_ratio: Float = Field(2.0, gt=1)
    """Mean tokens of an answer may be at most this many times the base model's."""
    max_degenerate: Float = Field(0.25, ge=0, le=1)
    """At most this part of the answers may be empty or one phrase again and again, unless the base model's are."""
    max_new_tokens: Int = Field(48, ge=1)
    """Tokens of an answer at most."""
    check: str | None = None
    """Your own check, MODULE:FUNCTION of a Python function that gets a list of {"prompt", "answer"} and returns a list
    of sentences, empty when all is well."""


class WatchConfig(Section):
    """What happens when the live turns of a new version are judged worse."""

    enabled: bool = True
    """False: only an operator goes back."""
    min_turns: Int = Field(20, ge=2)
    """Judged turns of the new version, and of those before it, that are compared at least."""
    significance: Float = Field(0.01, gt=0, lt=0.5)
    """The policy goes back when a fall like the one seen were less probable than this by chance."""
    min_drop: Float = Field(0.2, ge=0, le=2)
    """A smaller fall of the mean score is no reason, however certain."""


class MegatronConfig(Section):
    """Back end `megatron`; see openclaw_rl/training/backends/megatron/README.md. What is unset is chosen from `gpus`
    and the model's size, and shown before anything starts."""

    tensor_parallel: Int | None = Field(None, ge=1)
    """Parts that each layer is cut into; must divide the model's heads and its key-value heads."""
    pipeline_parallel: Int | None = Field(None, ge=1)
    """Parts that the layers are dealt to; must divide their number."""
    data_parallel: Int | None = Field(None, ge=1)
    """Copies that share a batch."""
    processes: Int | None = Field(None, ge=1)
    """Ranks where there is no GPU, on the CPU with gloo; default what the layout needs, else 1."""
    start_timeout: Float = Field(300, gt=0)
    """Seconds for the group's start; importing alone takes ten or more."""
    step_timeout: Float = Field(1800, gt=0)
    """Seconds after which a step has hung and the group is started again."""


class PlaybookConfig(Section):
    """Back end `playbook`, for API models; see openclaw_rl/training/backends/playbook/README.md."""

    max_tokens: Int = Field(400, ge=50, le=16_000)
    """Of all instructions together."""
    max_entries: Int = Field(20, ge=1)
    """Instructions."""
    model: str | None = None
    """Model that words the instructions; default the policy's own."""
    base_url: str | None = None
    """Of its API; default as for the policy server."""
    api_key_env: str | None = None
    """Name of the variable that holds its key; default as for the policy server."""
    requests_per_minute: Int | None = Field(None, ge=1)
    """Requests to it at most. Default: no bound."""
    min_uses: Int = Field(8, ge=1)
    """Judged turns under an instruction before it can be found not to help."""
    min_score: Float = Field(-0.2, ge=-1, le=1)
    """An instruction under which turns score less than this on the mean goes."""


class GrpoConfig(Section):
    """How episodes are learned from: groups of one task, compared with one another."""

    step_rewards: bool = True
    """Add the mean of a step's votes to the episode's outcome; false: the outcome alone."""
    groups: Int = Field(4, ge=1)
    """Whole groups that make a step due at once; fewer are trained on after `update_interval`."""
    max_tokens: Int = Field(16_384, ge=256)
    """Tokens of one step, prompts and responses together; groups beyond wait for the next step."""
    clip_low: Float = Field(0.2, gt=0, lt=1)
    """Importance ratios are clipped to 1 minus this,"""
    clip_high: Float = Field(0.28, gt=0)
    """and to 1 plus this."""
    kl_weight: Float = Field(0.01, ge=0)
    """Weight of the KL to the frozen base model (k3)."""
    min_episodes: Int = Field(2, ge=2)
    """Episodes with an outcome that a group needs at least."""
    group_timeout: Float = Field(1800, gt=0)
    """Seconds after a group's last word, or the trainer's start if that was later, in which it may become whole; then
    it is trained on as it is, or dropped. At least the environment server's `episodes.timeout`."""


class TrainerConfig(Component):
    """Updates the policy."""

    port: Port = 50054
    """gRPC; 0 means any free one."""
    update_interval: Float = Field(60, gt=0)
    """Seconds after which it trains with fewer than `min_samples`, provided there is something to train on."""
    min_samples: Int = Field(4, ge=1)
    """Samples with a score or a hint that start a step at once; neutral ones ride along."""
    max_batch: Int = Field(16, ge=1)
    """Most samples of a step."""
    max_per_session: Int = Field(4, ge=1)
    """Most samples of one session in a step; its others wait for later steps."""
    max_per_branch: Int = Field(4, ge=1)
    """Most samples of one branch of a session (turns that continue one another) in a step."""
    max_staleness: Int = Field(8, ge=0)
    """Samples of a version that more versions than this followed are dropped."""
    truncated: Literal["keep", "drop", "penalise"] = "keep"
    """Responses that were cut by the length limit, the client or an error. penalise: they count as -1, whatever the
    judge said."""
    degenerate: Literal["drop", "keep"] = "drop"
    """Responses without content, and those of one phrase again and again (four tokens make up over half of it).
    Dropped by default also when they were judged -1: nearly all their tokens are the loop, which would outweigh other
    turns, and a teacher that reads a loop goes on with it."""
    algorithm: Literal["combine", "binary_rl", "opd", "opd_full", "grpo"] = "combine"
    """Of the turns of users; see openclaw_rl/training/README.md. Steps of episodes are always learned from by GRPO;
    `grpo` learns from nothing else."""
    grpo: GrpoConfig = GrpoConfig()
    method: Literal["auto", "lora", "full"] = "auto"
    """Train low-rank adapters or all weights; auto: lora, the cheaper one by measurement."""
    learning_rate: Float | None = Field(None, gt=0)
    """Default 1e-3 for lora, 1e-4 for full."""
    lora_rank: Int = Field(16, ge=1)
    """Rank of the adapters."""
    reward_weight: Float = Field(0.05, ge=0)
    """Weight of the reward beside the distillation (combine)."""
    kl_weight: Float = Field(0.01, ge=0)
    """Weight of the KL to the frozen base model."""
    clip_ratio: Float = Field(0.2, gt=0, lt=1)
    """Importance ratios are clipped to 1 minus and plus this."""
    importance_cap: Float = Field(2.0, ge=1)
    """Importance ratios weigh at most this (truncated importance sampling)."""
    max_grad_norm: Float = Field(1.0, gt=0)
    """Gradients are scaled down to this norm."""
    max_kl: Float = Field(3.0, gt=0)
    """A step that moves the policy further than this is not published: mean KL between before and after, in nats per
    token."""
    logprob_alarm: Float = Field(1.0, gt=0)
    """`status` says DEGRADED when the log-probabilities of engine and trainer were further apart than this in the last
    step (mean of the absolute difference, in nats, of 128 tokens or more: a few alone say little)."""
    max_tokens_per_sample: Int = Field(2048, ge=16)
    """Longer samples are dropped, with the reason."""
    backend: Literal["auto", "torch", "megatron", "playbook"] = "auto"
    """auto: `playbook` for an API model, `megatron` when `gpus` or `model_size` is set, else `torch`."""
    megatron: MegatronConfig = MegatronConfig()
    playbook: PlaybookConfig = PlaybookConfig()
    device: str = "auto"
    """`cpu`, `cuda` or `auto`."""
    threads: Int = Field(1, ge=1)
    """PyTorch threads."""
    keep_versions: Int = Field(3, ge=1)
    """Versions whose weights are kept on disk, beside the newest one."""
    policy_servers: list[str] = []
    """HOST:PORT of further policy servers that get each version, beside the mesh's own."""
    full_every: Int = Field(10, ge=1)
    """Every so many versions all tensors are sent whole; those between as what changed, where that is smaller."""
    gate: GateConfig = GateConfig()
    watch: WatchConfig = WatchConfig()
    tensorboard: bool = True
    """Write the figures of each step as TensorBoard event files too, into the trainer's folder (`tensorboard/`)."""
    gpus: Int | None = Field(None, ge=1)
    """GPUs of the megatron back end."""
    model_size: str | None = None
    """Size of the model for the megatron back end, such as 8B."""
