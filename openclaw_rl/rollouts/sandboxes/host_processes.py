"""Processes outside of sandboxes, marked by an environment variable that their children inherit, so that all can be
ended, whatever their parents have become."""

from __future__ import annotations

import contextlib
import secrets

import psutil

from openclaw_rl.rollouts.sandboxes.bubblewrap import cgroups
from openclaw_rl.runtime.process import all_processes, kill_marked

#: Its value is `openclaw-rl-LABEL-MAKER-WORD`; see cgroups.maker.
VARIABLE = "OPENCLAW_RL_UNBOXED"


def mark(label: str) -> str:
    """A new value of the variable, for a process that this one starts."""
    return f"{cgroups.PREFIX}{label}-{cgroups.maker()}-{secrets.token_hex(8)}"


def end(value: str, seconds: float) -> None:
    """Kill the processes with this value of the variable. Blocks, for `seconds` at most."""
    kill_marked(VARIABLE, value, seconds)


def remove_leftovers(label: str) -> int:
    """Kill what dead processes have started; returns the number of values of the variable. Blocks."""
    found = set()
    for process in all_processes():
        with contextlib.suppress(psutil.Error, OSError):
            value = process.environ().get(VARIABLE, "")
            if value.startswith(f"{cgroups.PREFIX}{label}-") and cgroups.is_leftover(value):
                found.add(value)
    for value in found:
        end(value, 5)
    return len(found)
