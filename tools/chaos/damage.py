"""Damages one file of a component that is stopped, and tells which turns that takes the state away from."""

from __future__ import annotations

import json
import random
import struct
import time
from pathlib import Path

from openclaw_rl.runtime.home import Home
from tools.chaos.books import TAKEN, snapshot
from tools.chaos.checks import Damage

_WAL_HEADER, _FRAME_HEADER = 32, 24  # bytes


def damage(home: Home, component: str, what: str, how: str, salt: int) -> Damage | None:
    """Truncate a file, or overwrite a part of it with garbage.

    Args:
        component: must be stopped, and be killed before it goes on.
        what: of plan.DAMAGES: policy.json, weights (the newest version's), checkpoint (the newest), store, wal (its
            last transactions), journal.
        how: "truncate" or "garbage".
        salt: decides about where and how much.

    Returns:
        None when there is no such file yet.
    """
    rng = random.Random(salt)
    file = _file(home, component, what)
    if file is None or not file.is_file() or not file.stat().st_size:
        return None
    store = home.component(component) / "state.db"
    concerns_turns = what in ("store", "wal")
    before = snapshot(store, component) if concerns_turns else {}
    size = file.stat().st_size
    at, length = _place(file, what, size, rng)
    with file.open("r+b") as stream:
        if how == "truncate":
            stream.truncate(at)
        else:
            stream.seek(at)
            stream.write(rng.randbytes(min(length, size - at)))
    after = snapshot(store, component) if concerns_turns else {}
    # What the component had taken and handed on is not lost with its note of that.
    at_risk = {id for id, state in before.items() if after.get(id) != state and state != TAKEN}
    text = f"{what}, cut to {at} of {size} bytes" if how == "truncate" else f"{what}, {length} bytes of garbage at {at}"
    return Damage(component, str(file.relative_to(home.root)), text, time.time(), at_risk)


def _file(home: Home, component: str, what: str) -> Path | None:
    folder = home.component(component)
    match what:
        case "store":
            return folder / "state.db"
        case "wal":
            return folder / "state.db-wal"
        case "policy.json":
            return folder / "policy.json"
        case "journal":
            return max(home.logs.glob("rl_trace_*.log"), default=None)
        case "checkpoint":
            versions = _numbers(folder / "checkpoints")
            files = sorted(file for file in versions[-1].iterdir() if file.is_file()) if versions else []
            return max(files, key=lambda file: file.stat().st_size, default=None)
        case "weights":
            newest = _numbers(folder / "versions")
            if component == "policy_server" and (folder / "policy.json").exists():
                active = folder / "versions" / str(json.loads((folder / "policy.json").read_bytes())["active"])
                newest = [active] if active.is_dir() else newest
            return newest[-1] / "model.safetensors" if newest else None
    raise ValueError(f"what: {what!r} is not one of plan.DAMAGES")


def _numbers(root: Path) -> list[Path]:
    folders = [path for path in root.iterdir() if path.name.isdecimal()] if root.is_dir() else []
    return sorted(folders, key=lambda path: int(path.name))


def _place(file: Path, what: str, size: int, rng: random.Random) -> tuple[int, int]:
    """Where the damage begins, and its bytes."""
    if what == "wal":
        with file.open("rb") as stream:
            header = stream.read(_WAL_HEADER)
            if len(header) < _WAL_HEADER:
                return 0, size
            frame = _FRAME_HEADER + struct.unpack(">I", header[8:12])[0]
            valid, salts = 0, header[16:24]
            while True:
                stream.seek(_WAL_HEADER + valid * frame)
                if stream.read(_FRAME_HEADER)[8:16] != salts:
                    break
                valid += 1
        # Behind the valid frames lie old ones that nobody reads: the damage is to hit the last transactions.
        hit = max(0, valid - rng.randint(1, 12))
        return _WAL_HEADER + hit * frame + rng.randrange(frame), max(1, (valid - hit) * frame)
    if what == "store":
        return rng.choice((0, rng.randrange(size))), 4096
    return rng.randrange(size), 64 * 1024
