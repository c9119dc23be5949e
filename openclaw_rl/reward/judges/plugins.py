"""Look-up of judges by name: `classifier`, `rules`, `llm`, and plug-ins of other packages.

A package adds a judge with an entry point in the group `openclaw_rl.judges` that names a callable
`make(config: PrmJudgeConfig) -> Judge`; servers/judge_plugin_example is a worked example.
"""

from __future__ import annotations

from importlib import metadata

from openclaw_rl.config import ConfigError, PrmJudgeConfig
from openclaw_rl.reward.interface import Judge

GROUP = "openclaw_rl.judges"


def judge_name(config: PrmJudgeConfig) -> str:
    """Resolve the configured name: `auto` is `llm` if a model is named, else `rules`."""
    if config.judge != "auto":
        return config.judge
    return "llm" if config.model else "rules"


def load_judge(config: PrmJudgeConfig) -> Judge:
    """Make the configured judge.

    Raises:
        ConfigError: there is no judge of that name (the text lists those there are), or it can't be made.
    """
    name = judge_name(config)
    points = {point.name: point for point in metadata.entry_points(group=GROUP)}
    if name not in points:
        raise ConfigError(
            f"components.prm_judge.judge: {name!r} is not installed; there are: auto, {', '.join(sorted(points))}. "
            f"A plug-in is a package with an entry point in the group {GROUP}")
    point = points[name]
    try:
        judge = point.load()(config)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"components.prm_judge.judge: {name!r} ({point.value}) can't be loaded: "
                          f"{type(error).__name__}: {error}") from error
    if not isinstance(judge, Judge):
        raise ConfigError(f"components.prm_judge.judge: {name!r} ({point.value}) made a {type(judge).__name__}, which "
                          "is no judge: it needs a `name` and `async def vote(transition)`")
    return judge
