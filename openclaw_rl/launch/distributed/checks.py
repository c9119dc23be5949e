"""Checks of all hosts at once before a start; all problems in one list."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from openclaw_rl.config import EMBEDDED_MODEL, Config, ConfigError
from openclaw_rl.launch.distributed import host as hosts
from openclaw_rl.launch.distributed.host import Host, HostError
from openclaw_rl.launch.distributed.plan import Plan, ports
from openclaw_rl.launch.distributed.probe import Facts
from openclaw_rl.models.api_endpoints import check_credentials, uses_api
from openclaw_rl.rollouts.sandboxes.images import build_line, recipe_of

#: Prints the Python's version and openclaw-rl's; works with any release of it, or none.
_VERSIONS = ("import json, sys\nimport importlib.metadata as m\ntry: v = m.version('openclaw-rl')\n"
             "except m.PackageNotFoundError: v = ''\nprint(json.dumps([sys.version.split()[0], v]))")
#: Bytes that a component needs at the least.
_MEMORY = {"policy_server": 2**30, "env_server": 200 * 2**20, "prm_judge": 200 * 2**20, "trainer": 1536 * 2**20}
_DISK = {"policy_server": 2**30, "env_server": 200 * 2**20, "prm_judge": 200 * 2**20, "trainer": 2 * 2**30}
#: Further, for Ray itself.
_RAY_MEMORY = 300 * 2**20


def check(plan: Plan, reached: Mapping[str, Host], environ: Mapping[str, str], *, temps: Mapping[str, str],
          homes: Mapping[str, str | None]) -> tuple[dict[str, Facts], list[str]]:
    """Look at all hosts.

    Args:
        reached: the hosts.
        environ: variables here, some of which the components shall get.
        temps: Ray's folder of this mesh on each host; "" when a cluster is joined.
        homes: folder by host; None is ~/.openclaw-rl there.

    Returns:
        What each host has, and all that is wrong, a sentence each.
    """
    problems = [*plan.problems, *_configuration(plan.config, environ)]
    told, errors = hosts.on_all(reached, _ask_versions)
    problems += [f"{label(plan, name)}: {why}" for name, why in errors.items()]
    good = {}
    for name, (python, package) in told.items():
        if found := _versions(python, package):
            problems.append(f"{label(plan, name)}: {found}")
        else:
            good[name] = reached[name]

    def look(host: Host) -> tuple[Facts, float]:
        began = time.time()
        answer = host.call("probe", timeout=90, home=homes[host.name], temp=temps[host.name],
                           **wanted(plan, host.name))
        ended = time.time()
        try:
            facts = Facts(**answer)
        except TypeError:
            raise HostError("it has another openclaw-rl; all hosts of a mesh need the same: pip install "
                            f"'openclaw-rl[distributed]=={importlib.metadata.version('openclaw-rl')}'") from None
        return facts, max(0.0, began - facts.clock, facts.clock - ended)

    seen, errors = hosts.on_all(good, look)
    problems += [f"{label(plan, name)}: {why}" for name, why in errors.items()]
    for name in plan.all_hosts:
        if name in seen:
            problems += [f"{label(plan, name)}: {text}" for text in judge(plan, name, *seen[name])]
    return {name: facts for name, (facts, _) in seen.items()}, problems


def label(plan: Plan, host: str) -> str:
    """Name of a host in a sentence."""
    name = plan.names.get(host, host)
    return host if name == host else f"{name} ({host})"


def wanted(plan: Plan, host: str) -> dict[str, Any]:
    """Arguments of probe.look for a host."""
    config, names = plan.config, plan.components(host)
    want: dict[str, Any] = {
        "ports": {f"components.{name}.{key}": (host, port) for name in names
                  for key, port in ports(config, name).items()},
        "packages": packages(config, names), "images": [], "model": ""}
    if host == plan.head and not _joined(config):
        want["ports"]["distributed.ray_port"] = (host, config.distributed.ray_port)
    if "env_server" in names:
        want["images"] = sorted({env.image for env in config.components.env_server.environments.values() if env.image})
    policy = config.components.policy_server
    if {"policy_server", "trainer"} & set(names) and policy.model.startswith(("/", "~")):
        want["model"] = policy.model
    if "trainer" in names:
        want["trainer"] = config.model_dump(mode="json", exclude_defaults=True)
    return want


def packages(config: Config, names: list[str]) -> list[str]:
    """Importable packages that components need besides the plain ones."""
    found = ["ray"]
    policy, trainer = config.components.policy_server, config.components.trainer
    if {"policy_server", "trainer"} & set(names) and not uses_api(policy):
        found += ["torch", "transformers", "safetensors", "tokenizers"]
    if "policy_server" in names and policy.engine == "sglang":
        found.append("sglang")
    if "trainer" in names and trainer.backend == "megatron":
        found.append("megatron")
    return found


_EXTRAS = {"ray": "distributed", "sglang": "sglang", "megatron": "megatron"}


def judge(plan: Plan, host: str, facts: Facts, clock: float) -> list[str]:
    """Problems of a host, by what it has.

    Args:
        clock: seconds that its clock is surely off.
    """
    config, names = plan.config, plan.components(host)
    if other := _versions(facts.python, facts.version):  # those of a joined cluster were not asked before
        return [other]
    problems = list(facts.problems)
    if facts.running or facts.ray:
        what = ", ".join(facts.running) or "Ray"
        problems.append(f"{what} of a mesh in {facts.root} runs there already: `openclaw-rl stop-all` on the machine "
                        "that started it ends that, or set another distributed.home")
    else:
        problems += [f"{key}: {why}; set another port, or end what uses it" for key, why in facts.ports.items()]
    if facts.missing:
        extras = sorted({_EXTRAS.get(name, "embedded") for name in facts.missing})
        problems.append(f"{', '.join(facts.missing)} can't be imported: pip install "
                        f"'openclaw-rl[{','.join(extras)}]=={facts.version}'")
    if clock > config.distributed.max_clock_difference:
        problems.append(f"its clock is {clock:.0f} s off the one here (distributed.max_clock_difference: "
                        f"{config.distributed.max_clock_difference:g}): start NTP there (timedatectl set-ntp true)")
    disk = sum(_DISK[name] for name in names)
    if not facts.problems and facts.disk < disk:
        problems.append(f"{facts.root} has {_mb(facts.disk)} free and needs {_mb(disk)}: make room, or set "
                        "distributed.home")
    light = uses_api(config.components.policy_server)
    memory = sum(_MEMORY["env_server"] if light else _MEMORY[name] for name in names) + _RAY_MEMORY
    if facts.available < memory:
        problems.append(f"{_mb(facts.available)} of memory are free and {', '.join(names) or 'Ray'} need "
                        f"{_mb(memory)} at the least: end something there, or place a component elsewhere")
    problems += _images(config, facts)
    if not facts.model:
        problems.append(f"components.policy_server.model: there is no folder {config.components.policy_server.model}; "
                        "copy the model to the same path on each host of policy_server and trainer")
    return problems


def _images(config: Config, facts: Facts) -> list[str]:
    """Images that no back end there can use which the configuration allows."""
    problems = []
    for name, env in config.components.env_server.environments.items():
        image = env.image
        if image is None or image not in facts.images:
            continue
        in_engine, unusable = facts.images[image], facts.built.get(image, "")
        if (in_engine and env.backend != "bubblewrap") or (not unusable and env.backend != "docker"):
            continue
        key = f"components.env_server.environments.{name}.image: {image}"
        line = build_line(recipe_of(image), "docker", image)
        if env.backend != "docker":
            more = f"; or for {facts.engine}: {line}" if facts.engine and env.backend == "auto" else ""
            problems.append(f"{key}: {unusable}{more}")
        elif facts.engine:
            problems.append(f"{key} is not there; build it: {line}, or `{facts.engine} pull {image}`")
        else:
            problems.append(f"{key} can't be there without docker or podman: install one and then build it: {line}; or "
                            "let `backend` be bubblewrap")
    return problems


def _configuration(config: Config, environ: Mapping[str, str]) -> list[str]:
    """Problems that need no look at a host."""
    problems = []
    unset = [name for name in config.distributed.environment if not environ.get(name)]
    if unset:
        problems.append(f"distributed.environment: {', '.join(unset)} is not set here, so it can't be handed over")
    try:
        check_credentials(config)
    except ConfigError as error:
        problems.append(str(error))
    model = config.components.policy_server.model
    if not uses_api(config.components.policy_server) and model != EMBEDDED_MODEL and not model.startswith(("/", "~")):
        problems.append(f"components.policy_server.model: {model!r} is a folder relative to the one you are in, which "
                        f"the other hosts can't know: write {Path(model).absolute()}")
    return problems


def _ask_versions(host: Host) -> tuple[str, str]:
    # Those of a joined cluster have no command line; they tell their version with the rest.
    if not isinstance(host, hosts.Ssh | hosts.Here):
        return platform.python_version(), importlib.metadata.version("openclaw-rl")
    try:
        output = host.run([host.python, "-P", "-c", _VERSIONS])
        python, package = json.loads(output.splitlines()[-1])
    except HostError as error:
        text = str(error)
        if "No such file" in text or "not found" in text:
            raise HostError(f"there is no Python at {host.python}: set distributed.python, or install it there"
                            ) from None
        raise
    except (ValueError, IndexError):
        raise HostError(f"{host.python} is no Python") from None
    return python, package


def _versions(python: str, package: str) -> str:
    """Problems of a host's versions, which must be those here: one mesh speaks one contract, and Ray insists."""
    here, own = platform.python_version(), importlib.metadata.version("openclaw-rl")
    if not package:
        return f"openclaw-rl is not installed in its Python {python}: pip install 'openclaw-rl[distributed]=={own}'"
    if package != own:
        return (f"it has openclaw-rl {package}, here it is {own}; all hosts of a mesh need the same: pip install "
                f"'openclaw-rl[distributed]=={own}'")
    if python != here:
        return f"its Python is {python}, here it is {here}; Ray needs the same on all hosts"
    return ""


def _joined(config: Config) -> bool:
    from openclaw_rl.launch.distributed.join import address_of

    return address_of(config) is not None


def _mb(size: float) -> str:
    return f"{size / 2**20:.0f} MB"
