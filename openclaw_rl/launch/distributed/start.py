"""The steps of distributed-start."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from openclaw_rl.config import Config, ConfigError
from openclaw_rl.launch.checks import StartError
from openclaw_rl.launch.distributed import certificates, checks, controller, launcher, ray_node, resume
from openclaw_rl.launch.distributed import host as hosts
from openclaw_rl.launch.distributed import plan as plans
from openclaw_rl.launch.distributed import stop as stopping
from openclaw_rl.launch.distributed.host import Host, HostError
from openclaw_rl.launch.distributed.join import address_of, by_ray
from openclaw_rl.launch.distributed.probe import Facts
from openclaw_rl.launch.mesh_report import MeshReport
from openclaw_rl.launch.status import report
from openclaw_rl.launch.supervisor import SupervisorError
from openclaw_rl.models.api_endpoints import uses_api
from openclaw_rl.rpc.auth.keys.ring import key_path
from openclaw_rl.rpc.auth.keys.store import KeyFile, KeyFileError
from openclaw_rl.runtime import mesh_file, mesh_id
from openclaw_rl.runtime.home import Home

#: Seconds for all of Ray's nodes to be there.
_NODES = 90
#: Seconds that a component may be DEGRADED at its start, before nobody waits any longer that it gets better.
_DEGRADED_SECONDS = 8.0
#: How many times as long as without progress a start is waited for at all.
_AT_MOST = 20
#: Name of the key that is made for the first client of the HTTP entrypoint.
FIRST_KEY = "first"


class DistributedStart:
    """One run of distributed-start.

    Args:
        home: of the machine that starts; the mesh's CA and keys are in it.
        config: with mode: distributed.
        console: for progress.

    Raises:
        StartError: the configuration is for another command.
    """

    def __init__(self, home: Home, config: Config, console: Console) -> None:
        if config.mode != "distributed":
            raise StartError(f"mode: {config.mode} is for this machine alone: `openclaw-rl local-start`; "
                             "distributed-start needs mode: distributed and a `host` for each component")
        self.home, self.console = home, console
        self.plan = plans.make(config)
        self.config = config
        self.join = address_of(config)
        self.head = self.plan.head
        self.facts: dict[str, Facts] = {}
        self.reached: dict[str, Host] = {}
        self._certs = ""
        self._ray_token = secrets.token_hex(32)

    def check(self) -> list[str]:
        """All that is wrong; nothing is started or changed."""
        problems: list[str] = []
        with self.step("checking the hosts"):
            if self.join:
                problems += self._reach_by_ray()
            else:
                self.reached = hosts.reach(self.plan.all_hosts, self.config.distributed)
            temps = {name: "" if self.join else temp_folder(self.plan.mesh, name) for name in self.reached}
            self.facts, found = checks.check(self.plan, self.reached, os.environ, temps=temps, homes=self._homes())
        return list(dict.fromkeys(problems + found))

    def start(self, timeout: float) -> MeshReport:
        """Start the mesh, and return when its components are RUNNING. What was started is ended when that fails, but
        not when `timeout` seconds have passed without any progress.

        Raises:
            StartError: it fails; the text says why and what to do.
        """
        if self.config.mesh_id is None:  # the hosts have home folders of their own
            self.config = self.config.model_copy(update={"mesh_id": mesh_id.make(self.home)})
        running = mesh_file.read(self.home)
        if running is not None and (found := resume.look(self, running)) is not None:
            return found
        if problems := self.check():
            raise StartError("\n".join(problems))
        try:
            self._prepare()
            if not self.join:
                self._bring_up()
            self._start_controller()
            return self._wait(timeout)
        except BaseException as error:
            if not isinstance(error, _Late):  # what was prepared has secrets, too
                self.undo()
            if isinstance(error, HostError):
                raise StartError(str(error)) from None
            raise

    # -- what is known before

    def _homes(self) -> dict[str, str | None]:
        """Folder of each host, as it is asked for there; None is ~/.openclaw-rl."""
        own = self.config.distributed.home
        return {name: str(self.home.root) if own is None and isinstance(host, hosts.Here) else own
                for name, host in self.reached.items()}

    @property
    def _roots(self) -> dict[str, str]:
        """The same, absolute, once the hosts were looked at."""
        return {name: facts.root for name, facts in self.facts.items()}

    def _reach_by_ray(self) -> list[str]:
        """The hosts through a cluster that runs; what is wrong with it."""
        assert self.join is not None
        if self.join.startswith("ray://"):
            return [f"distributed.ray_address: {self.join!r} is the address of a Ray client; write HOST:PORT of the "
                    "cluster's head (6379 by default), and start on one of its nodes"]
        here = hosts.Here(self.head, hosts.python_of(self.config.distributed))
        cluster = self._cluster_payload()
        try:
            nodes = {entry["host"] for entry in here.call("on-ray", timeout=90, **cluster, what="nodes")}
        except HostError as error:
            return [f"{error}: distributed-start joins a cluster from one of its nodes; without distributed.ray_address"
                    " and RAY_ADDRESS it brings one up itself"]
        missing = [name for name in self.plan.all_hosts if name not in nodes]
        self.reached = by_ray([name for name in self.plan.all_hosts if name in nodes], here.call, cluster)
        problems = [f"{checks.label(self.plan, name)} is no living node of the Ray cluster at {self.join} (it has "
                    f"{', '.join(sorted(nodes))})" for name in missing]
        if self.config.distributed.environment and cluster["variables"].get("RAY_USE_TLS") != "1":
            problems.append("distributed.environment: the Ray cluster at "
                            f"{self.join} is not encrypted (RAY_USE_TLS=1), so {', '.join(self._handed())} can't be "
                            "handed over: set the variables on the hosts, or let distributed-start bring Ray up")
        return problems

    def _handed(self) -> list[str]:
        return list(self.config.distributed.environment)

    def _cluster_payload(self) -> dict[str, Any]:
        cluster = self._cluster()
        return {"address": cluster.address, "mesh": cluster.mesh, "variables": stopping.cluster_variables(cluster)}

    def _cluster(self) -> mesh_file.Cluster:
        address = self.join or f"{self.head}:{self.config.distributed.ray_port}"
        return mesh_file.Cluster(self.plan.mesh, address, not self.join, self.head, self.plan.all_hosts, self._certs)

    # -- the steps

    def _prepare(self) -> None:
        """Everything on the hosts that is no process."""
        config = self.config
        with self.step("making certificates"):
            certificates.provide(self.home, self.plan, self.reached, self._roots, ray=not self.join)
            if not self.join:
                self._certs = f"{self._roots[self.head]}/{certificates.RAY_FOLDER}"
        keys = self._keys()
        self._prepare_model()
        with self.step("writing the configuration of each host"):
            handed = {name: os.environ[name] for name in config.distributed.environment}
            _raise(hosts.on_all(self.reached, lambda host: host.call(
                "put", home=self._roots[host.name], files=_encoded(self._files(host.name, handed)))))
            if keys is not None:
                text = keys.decode()
                _raise(hosts.on_all({name: self.reached[name] for name in self.reached if self._has_entrypoint(name)},
                                    lambda host: host.call("keys", home=self._roots[host.name], content=text)))

    def _files(self, host: str, handed: Mapping[str, str]) -> dict[str, bytes]:
        files = {"run/config.yaml": controller.config_text(self.config, host, self.plan.hosts).encode()}
        if handed:
            files["run/environment.json"] = json.dumps(handed).encode()
        if not self.join:
            files["run/ray.json"] = json.dumps(self._ray_node(host).__dict__).encode()
            files[f"{certificates.RAY_FOLDER}/{ray_node.TOKEN_FILE}"] = self._ray_token.encode()
        if host == self.head:
            spec = {"config": config_for_hosts(self.config), "ours": not self.join, "hosts": self.plan.hosts,
                    "all_hosts": self.plan.all_hosts, "cluster": self._cluster().__dict__,
                    "python": hosts.python_of(self.config.distributed)}
            files["run/keeper.json"] = json.dumps(spec).encode()
        return files

    def _has_entrypoint(self, host: str) -> bool:
        """Return whether something that takes bearer keys runs there, or may later."""
        names = self.plan.hosts if self.config.distributed.elsewhere else self.plan.components(host)
        return any(name == "policy_server" or "keys_port" in plans.ports(self.config, name) for name in names)

    def _ray_node(self, host: str) -> ray_node.RayNode:
        return ray_node.RayNode(
            self.plan.mesh, host, self._cluster().address, self.config.distributed.ray_memory,
            temp_folder(self.plan.mesh, host), f"{self._roots[host]}/{certificates.RAY_FOLDER}",
            stopping.LAUNCHER_FILES[0] if host == self.head else "")

    def _keys(self) -> bytes | None:
        """The keys of the entrypoints. One is made when the HTTP entrypoint has no valid one: nobody on a network
        gets in without."""
        path = key_path(self.config, self.home)
        policy = self.config.components.policy_server
        file = KeyFile(path)
        try:
            there = any(not key.dead() for key in file.read()) or bool(policy.api_keys)
            if not there and "policy_server" in self.plan.hosts:
                shown, _ = file.add(FIRST_KEY, ["chat", "read"])
                first = first_key_file(self.home)
                first.touch(mode=0o600)
                first.write_text(shown + "\n")
                self.console.print(f"[green]✓[/] made a key for the HTTP entrypoint, in {first}; `openclaw-rl keys` "
                                   "makes others", soft_wrap=True, highlight=False)
            return path.read_bytes() if path.exists() else None
        except (KeyFileError, OSError) as error:
            raise StartError(str(error)) from None

    def _prepare_model(self) -> None:
        if uses_api(self.config.components.policy_server):
            return
        need = {name: host for name, host in self.reached.items()
                if {"policy_server", "trainer"} & set(self.plan.components(name))}
        if not need:
            return
        with self.step("preparing the model on " + ", ".join(need)) as say:
            _raise(hosts.on_all(need, lambda host: host.call(
                "model", timeout=1200, say=lambda line: say(f"{host.name}: {line}"), home=self._roots[host.name],
                model=self.config.components.policy_server.model)))

    def _bring_up(self) -> None:
        with self.step("starting Ray") as say:
            _raise(hosts.on_all(self.reached, lambda host: host.call("clear", timeout=60,
                                                                     home=self._roots[host.name])))
            launcher.up(self.plan.mesh, self.head, self.reached, self.config.distributed, self._roots,
                        self.home.logs / "ray-up.log", say)
            missing = self._on_ray("wait", timeout=_NODES + 60, hosts=self.plan.all_hosts, seconds=_NODES)
            launcher.forget_key(self.reached[self.head])
            if missing:
                raise HostError(f"Ray has not come up on {', '.join(missing)}; see {self.home.logs / 'ray-up.log'}, "
                                "and on the host the logs in the newest /tmp/ocrl-*/session_latest/logs")

    def _start_controller(self) -> None:
        with self.step("starting the components"):
            standby = next((name for name in self.plan.all_hosts if name != self.head), None)
            settings = self.config.distributed.model_copy(update={
                "python": hosts.python_of(self.config.distributed), "home": self._roots[self.head]})
            self._on_ray("up", timeout=120, head=self.head, home=self._roots[self.head], homes=self._roots, standby=None
                         if standby is None or self.join else
                         {"host": standby, "settings": settings.model_dump(mode="json")})
            mesh_file.write(self.home, mesh_file.MeshFile(
                plans.for_clients(self.config, self.plan.hosts), plans.http_address(self.config, self.plan.hosts),
                dict(self.plan.hosts), self._cluster()))

    def _on_ray(self, what: str, timeout: float, **payload: Any) -> Any:
        who = hosts.Here(self.head, hosts.python_of(self.config.distributed)) if self.join else self.reached[self.head]
        return who.call("on-ray", timeout=timeout, **self._cluster_payload(), what=what, **payload)

    def _wait(self, timeout: float) -> MeshReport:
        """Until all run, or `timeout` seconds have brought nothing new of what is missing; a component that ends again
        and again is not waited for."""
        began = moved = time.monotonic()
        seen: object = None
        shown: set[str] = set()
        degraded: dict[str, float] = {}
        with self.console.status("starting") as line:
            while True:
                mesh = report(self.home)
                waited = [c for c in mesh.components if c.name in self.plan.hosts]
                for c in waited:
                    if c.name in shown:
                        continue
                    if c.state == "RUNNING":
                        shown.add(c.name)
                        self.console.print(f"[green]✓[/] {c.name:<14} {c.address}  [dim]{time.monotonic() - began:.1f} "
                                           "s[/]", highlight=False)
                    elif c.state == "DEGRADED" and c.status is not None:
                        if time.monotonic() - degraded.setdefault(c.name, time.monotonic()) > _DEGRADED_SECONDS:
                            shown.add(c.name)
                    elif c.state == "FAILED" or (c.crashes >= 3 and c.status is None):
                        raise StartError(f"{c.name} ends as soon as it is started on {c.host}: {c.detail}")
                missing = [c for c in waited if c.name not in shown]
                if not missing:
                    return mesh
                now = time.monotonic()
                if (new := [(c.name, c.state, c.detail, c.pid) for c in missing]) != seen:
                    seen, moved = new, now
                if now - moved > timeout or now - began > _AT_MOST * timeout:
                    raise _Late("\n".join(f"{c.name} on {c.host} is not RUNNING after {now - began:.0f} s ({c.state} "
                                          f"{c.detail}); it is still tried, `openclaw-rl status` tells how it goes"
                                          for c in missing))
                line.update("starting " + ", ".join(f"{c.name} on {c.host}" for c in missing))
                time.sleep(0.3)

    def undo(self, running: mesh_file.MeshFile | None = None) -> None:
        """End what was started."""
        mesh = running or mesh_file.MeshFile(plans.for_clients(self.config, self.plan.hosts), "", dict(self.plan.hosts),
                                             self._cluster())
        with self.step("ending what was started") as say:
            try:
                stopping.everywhere(self.home, mesh, say)
            except (SupervisorError, ConfigError) as error:
                self.console.print(f"[yellow]{error}[/]", soft_wrap=True, highlight=False)

    @contextlib.contextmanager
    def step(self, text: str) -> Iterator[hosts.Say]:
        began = time.monotonic()
        with self.console.status(text) as line:
            yield lambda more: line.update(f"{text}: {more[:160]}")
        self.console.print(f"[green]✓[/] {text} [dim]{time.monotonic() - began:.1f} s[/]", highlight=False)


class _Late(StartError):
    """It takes long; it is left running."""


def temp_folder(mesh: str, host: str) -> str:
    """Ray's folder on a host: short, and another one on each, since hosts may share a /tmp."""
    return f"/tmp/ocrl-{hashlib.sha256(f'{mesh} {host}'.encode()).hexdigest()[:10]}"


def first_key_file(home: Home) -> Path:
    """Path of the key that was made for the first client."""
    return home.root / "first-key"


def config_for_hosts(config: Config) -> dict[str, Any]:
    """The configuration as it goes to the hosts."""
    return config.model_dump(mode="json", exclude_defaults=True)


def _encoded(files: Mapping[str, bytes]) -> dict[str, str]:
    return {name: base64.b64encode(data).decode() for name, data in files.items()}


def _raise(done: tuple[dict[str, Any], dict[str, str]]) -> dict[str, Any]:
    results, errors = done
    if errors:
        raise HostError("\n".join(f"{name}: {why}" for name, why in errors.items()))
    return results
