"""Configuration: YAML, validated, every key with a default.

An error names the file, the key, the value and what is allowed.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator

#: The model that comes with the package index and needs no key.
EMBEDDED_MODEL = "smollm2-135m-instruct"


def _no_truth(value: Any) -> Any:
    """Python takes true for 1, and YAML takes `yes` and `on` for true: nobody means a number by them."""
    if isinstance(value, bool):
        raise ValueError("a number is needed")
    return value


Int = Annotated[int, BeforeValidator(_no_truth)]
Float = Annotated[float, BeforeValidator(_no_truth), Field(allow_inf_nan=False)]
Port = Annotated[Int, Field(ge=0, le=65535)]
_UNITS = {"": 1, "B": 1, "KB": 2**10, "MB": 2**20, "GB": 2**30, "TB": 2**40}


class ConfigError(Exception):
    """The configuration can't be used; the text says which file and key, and what is allowed."""


def parse_size(value: Any) -> Any:
    """Bytes of a size such as 100MB (units of 1024)."""
    if isinstance(_no_truth(value), str):
        match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?B?)\s*", value.upper())
        if not match:
            raise ValueError("a size such as 512KB, 100MB or 2GB")
        unit = match[2] if match[2].endswith("B") or not match[2] else match[2] + "B"
        return int(float(match[1]) * _UNITS[unit])
    return value


Size = Annotated[int, BeforeValidator(parse_size), Field(gt=0)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True, protected_namespaces=())


class SessionAwareness(_Section):
    """Which turns belong together and which of them are there to learn from."""

    enabled: bool = True
    """False: every turn without an explicit type is a main turn."""
    trainable_patterns: list[str] = []
    """Regular expressions (searched in the client's turn type and in the text of the last message) of main turns;
    tried before `auxiliary_patterns`."""
    auxiliary_patterns: list[str] = []
    """Regular expressions of side turns."""
    session_timeout: Float = Field(300, gt=0)
    """Seconds without a request after which a session has ended."""
    debug: bool = False
    """Log each request's class and all the evidence for it, with its weights."""

    @field_validator("trainable_patterns", "auxiliary_patterns")
    @classmethod
    def _compiles(cls, patterns: list[str]) -> list[str]:
        import regex

        for i, pattern in enumerate(patterns):
            try:
                regex.compile(pattern)
            except regex.error as error:
                raise ValueError(f"entry {i + 1}, {pattern!r}, is not a regular expression: {error}") from None
        return patterns


class _Component(_Section):
    enabled: bool = True
    """False: `local-start` does not start it."""
    host: str = "127.0.0.1"
    """Address that it listens on."""
    address: str | None = None
    """HOST:PORT of one that runs already, of ours or of another make; nothing is started then."""


class PolicyServerConfig(_Component):
    """Answers requests."""

    port: Port = 30000
    """OpenAI-compatible HTTP; 0 means any free one."""
    grpc_port: Port = 50051
    """gRPC; 0 means any free one."""
    model: str = Field(EMBEDDED_MODEL, min_length=1)
    """`smollm2-135m-instruct`, the folder of a Hugging Face Llama-family model, or the name of an API model."""
    engine: Literal["auto", "embedded", "openai"] = "auto"
    """auto: `embedded` for the embedded model and for folders, `openai` for any other model name."""
    base_url: str | None = None
    """Of the API (engine `openai`); default OPENAI_BASE_URL, or GLM's for glm models."""
    api_key_env: str | None = None
    """Name of the variable that holds the API's key; default OPENAI_API_KEY, for glm models ZHIPUAI_API_KEY first."""
    api_keys: list[str] = []
    """Bearer keys that clients of the HTTP door must show one of; more may be in OPENCLAW_RL_API_KEYS, separated by
    commas. None at all: the door is open (it listens on loopback)."""
    workers: Int = Field(1, ge=1)
    """Engine processes (engine `sglang` only)."""
    max_batch: Int = Field(16, ge=1, le=256)
    """Requests that decode at the same time; others wait their turn."""
    max_context: Int | None = Field(None, ge=128)
    """Most tokens of prompt and response together; default what the model has, at most 4096."""
    max_waiting: Int = Field(256, ge=1)
    """Requests that may wait; more are answered 429 with a time to retry after."""
    max_tokens: Int = Field(512, ge=1)
    """Tokens of a response when the request does not say."""
    temperature: Float = Field(0.7, ge=0, le=2)
    """When the request does not say. At 1.0 the embedded model babbles at times."""
    threads: Int = Field(1, ge=1)
    """PyTorch threads of the embedded engine."""
    device: str = "auto"
    """`cpu`, `cuda` or `auto`."""
    keep_versions: Int = Field(3, ge=1)
    """Versions kept on disk for rollback, beside the base model and the active one."""
    weights_from: str | None = None
    """HOST:PORT of another policy server that this one copies its versions from (a relay); default: the trainer brings
    them."""


class EnvironmentConfig(_Section):
    """Sandboxes of one type."""

    count: Int = Field(ge=1)
    """Most of them at once."""
    image: str | None = None
    """What they are made from."""


class EnvServerConfig(_Component):
    """Keeps sessions and sandboxes."""

    port: Port = 50052
    """gRPC; 0 means any free one."""
    max_parallel: Int = Field(4, ge=1)
    """Most sandboxes at work at once."""
    environments: dict[str, EnvironmentConfig] = {}
    """Sandboxes by type."""


