"""Look-up of environment types by name: those of this package, and plug-ins.

A package adds a type with an entry point in the group `openclaw_rl.environments` that names a callable
`make(config: EnvironmentConfig, context: Context) -> EnvironmentType`; see interface.py and README.md.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata

from openclaw_rl.config import ConfigError
from openclaw_rl.config.environment import EnvironmentConfig
from openclaw_rl.rollouts.environments.interface import Context, EnvironmentType

GROUP = "openclaw_rl.environments"

Make = Callable[[EnvironmentConfig, Context], EnvironmentType]


def load_type(name: str, key: str) -> Make:
    """Load what makes an environment type.

    Args:
        name: of the type.
        key: configuration key that asks for it, for the error.

    Raises:
        ConfigError: there is none of that name (the text lists those there are), or it can't be loaded.
    """
    points = {point.name: point for point in metadata.entry_points(group=GROUP)}
    if name not in points:
        raise ConfigError(f"{key}: {name!r} is no kind of environment; there are: {', '.join(sorted(points))}. "
                          f"A plug-in is a package with an entry point in the group {GROUP}")
    point = points[name]
    try:
        make: Make = point.load()
    except Exception as error:
        raise ConfigError(f"{key}: {name!r} ({point.value}) can't be loaded: "
                          f"{type(error).__name__}: {error}") from error
    return make
