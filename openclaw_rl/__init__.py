"""OpenClaw-RL: an agent that learns from being used, without ever stopping."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from openclaw_rl.api.facade import (
        EnvServer,
        PolicyClient,
        PolicyError,
        PRMJudge,
        Reply,
        Trainer,
        get_component_stats,
    )

__all__ = ["EnvServer", "PRMJudge", "PolicyClient", "PolicyError", "Reply", "Trainer", "get_component_stats"]


def __getattr__(name: str) -> Any:
    # Loaded on first use: a component's process imports this package too, and needs none of it.
    if name in __all__:
        from openclaw_rl.api import facade

        return getattr(facade, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
