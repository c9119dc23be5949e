"""Engines and policies made from the configuration."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Literal

from openclaw_rl.config import EMBEDDED_MODEL, ConfigError, PolicyServerConfig
from openclaw_rl.models.api_endpoints import uses_api
from openclaw_rl.models.config import ModelError
from openclaw_rl.models.hub import is_hub_id
from openclaw_rl.models.prepare import ensure_model
from openclaw_rl.runtime.home import Home
from openclaw_rl.serving.engines.interface import EngineError, TokenEngine
from openclaw_rl.serving.text.parsers import Parsers
from openclaw_rl.serving.text.template import ChatTemplate
from openclaw_rl.serving.token_policy import TokenPolicy

logger = logging.getLogger(__name__)

#: The component whose folder holds the engine's files.
_NAME = "policy_server"
_INSTALL = "pip install 'openclaw-rl[sglang]'"


def engine_name(settings: PolicyServerConfig) -> Literal["embedded", "sglang", "openai"]:
    """Resolve the engine that the settings select; see PolicyServerConfig.engine."""
    if uses_api(settings):
        return "openai"
    if settings.engine in ("embedded", "sglang"):
        return settings.engine
    if importlib.util.find_spec("sglang") is None or importlib.util.find_spec("torch") is None:
        return "embedded"
    import torch

    return "sglang" if torch.cuda.is_available() else "embedded"


def served_name(settings: PolicyServerConfig) -> str:
    """The model's name for clients; for a folder, its last part."""
    if uses_api(settings) or settings.model == EMBEDDED_MODEL or is_hub_id(settings.model):
        return settings.model
    return Path(settings.model).expanduser().absolute().name


def validate_settings(settings: PolicyServerConfig) -> list[str]:
    """Check the settings of an engine that works on token ids before anything is started; returns the problems."""
    found = []
    name = engine_name(settings)
    uses_parsers = [f"components.policy_server.sglang.{key}" for key in ("tool_parser", "reasoning_parser")
                    if getattr(settings.sglang, key)]
    if (name == "sglang" or uses_parsers) and importlib.util.find_spec("sglang") is None:
        return [f"{' and '.join(uses_parsers) or 'components.policy_server.engine: sglang'}: SGLang is not installed: "
                f"{_INSTALL}"]
    if name == "sglang":
        from openclaw_rl.serving.engines.sglang import arguments

        found += arguments.validate_settings(settings)
    return found + Parsers(settings.sglang.tool_parser, settings.sglang.reasoning_parser).validate()


async def make_policy(settings: PolicyServerConfig, home: Home, report: Callable[[str], None],
                      engines: AsyncExitStack) -> tuple[TokenPolicy, TokenEngine, Path]:
    """Make a policy with its engine, started; returns both and the base model's folder.

    Args:
        report: called with the progress, for people.
        engines: stops the engine.

    Raises:
        ConfigError: the model or engine can't be used; the text says what to do.
    """
    if wrong := await asyncio.to_thread(validate_settings, settings):
        raise ConfigError("\n".join(wrong))
    name = engine_name(settings)
    try:
        folder = await asyncio.to_thread(ensure_model, settings.model, home,
                                         lambda text, share: report(f"{text} ({share:.0%})"))
        template = await asyncio.to_thread(ChatTemplate, folder)
        report("Starting SGLang" if name == "sglang" else "Loading the model")
        # Imported here: engines are slow to import and need optional packages.
        module = await asyncio.to_thread(importlib.import_module, f"openclaw_rl.serving.engines.{_MODULES[name]}")
        engine: TokenEngine
        if name == "sglang":
            if settings.sglang.mode == "in_process" and settings.workers > 1 and not settings.sglang.addresses:
                logger.warning("components.policy_server.workers: %d; sglang.mode in_process has one", settings.workers)
            engine = module.SglangEngine(folder, settings, home.component(_NAME) / "sglang", home.logs,
                                         served_name(settings))
        else:
            if settings.workers > 1:
                logger.warning("components.policy_server.workers: %d, but the embedded engine has one worker; use "
                               "engine: sglang for several", settings.workers)
            engine = module.EmbeddedEngine(
                folder, model=served_name(settings), max_batch=settings.max_batch, max_context=settings.max_context,
                max_waiting=settings.max_waiting, threads=settings.threads, device=settings.device,
                prefix_cache_mb=settings.prefix_cache_mb)
        engines.push_async_callback(engine.stop)
        await engine.start()
    except ModuleNotFoundError as error:
        raise ConfigError(f"the {name} engine needs the package {error.name}: pip install 'openclaw-rl[{name}]'"
                          ) from error
    except (ModelError, EngineError, ValueError) as error:
        what = f"{settings.model!r} can't be used" if name == "embedded" else f"SGLang can't serve {settings.model!r}"
        raise ConfigError(f"components.policy_server.model: {what}: {error}") from error
    parsers = Parsers(settings.sglang.tool_parser, settings.sglang.reasoning_parser)
    policy = TokenPolicy(engine, template, settings.temperature, settings.max_tokens, parsers)
    return policy, engine, folder


_MODULES = {"embedded": "embedded.engine", "sglang": "sglang.engine"}
