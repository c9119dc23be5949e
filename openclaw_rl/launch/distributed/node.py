"""What is done on a host: `python -m openclaw_rl.launch.distributed.node STEP`, JSON in, JSON out.

A step's arguments come from stdin, or, for the steps that Ray's launcher runs, from files in `--home`. Progress goes to
stderr. Nothing is done that was not asked for, and a step may be done again.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from openclaw_rl.launch import checks
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
    checks.end_orphans(place)
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


def _on_ray(**payload: Any) -> Any:
    from openclaw_rl.launch.distributed import cluster

    return cluster.do(**payload)


STEPS: dict[str, Callable[..., Any]] = {
    "probe": _probe, "put": _put, "keys": _keys, "request": _request, "install": _install, "model": _model,
    "clear": _clear, "remove": _remove, "ray-start": _ray_start, "stop": _ray_stop, "on-ray": _on_ray}


def do(step: str, payload: dict[str, Any]) -> Any:
    """Do a step.

    Raises:
        StepError: it can't be done.
    """
    from openclaw_rl.config import ConfigError

    try:
        return STEPS[step](**payload)
    except (RayError, ConfigError) as error:
        raise StepError(str(error)) from None
    except OSError as error:
        raise StepError(f"{error.filename}: {error.strerror}" if error.filename else str(error)) from None


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m openclaw_rl.launch.distributed.node",
                                     description="Do one step of distributed-start on this host.")
    parser.add_argument("step", choices=STEPS)
    parser.add_argument("--home", help="the home here; arguments are not read from stdin then")
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(message)s")
    payload = {"home": args.home} if args.home is not None else json.loads(sys.stdin.read() or "{}")
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print is not an answer
    try:
        answer = {"result": do(args.step, payload)}
    except StepError as error:
        answer = {"error": str(error)}
    except Exception as error:
        logging.exception("%s", args.step)
        answer = {"error": f"{type(error).__name__}: {error}"}
    with contextlib.suppress(BrokenPipeError):
        print(json.dumps(answer), file=out, flush=True)
    return 1 if "error" in answer else 0


if __name__ == "__main__":
    sys.exit(main())
