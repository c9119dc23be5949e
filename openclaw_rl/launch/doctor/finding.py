"""A check's finding, and what the checks look at."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from openclaw_rl.config import Config
from openclaw_rl.launch.mesh_report import MeshReport
from openclaw_rl.runtime.home import Home

#: ok; warn: it runs, but something is missing or will fail some day; fail: it can't start, or does not work.
Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """One line of `openclaw-rl doctor`."""

    check: str  #: its name, such as `disk`
    level: Level
    text: str
    cure: str = ""  #: what to do; empty when all is well

    def json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, check: str, level: Level, error: object) -> Finding:
        """Of an error's text, which has what to do behind its first semicolon."""
        text, _, cure = str(error).partition("; ")
        return cls(check, level, text, cure)


@dataclass(frozen=True)
class Subject:
    """The mesh that is looked at, which runs or doesn't."""

    home: Home
    config: Config
    report: MeshReport
    here: list[str] = field(default_factory=list)  #: components that this machine is to run
    waiting: list[str] = field(default_factory=list)  #: those of them that don't run

    @property
    def runs(self) -> bool:
        """Whether anything of it runs."""
        return any(component.state != "STOPPED" for component in self.report.components)


def existing(path: Path) -> Path:
    """The folder, or the nearest one above it that is there."""
    return next(folder for folder in (path, *path.parents) if folder.exists())
