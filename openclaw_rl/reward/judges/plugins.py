"""Look-up of judges by name: `classifier`, `rules`, `llm`, and plug-ins of other packages.

A package adds a judge with an entry point in the group `openclaw_rl.judges` that names a callable
`make(config: PrmJudgeConfig) -> Judge`; servers/judge_plugin_example is a worked example.
"""

from __future__ import annotations

import logging
from importlib import metadata

from openclaw_rl.config import ConfigError, PrmJudgeConfig
from openclaw_rl.reward.interface import Judge
from openclaw_rl.reward.judges.classifier.embedding import missing

GROUP = "openclaw_rl.judges"
logger = logging.getLogger(__name__)


def judge_name(config: PrmJudgeConfig) -> str:
    """Resolve the configured name: `auto` is `llm` if a model is named, else `classifier`, or `rules` where that can't
    run."""
    if config.judge != "auto":
        return config.judge
    return "llm" if config.model else "rules" if _classifier_lacks() else "classifier"


def _classifier_lacks() -> str:
    """What the judge `classifier` needs and this installation or machine lacks; empty if nothing."""
    if "classifier" not in metadata.entry_points(group=GROUP).names:
        return "its entry point"  # a checkout that was updated and not installed again
    return missing()


def load_judge(config: PrmJudgeConfig) -> Judge:
    """Make the configured judge.

    Raises:
        ConfigError: there is no judge of that name (the text lists those there are), or it can't be made.
    """
    name = judge_name(config)
    if config.judge == "auto" and name == "rules":
        logger.warning("judging by the rules alone: the judge `classifier` lacks %s (pip install "
                       "'openclaw-rl[embedded]', Linux on x86-64)", _classifier_lacks())
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
