"""The environments that a configuration means: each with its kind, made and asked nothing yet."""

from __future__ import annotations

from dataclasses import dataclass, field

from openclaw_rl.config import ConfigError
from openclaw_rl.config.environment import EnvironmentConfig, EnvServerConfig
from openclaw_rl.rollouts.environments.interface import Context, Kind
from openclaw_rl.rollouts.environments.plugins import load_kind
from openclaw_rl.rollouts.sandboxes.factory import backend, label
from openclaw_rl.rollouts.sandboxes.interface import Backend
from openclaw_rl.runtime.home import Home

#: What there is without a configuration, as far as this machine has the programs for it.
DEFAULTS = ("terminal", "swe", "tool_call", "gui")
_KEY = "components.env_server.environments"


@dataclass(frozen=True, slots=True)
class Offer:
    """An environment that can be leased."""

    name: str
    config: EnvironmentConfig
    kind_name: str
    kind: Kind | None  #: None: it could not be made, and `problem` says why
    named: bool  #: the configuration names it; else it is a default one, whose problem is nobody's concern
    problem: str = ""
    backend: Backend | None = None  #: of its sandboxes
    warnings: list[str] = field(default_factory=list)  #: the kind may add to it while it runs


def offers(settings: EnvServerConfig, home: Home) -> list[Offer]:
    """The environments of a configuration, by name. Each gets a folder of its own, which its kind makes if it needs
    it."""
    named = settings.environments
    configs = named or {name: EnvironmentConfig(count=settings.max_parallel) for name in DEFAULTS}
    return [_offer(name, config, name in named, home)
            for name, config in sorted(configs.items())]


def _offer(name: str, config: EnvironmentConfig, named: bool, home: Home) -> Offer:
    kind_name = config.kind or name
    warnings: list[str] = []
    kind, problem = None, ""
    made_by = backend(config, home.root)
    try:
        make = load_kind(kind_name, f"{_KEY}.{name}.kind")
        kind = make(config, Context(name, home.component("env_server") / "environments" / name, made_by, warnings,
                                    label(home.root)))
    except ConfigError as error:
        problem = str(error)
    except Exception as error:  # a plug-in's fault costs its own environment only
        problem = f"{_KEY}.{name}: the kind {kind_name!r} can't be made: {type(error).__name__}: {error}"
    return Offer(name, config, kind_name, kind, named, problem, made_by, warnings)
