"""Shifts the wall clock of a component's process.

Python imports this at its start when the folder is in PYTHONPATH. Only processes of components take part: they add
the seconds that the file $OPENCLAW_RL_CHAOS_CLOCK/NAME holds to each reading of the wall clock. Monotonic clocks stay
as they are, as they do when an administrator sets a machine's clock.
"""

from __future__ import annotations

import datetime
import os
import sys
import time
from typing import Any

_EVERY = 0.2  # seconds between two looks at the file


def _component() -> str:
    arguments = sys.orig_argv
    if "openclaw_rl.launch.component" not in arguments:
        return ""
    return arguments[arguments.index("openclaw_rl.launch.component") + 1]


class _Plain:
    """A function that stays one as the attribute of a class (logging.Formatter.converter), as a built-in does."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def __call__(self, *args: Any) -> Any:
        return self._function(*args)


def _install(path: str) -> None:
    real = {name: getattr(time, name) for name in
            ("time", "time_ns", "localtime", "gmtime", "strftime", "ctime", "monotonic")}
    state = [0.0, -_EVERY]  # offset in seconds, when it was read

    def offset() -> float:
        moment = real["monotonic"]()
        if moment - state[1] >= _EVERY:
            state[1] = moment
            try:
                with open(path) as file:
                    state[0] = float(file.read() or 0)
            except (OSError, ValueError):
                pass  # being written: as before
        return state[0]

    def shifted() -> float:
        return real["time"]() + offset()

    def localtime(seconds: float | None = None) -> time.struct_time:
        return real["localtime"](shifted() if seconds is None else seconds)

    def strftime(form: str, moment: Any = None) -> str:
        return real["strftime"](form, localtime() if moment is None else moment)

    def gmtime(seconds: float | None = None) -> time.struct_time:
        return real["gmtime"](shifted() if seconds is None else seconds)

    def ctime(seconds: float | None = None) -> str:
        return real["ctime"](shifted() if seconds is None else seconds)

    def time_ns() -> int:
        return real["time_ns"]() + int(offset() * 1e9)

    for name, function in (("time", shifted), ("time_ns", time_ns), ("localtime", localtime), ("gmtime", gmtime),
                           ("strftime", strftime), ("ctime", ctime)):
        setattr(time, name, _Plain(function))

    real_datetime = datetime.datetime

    class Kind(type):
        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, real_datetime)

    class Shifted(datetime.datetime, metaclass=Kind):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Any:
            return real_datetime.fromtimestamp(shifted(), tz)

        @classmethod
        def utcnow(cls) -> Any:
            return real_datetime.fromtimestamp(shifted(), datetime.UTC).replace(tzinfo=None)

    Shifted.__name__ = Shifted.__qualname__ = "datetime"
    datetime.datetime = Shifted  # type: ignore[misc]


_name = _component()
if _name and (_folder := os.environ.get("OPENCLAW_RL_CHAOS_CLOCK")):
    _install(os.path.join(_folder, _name))
