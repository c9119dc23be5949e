"""Settings of the policy server."""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from openclaw_rl.config.base import EMBEDDED_MODEL, Component, Float, Int, Port, Section

#: Before the name of a model that is behind an API.
API_PREFIX = "openai:"


class SglangConfig(Section):
    """Engine `sglang`; see openclaw_rl/serving/engines/sglang/README.md."""

    mode: Literal["server", "in_process"] = "server"
    """server: the policy server starts and supervises `workers` SGLang servers; in_process: one engine in its own
    process."""
    addresses: list[str] = []
    """http://HOST:PORT of running SGLang servers; none is started then, and `workers` is their number."""
    api_key_env: str | None = None
    """Environment variable with the API key of the servers at `addresses`; default: no key. Servers started here get
    their own key."""
    update: Literal["auto", "tensors", "disk", "distributed"] = "auto"
    """Transport of new weights to SGLang. auto: tensors if it runs on this machine, else disk, which requires a folder
    shared with the server."""
    tool_parser: str | None = None
    """SGLang's parser for tool calls, such as qwen25 or llama3; default: ours."""
    reasoning_parser: str | None = None
    """SGLang's reasoning parser, such as qwen3 or deepseek-r1; its text is returned as `reasoning_content`."""
    tensor_parallel: Int = Field(1, ge=1)
    """GPUs per worker."""
    memory_fraction: Float | None = Field(None, gt=0, lt=1)
    """Fraction of GPU memory for weights and cache; default: SGLang's."""
    start_timeout: Float = Field(600, gt=0)
    """Timeout in seconds for the start of a worker."""
    arguments: dict[str, str | int | float | bool] = {}
    """Further command-line arguments of SGLang's server, named without the dashes."""


class PolicyServerConfig(Component):
    """Serves requests."""

    port: Port = 30000
    """Port of the OpenAI-compatible HTTP API; 0: any free port."""
    grpc_port: Port = 50051
    """gRPC port; 0: any free port."""
    model: str = Field(EMBEDDED_MODEL, min_length=1)
    """`smollm2-135m-instruct`, a folder with a Hugging Face Llama-family model, the id of one on the Hugging Face hub,
    or an API model: `openai:NAME`, which sets `engine: openai`, or a name of OpenAI's or GLM's, such as gpt-4o-mini."""
    aliases: list[str] = []
    """Further model names accepted in requests."""
    engine: Literal["auto", "embedded", "sglang", "openai"] = "auto"
    """auto: `openai` if there is a base URL or an `api_key_env`, or for a name of OpenAI's or GLM's, unless the model
    is the embedded one or a folder; else `sglang` if it is installed and there is a GPU, else `embedded`."""
    base_url: str | None = None
    """Base URL of the API (engine `openai`); default: OPENAI_BASE_URL, or GLM's for glm models."""
    api_key_env: str | None = None
    """Environment variable with the API key; default: OPENAI_API_KEY, for glm models ZHIPUAI_API_KEY first."""
    api_keys: list[str] = []
    """Bearer keys accepted by the HTTP API, in addition to OPENCLAW_RL_API_KEYS (comma-separated). Without any key the
    API is open (on loopback only)."""
    names: list[str] = []
    """Host names that the HTTP API is reached by besides `host` and this machine's own, such as a proxy's. Without any
    key, requests under other names are rejected, as protection against DNS rebinding."""
    cors_origins: list[str] = []
    """Origins of web pages that may use the HTTP API from a browser, such as https://chat.example.org; requests of
    other pages are rejected."""
    image_hosts: list[str] = []
    """Hosts that image URLs in requests may name for the API to fetch (engine `openai`), besides hosts with public
    addresses. A client could reach hosts of a private network through the API otherwise."""
    workers: Int = Field(1, ge=1)
    """Number of engine processes (engine `sglang`; the embedded engine is always one)."""
    sglang: SglangConfig = SglangConfig()
    max_batch: Int = Field(16, ge=1, le=256)
    """Maximum number of requests decoded concurrently; others wait."""
    max_context: Int | None = Field(None, ge=128)
    """Maximum tokens of prompt and response together; default: the model's limit, at most 4096."""
    max_waiting: Int = Field(256, ge=1)
    """Maximum number of waiting requests; further ones are rejected with 429 and Retry-After."""
    max_tokens: Int = Field(512, ge=1)
    """Default maximum tokens of a response."""
    temperature: Float = Field(0.7, ge=0, le=2)
    """Default sampling temperature. At 1.0 the embedded model occasionally produces gibberish."""
    threads: Int = Field(1, ge=1)
    """PyTorch threads of the embedded engine."""
    device: str = "auto"
    """`cpu`, `cuda` or `auto`."""
    prefix_cache_mb: Int | None = Field(None, ge=0)
    """Most MiB of memory in which the embedded engine keeps keys and values of earlier texts, so that a conversation's
    next turn computes only what is new; 0 turns this off. Default: an eighth of the available memory, at most 1024."""
    keep_versions: Int = Field(3, ge=1)
    """Versions kept on disk for rollback, besides the base model and the active one."""
    weights_from: str | None = None
    """HOST:PORT of a policy server to copy versions from (relay); default: the trainer delivers them."""

    @model_validator(mode="before")
    @classmethod
    def _api_by_name(cls, data: Any) -> Any:
        """openai:NAME is NAME behind an OpenAI-compatible API."""
        model = data.get("model") if isinstance(data, dict) else None
        if not isinstance(model, str) or not model.startswith(API_PREFIX):
            return data
        if (engine := data.get("engine", "auto")) not in ("auto", "openai"):
            raise ValueError(f"model {model!r} is behind an API, and engine: {engine} serves models of this machine: "
                             f"leave `engine` out, or `{API_PREFIX}`")
        return {**data, "model": model.removeprefix(API_PREFIX), "engine": "openai"}

    @field_validator("cors_origins")
    @classmethod
    def _origins(cls, origins: list[str]) -> list[str]:
        for i, origin in enumerate(origins):
            if not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^\s/?#@*]+", origin.lower()):
                raise ValueError(f"entry {i + 1}, {origin!r}, is not an origin: SCHEME://HOST or SCHEME://HOST:PORT, "
                                 "such as https://chat.example.org; each is named, there is no wildcard")
        return [origin.lower() for origin in origins]
