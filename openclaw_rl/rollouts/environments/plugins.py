"""Kinds by name: those that come with the package, and those of other packages.

A package adds a kind with an entry point in the group `openclaw_rl.environments` that names a callable
`make(config: EnvironmentConfig, context: Context) -> Kind`; see base.py and README.md beside this file.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata

from openclaw_rl.config import ConfigError
from openclaw_rl.config.environment import EnvironmentConfig
from openclaw_rl.rollouts.environments.interface import Context, Kind

GROUP = "openclaw_rl.environments"

Make = Callable[[EnvironmentConfig, Context], Kind]


def load_kind(kind: str, key: str) -> Make:
    """What makes a kind.

    Args:
        kind: its name.
        key: configuration key that asks for it, for the error.

    Raises:
        ConfigError: there is none of that name (the text lists those there are), or it can't be loaded.
    """
    points = {point.name: point for point in metadata.entry_points(group=GROUP)}
    if kind not in points:
        raise ConfigError(f"{key}: {kind!r} is no kind of environment; there are: {', '.join(sorted(points))}. "
                          f"A plug-in is a package with an entry point in the group {GROUP}")
    point = points[kind]
    try:
        make: Make = point.load()
    except Exception as error:
        raise ConfigError(f"{key}: {kind!r} ({point.value}) can't be loaded: "
                          f"{type(error).__name__}: {error}") from error
    return make
