"""Failpoints: moments at which a test wants a process to end, such as between a checkpoint and its commit.

Off, they cost a look at two variables. With OPENCLAW_RL_FAILPOINTS, a process that comes to a failpoint whose name is a
file's in that folder takes the file away and ends as by `kill -9`: each file kills once. Tests in one process use
`armed`.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, get_args

#: Names the folder.
VARIABLE = "OPENCLAW_RL_FAILPOINTS"

Failpoint = Literal[
    "start.made",  # a component is made and does not listen yet
    "start.ready",  # it has just become ready
    "delivery.taken",  # messages are on disk and not acknowledged
    "training.checkpoint",  # a version's files are on disk, and nobody knows of it
    "training.commit",  # within the transaction that makes it the head
    "training.committed",  # after that, before anybody is told
    "serving.activation",  # the new state is on disk, and the engine has the old version
    "serving.activated",  # the engine has switched, and no subscriber knows
    "serving.rollback",  # an older version is staged, and nothing is written
    "forgetting.erase",  # a session's rows are deleted, what they leave behind is not
]
NAMES: tuple[Failpoint, ...] = get_args(Failpoint)

_folder = Path(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else None
_armed: dict[str, Callable[[], None]] = {}


def failpoint(name: Failpoint) -> None:
    """Come to a failpoint."""
    if _folder is None and not _armed:
        return
    if name in _armed:
        _armed[name]()
    if _folder is not None:
        with contextlib.suppress(OSError):
            (_folder / name).rename(_folder / f"{name}.{os.getpid()}")
            os.kill(os.getpid(), signal.SIGKILL)


@contextlib.contextmanager
def armed(name: Failpoint, hook: Callable[[], None]) -> Iterator[None]:
    """Call `hook` at a failpoint of this process, for tests; what it raises is raised there."""
    _armed[name] = hook
    try:
        yield
    finally:
        del _armed[name]
