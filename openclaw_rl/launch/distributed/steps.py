"""Steps that are done on a host; each is idempotent."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from openclaw_rl.launch import leftovers
from openclaw_rl.launch.distributed import probe, ray_node
from openclaw_rl.launch.distributed.ray_node import RayError, RayNode
from openclaw_rl.runtime.home import Home, write_atomically


class StepError(Exception):
    """A step can't be done; the text says why."""


def home_of(folder: str | None) -> Home:
    """The home on this host; None is ~/.openclaw-rl."""
    return Home(Path(folder or "~/.openclaw-rl").expanduser().absolute())


def _probe(home: str | None, **wanted: Any) -> dict[str, Any]:
    return asdict(probe.look(home_of(home), **wanted))


def _put(home: str | None, files: dict[str, str]) -> None:
    """Write files of the home, base64 by relative path, readable by their owner alone."""
    root = home_of(home).create().root
    for name, content in files.items():
        path = (root / name).resolve()
        if not path.is_relative_to(root.resolve()):
            raise StepError(f"{name} is outside of the home")
        write_atomically(path, base64.b64decode(content))


def _keys(home: str | None, content: str) -> None:
    """Add keys to those of the home (keys.json). What was revoked or ends on either side does so here: a key must not
    come back."""
    from openclaw_rl.rpc.auth.keys import KeyFile

    file = home_of(home).create().root / "keys.json"
    KeyFile(file).read()  # raises when it is damaged; it is not overwritten then
    given: dict[str, Any] = json.loads(content)
    known: list[dict[str, Any]] = json.loads(file.read_bytes())["keys"] if file.exists() else []
    merged = {entry["id"]: entry for entry in known}
    for entry in given["keys"]:
        other = merged.get(entry["id"], {})
        ends = {name: min(times) for name in ("expires", "revoked")
                if (times := [one[name] for one in (entry, other) if one.get(name) is not None])}
        merged[entry["id"]] = {**entry, **ends}
    if list(merged.values()) != known:
        write_atomically(file, json.dumps(given | {"keys": list(merged.values())}, indent=1).encode())


def _request(home: str | None, roles: dict[str, list[str]]) -> dict[str, dict[str, str]]:
    """New private keys, which stay, and signing requests for them: by folder in the home and role."""
    from openclaw_rl.rpc.auth import ca

    root = home_of(home).create().root
    return {folder: {role: ca.new_request(root / folder, role).decode() for role in some}
            for folder, some in roles.items()}


def _install(home: str | None, certificates: dict[str, dict[str, str]], authorities: dict[str, str]) -> None:
    """What was signed, by folder and role, and the CA's certificate by folder."""
    from openclaw_rl.rpc.auth import ca

    for folder, signed in certificates.items():
        for role, certificate in signed.items():
            ca.install(home_of(home).root / folder, role, certificate.encode(), authorities[folder].encode())


def _model(home: str | None, model: str) -> str:
    """Make the model's folder, where it takes making."""
    from openclaw_rl.models.prepare import ensure_model

    told = -1

    def say(text: str, share: float) -> None:
        nonlocal told
        if int(share * 10) != told:
            told = int(share * 10)
            print(f"{text} ({share:.0%})", file=sys.stderr, flush=True)

    try:
        return str(ensure_model(model, home_of(home).create(), say))
    except Exception as error:
        raise StepError(f"the model can't be prepared: {error}") from error


def _remove(files: list[str]) -> None:
    """Remove files that Ray's launcher left."""
    from openclaw_rl.launch.distributed.stop import LAUNCHER_FILES

    for name in files:
        if name in LAUNCHER_FILES:
            Path(name).expanduser().unlink(missing_ok=True)


def _clear(home: str | None) -> None:
    """Let nothing be left over of an earlier mesh: a start that was cut short, a state of Ray's head."""
    from openclaw_rl.launch.distributed import stop

    place = home_of(home)
    node = RayNode.read(place)
    if node is not None and (left := ray_node.stop(node)):
        raise StepError(f"of an earlier start is left: {'; '.join(left)}")
    leftovers.end_orphans(place)
    stop.clear(place)


def _ray_start(home: str | None) -> bool:
    """Start this host's part of the cluster as run/ray.json says, unless it runs."""
    from openclaw_rl.launch.distributed.stop import state_folder

    place = home_of(home)
    node = RayNode.read(place)
    if node is None:
        raise StepError(f"{place.run / 'ray.json'} is missing or damaged: `openclaw-rl distributed-start` writes it")
    return ray_node.start(node, state_folder(place))


def _ray_stop(home: str | None) -> list[str]:
    """End this host's part of the mesh; what is left, which is nothing."""
    from openclaw_rl.launch.distributed import stop

    return stop.here(home_of(home))


STEPS: dict[str, Callable[..., Any]] = {
    "probe": _probe, "put": _put, "keys": _keys, "request": _request, "install": _install, "model": _model,
    "clear": _clear, "remove": _remove, "ray-start": _ray_start, "stop": _ray_stop}


def do(step: str, payload: dict[str, Any], functions: Mapping[str, Callable[..., Any]] = STEPS) -> Any:
    """Do a step: one of `functions`.

    Raises:
        StepError: it can't be done.
    """
    from openclaw_rl.config import ConfigError

    try:
        return functions[step](**payload)
    except (RayError, ConfigError) as error:
        raise StepError(str(error)) from None
    except OSError as error:
        raise StepError(f"{error.filename}: {error.strerror}" if error.filename else str(error)) from None
