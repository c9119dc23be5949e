"""Environments as configured, each with its type."""

from __future__ import annotations

from dataclasses import dataclass, field

from openclaw_rl.config import ConfigError
from openclaw_rl.config.environment import EnvironmentConfig, EnvServerConfig
from openclaw_rl.rollouts.environments.interface import Context, EnvironmentType
from openclaw_rl.rollouts.environments.plugins import load_type
from openclaw_rl.rollouts.sandboxes.factory import backend, label
from openclaw_rl.rollouts.sandboxes.interface import Backend
from openclaw_rl.runtime.home import Home

#: Environments without a configuration, as far as this machine has the programs for them.
DEFAULTS = ("terminal", "swe", "tool_call", "gui")
_KEY = "components.env_server.environments"


@dataclass(frozen=True, slots=True)
class ConfiguredEnvironment:
    """An environment that can be leased."""

    name: str
    config: EnvironmentConfig
    type_name: str
    environment_type: EnvironmentType | None  #: None: it could not be made; see `problem`
    named: bool  #: by the configuration; the problem of a default environment concerns nobody
    problem: str = ""
    backend: Backend | None = None  #: of its sandboxes
    warnings: list[str] = field(default_factory=list)  #: the type may append while it runs


def configured_environments(settings: EnvServerConfig, home: Home) -> list[ConfiguredEnvironment]:
    """Make the environments of a configuration, sorted by name; nothing is started. Each has a folder of its own, which
    its type creates if it needs it."""
    named = settings.environments
    configs = named or {name: EnvironmentConfig(count=settings.max_parallel) for name in DEFAULTS}
    return [_configure(name, config, name in named, home) for name, config in sorted(configs.items())]


def _configure(name: str, config: EnvironmentConfig, named: bool, home: Home) -> ConfiguredEnvironment:
    type_name = config.kind or name
    warnings: list[str] = []
    environment_type, problem = None, ""
    sandboxes = backend(config, home.root)
    try:
        make = load_type(type_name, f"{_KEY}.{name}.kind")
        environment_type = make(config, Context(name, home.component("env_server") / "environments" / name, sandboxes,
                                                warnings, label(home.root)))
    except ConfigError as error:
        problem = str(error)
    except Exception as error:  # a plug-in's fault costs its own environment only
        problem = f"{_KEY}.{name}: the kind {type_name!r} can't be made: {type(error).__name__}: {error}"
    return ConfiguredEnvironment(name, config, type_name, environment_type, named, problem, sandboxes, warnings)
