"""Bring up a Ray cluster on hosts that have none: by Ray's own cluster launcher, and by ssh where that does not do.

Ray is the controller's and the agents' transport and their supervisor; nothing of the mesh's data goes through it.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from openclaw_rl.config import DistributedConfig
from openclaw_rl.launch.distributed import host as hosts
from openclaw_rl.launch.distributed.host import NODE_MODULE, Host, HostError, Say
from openclaw_rl.launch.distributed.stop import LAUNCHER_FILES

#: Seconds for `ray up`, and for one host's part.
_UP, _PART = 240, 150


def why_not(settings: DistributedConfig, reached: Mapping[str, Host]) -> str:
    """The reason why Ray's launcher can't be used; the hosts' parts are then started by plain ssh. Empty if it can."""
    if len(reached) < 2:
        return "there is one host"
    if settings.ssh_port != 22:
        return "it knows no other port than 22"
    missing = [tool for tool in ("ssh", "rsync") if shutil.which(tool) is None]
    return f"{', '.join(missing)} is missing here" if missing else ""


def configuration(mesh: str, head: str, workers: list[str], settings: DistributedConfig, homes: Mapping[str, str]
                  ) -> dict[str, Any]:
    """Configuration of Ray's launcher. Its head starts the workers, so that their commands are the same for all."""
    auth = {"ssh_user": settings.ssh_user or _user()}
    if settings.ssh_key is not None:
        auth["ssh_private_key"] = str(settings.ssh_key.expanduser())
    python = hosts.python_of(settings)

    def start(home: str) -> list[str]:
        return [shlex.join([python, "-P", "-m", NODE_MODULE, "ray-start", "--home", home])]

    return {
        "cluster_name": mesh, "max_workers": len(workers),
        "provider": {"type": "local", "head_ip": head, "worker_ips": workers}, "auth": auth,
        "initialization_commands": [], "setup_commands": [], "head_setup_commands": [], "worker_setup_commands": [],
        "head_start_ray_commands": start(homes[head]), "worker_start_ray_commands": start(settings.home or "")}


def up(mesh: str, head: str, reached: Mapping[str, Host], settings: DistributedConfig, homes: Mapping[str, str],
       log: Path, say: Say) -> None:
    """Start Ray on all hosts. Each has its run/ray.json already.

    Args:
        log: file for what the launcher says.

    Raises:
        HostError: it does not start; the text names the hosts.
    """
    workers = [name for name in reached if name != head]
    if reason := why_not(settings, reached):
        say(f"starting Ray over ssh ({reason})")
        _start(head, reached, homes)
    else:
        say("starting Ray with its cluster launcher")
        _ray_up(configuration(mesh, head, workers, settings, homes), log)
    # The launcher returns before the workers are there, and may leave one out: a part that runs already is left alone.
    say("waiting for Ray on " + ", ".join(workers or [head]))
    _, errors = hosts.on_all({name: reached[name] for name in workers},
                             lambda host: host.call("ray-start", timeout=_PART, home=homes[host.name]))
    if errors:
        raise HostError("; ".join(f"{name}: {why}" for name, why in errors.items()))


def _start(name: str, reached: Mapping[str, Host], homes: Mapping[str, str]) -> None:
    try:
        reached[name].call("ray-start", timeout=_PART, home=homes[name])
    except HostError as error:
        raise HostError(f"{name}: {error}") from None


def _ray_up(config: dict[str, Any], log: Path) -> None:
    env = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    # Autoscaler 2 counts the head among the workers and never starts the last one.
    env |= {"RAY_UP_enable_autoscaler_v2": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    with tempfile.TemporaryDirectory(prefix="openclaw-rl-") as folder, log.open("wb") as out:
        file = Path(folder) / "cluster.yaml"
        file.write_text(yaml.safe_dump(config))
        try:
            code = subprocess.run(
                [sys.executable, "-P", "-m", "ray.scripts.scripts", "up", str(file), "-y", "--no-config-cache",
                 "--disable-usage-stats"], stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=env,
                timeout=_UP, check=False).returncode
        except subprocess.TimeoutExpired:
            code = 124
    if code:
        last = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()][-4:]
        raise HostError(f"`ray up` failed: {' / '.join(last)[:600]} (all of it in {log})")


def forget_key(head: Host) -> None:
    """Remove the copy of the private key that the launcher left on the head: it is not needed any more."""
    with contextlib.suppress(HostError):
        head.call("remove", files=[LAUNCHER_FILES[1]])


def _user() -> str:
    import getpass

    return getpass.getuser()