class PrmJudgeConfig(_Component):
    """Votes on turns."""

    port: Port = 50053
    """gRPC; 0 means any free one."""
    judge: str = "auto"
    """`rules`, `llm` or the name of a plug-in (entry point group openclaw_rl.judges); auto: `llm` when `model` is
    set, else `rules`."""
    model: str | None = None
    """Model of the `llm` judge: any OpenAI-compatible one."""
    base_url: str | None = None
    """Of its API; default as for the policy server."""
    api_key_env: str | None = None
    """Name of the variable that holds its key; default as for the policy server."""
    votes: Int | None = Field(None, ge=1, le=32)
    """Votes on each turn; default 1 for rules, 3 for a model."""
    vote_timeout: Float = Field(30, gt=0)
    """Seconds after which a vote has failed."""
    workers: Int = Field(4, ge=1)
    """Turns that are judged at the same time."""


class GateConfig(_Section):
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


class WatchConfig(_Section):
    """What happens when the live turns of a new version are judged worse."""

    enabled: bool = True
    """False: only an operator goes back."""
    min_turns: Int = Field(20, ge=2)
    """Judged turns of the new version, and of those before it, that are compared at least."""
    significance: Float = Field(0.01, gt=0, lt=0.5)
    """The policy goes back when a fall like the one seen were less probable than this by chance."""
    min_drop: Float = Field(0.2, ge=0, le=2)
    """A smaller fall of the mean score is no reason, however certain."""


class TrainerConfig(_Component):
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
    algorithm: Literal["combine", "binary_rl", "opd", "opd_full"] = "combine"
    """See openclaw_rl/trainer/README.md."""
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
    backend: Literal["auto", "torch"] = "auto"
    """auto: torch."""
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
    gpus: Int | None = Field(None, ge=1)
    """GPUs of the megatron back end."""
    model_size: str | None = None
    """Size of the model for the megatron back end, such as 8B."""


class Components(_Section):
    """The four."""

    policy_server: PolicyServerConfig = PolicyServerConfig()
    env_server: EnvServerConfig = EnvServerConfig()
    prm_judge: PrmJudgeConfig = PrmJudgeConfig()
    trainer: TrainerConfig = TrainerConfig()


class JournalConfig(_Section):
    """The readable trace of what happened, logs/rl_trace_YYYYMMDD.log."""

    enabled: bool = True
    max_size: Size = 100 * 2**20
    """A file that grows beyond this is rotated."""
    keep_files: Int = Field(10, ge=1)
    """Rotated files kept; older ones are deleted."""


class TelemetryConfig(_Section):
    """Traces and metrics by OpenTelemetry."""

    enabled: bool = True
    """False: no spans at all. The variable OTEL_SDK_DISABLED does the same."""
    endpoint: str | None = None
    """OTLP endpoint of a collector, such as http://127.0.0.1:4317; default: what the OTEL_EXPORTER_OTLP_* variables
    say, else none. Spans are kept in the home folder too, for `openclaw-rl trace`."""
    protocol: Literal["grpc", "http/protobuf"] = "grpc"
    """Of the endpoint; OTEL_EXPORTER_OTLP_PROTOCOL comes first."""
    capture_content: bool = False
    """Put message texts into spans."""
    keep_spans: Int = Field(200_000, ge=1000)
    """Newest spans kept by each component in the home folder."""
    metrics_interval: Float = Field(15, gt=0)
    """Seconds between two exports of metrics to the collector."""


class Config(_Section):
    """Configuration of a mesh."""

    mode: Literal["local", "local_simulate", "distributed"] = "local"
    """`local` and `local_simulate` are the same: all four on this machine."""
    session_awareness: SessionAwareness = SessionAwareness()
    components: Components = Components()
    journal: JournalConfig = JournalConfig()
    telemetry: TelemetryConfig = TelemetryConfig()
    durability: Literal["group", "strict"] = "group"
    """What is on disk when a message is acknowledged: group survives a killed process, and loses at most the last
    100 ms to a power loss; strict loses nothing and waits for the disk."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"


class _Loader(yaml.SafeLoader):
    """YAML whose mappings have each key once; of two, PyYAML silently takes the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"the key {key.value} is there twice",
                                                        key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def load_config(path: str | Path | None) -> Config:
    """Read a configuration file; None gives the defaults.

    Raises:
        ConfigError: it can't be read or used; one line for each problem.
    """
    if path is None:
        return Config()
    path = Path(path)
    try:
        data = yaml.load(path.read_bytes(), _Loader)
    except OSError as error:
        raise ConfigError(f"{path}: {os.strerror(error.errno or 0)}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise ConfigError(f"{path}: not a configuration: it is nested too deeply") from None
    if data is None:
        data = {}
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: must be a mapping of keys, not a {type(data).__name__}")
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        raise ConfigError("\n".join(f"{path}: {line}" for line in _problems(error))) from None


def _problems(error: ValidationError) -> list[str]:
    lines = []
    for item in error.errors():
        key = ".".join(str(part) for part in item["loc"])
        if item["type"] == "extra_forbidden":
            lines.append(f"{key}: unknown key; allowed here: {', '.join(_allowed(item['loc'][:-1]))}")
            continue
        value = repr(item["input"])
        if len(value) > 80:
            value = value[:77] + "..."
        allowed = "a mapping of keys is needed" if item["type"] == "model_type" else item["msg"]
        lines.append(f"{key}: {value} is not allowed: {allowed.removeprefix('Value error, ')}")
    return lines


def _allowed(loc: tuple[Any, ...]) -> list[str]:
    model: Any = Config
    for part in loc:
        annotation = model.model_fields[part].annotation if isinstance(model, type) and issubclass(
            model, BaseModel) and part in model.model_fields else EnvironmentConfig
        model = annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else EnvironmentConfig
    return list(model.model_fields)
