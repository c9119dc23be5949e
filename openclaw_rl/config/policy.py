"""Settings of the policy server."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from openclaw_rl.config.base import EMBEDDED_MODEL, Component, Float, Int, Port, Section


class SglangConfig(Section):
    """Engine `sglang`; see openclaw_rl/serving/engines/sglang/README.md."""

    mode: Literal["server", "in_process"] = "server"
    """server: `workers` SGLang servers that the policy server starts and watches; in_process: one in its own
    process."""
    addresses: list[str] = []
    """http://HOST:PORT of SGLang servers that run already; nothing is started then, and `workers` is their number."""
    api_key_env: str | None = None
    """Name of the variable that holds the api-key of the servers at `addresses`; default: they have none. Servers that
    are started here get a key of their own."""
    update: Literal["auto", "tensors", "disk", "distributed"] = "auto"
    """How new weights reach SGLang. auto: tensors where it runs on this machine, else disk, which needs a folder that
    the server sees too."""
    tool_parser: str | None = None
    """Name of SGLang's parser of tool calls, such as qwen25 or llama3; default: ours."""
    reasoning_parser: str | None = None
    """Name of SGLang's parser of reasoning, such as qwen3 or deepseek-r1; its text comes as `reasoning_content`."""
    tensor_parallel: Int = Field(1, ge=1)
    """GPUs of one worker."""
    memory_fraction: Float | None = Field(None, gt=0, lt=1)
    """Part of the GPU's memory for weights and cache; default SGLang's own."""
    start_timeout: Float = Field(600, gt=0)
    """Seconds for a worker's start."""
    arguments: dict[str, str | int | float | bool] = {}
    """Further arguments of SGLang's server, as its command line names them without the dashes."""


class PolicyServerConfig(Component):
    """Answers requests."""

    port: Port = 30000
    """OpenAI-compatible HTTP; 0 means any free one."""
    grpc_port: Port = 50051
    """gRPC; 0 means any free one."""
    model: str = Field(EMBEDDED_MODEL, min_length=1)
    """`smollm2-135m-instruct`, the folder of a Hugging Face Llama-family model, or the name of an API model."""
    aliases: list[str] = []
    """Further names that requests may call the model by."""
    engine: Literal["auto", "embedded", "sglang", "openai"] = "auto"
    """auto: `openai` for a name that is neither the embedded model nor a folder; for those `sglang` where it is
    installed and a GPU is there, else `embedded`."""
    base_url: str | None = None
    """Of the API (engine `openai`); default OPENAI_BASE_URL, or GLM's for glm models."""
    api_key_env: str | None = None
    """Name of the variable that holds the API's key; default OPENAI_API_KEY, for glm models ZHIPUAI_API_KEY first."""
    api_keys: list[str] = []
    """Bearer keys that clients of the HTTP door must show one of; more may be in OPENCLAW_RL_API_KEYS, separated by
    commas. None at all: the door is open (it listens on loopback)."""
    workers: Int = Field(1, ge=1)
    """Engine processes behind the one door (engine `sglang`; the embedded engine is always one)."""
    sglang: SglangConfig = SglangConfig()
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
