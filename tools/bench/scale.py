#!/usr/bin/env python3
"""How cost grows with policy servers and sessions; SCALE.md beside this file says what follows from it.

    .venv/bin/python tools/bench/scale.py turns [--policy-servers 1 4 16] [--sessions 200 1000 4000]
    sudo .venv/bin/python tools/bench/scale.py fanout [--policy-servers 4 16] [--mbit 100] [--mib 16]

`turns`: the real policy servers, each with a stub in place of its engine, the real environment server and rules judge,
and a process that accepts samples with the trainer's own code; each a process of its own. Users hold `--sessions`
conversations of four turns at the same time. CPU milliseconds per turn by component, and turns a second until the last
sample was on the trainer's disk.

`fanout`: each policy server on a host in a network namespace with a link of `--mbit` each way, mutual TLS, a version of
`--mib` all of whose values changed. Once all are fed by the trainer, and then each by one that has it already
(`policy_server.weights_from`, in a tree of `--fan`): seconds until each has activated it, and bytes that left the
trainer's host.

One JSON line for each run. The load of the machine is in it: on a busy one CPU time goes up a little, times a lot.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY))

from openclaw_rl.rpc.auth import ca  # noqa: E402
from openclaw_rl.runtime.home import COMPONENTS, Home, read_record  # noqa: E402
from openclaw_rl.weights.store import VersionStore  # noqa: E402
from tests.hosts.rig import Host, Rig, why_not  # noqa: E402
from tools.bench import scale_peers as peers  # noqa: E402

_HERE = Path(__file__).parent
_PEERS = [sys.executable, "-m", "tools.bench.scale_peers"]
_COMPONENT = [sys.executable, "-m", "openclaw_rl.launch.component"]
#: Of a model of which nothing is computed.
_SMALL = 1 << 20


def _ready(log: Path, process: subprocess.Popen[bytes] | None = None) -> bool:
    """Tell whether a policy server is ready, or has ended."""
    return "is ready" in log.read_text() or (process is not None and process.poll() is not None)


def until(condition: Callable[[], Any], seconds: float, what: str) -> Any:
    """Wait until the condition holds; its value."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise SystemExit(f"{what} did not happen in {seconds:.0f} s")
        time.sleep(0.05)
    return value


def configuration(file: Path, **components: dict[str, Any]) -> Path:
    """A configuration with these components' sections."""
    file.write_text(yaml.safe_dump({"components": components, "telemetry": {"enabled": False},
                                    "journal": {"enabled": False}}))
    return file


class Mesh:
    """The processes of `turns`, by component."""

    def __init__(self, folder: Path, policy_servers: int) -> None:
        self._folder = folder
        self.processes: dict[str, list[psutil.Popen]] = {name: [] for name in (*COMPONENTS, "users")}
        self.accepted = folder / "accepted"
        self.addresses: list[str] = []
        self._policy_servers = policy_servers

    def start(self) -> None:
        """Start all."""
        folder = self._folder
        model = peers.make_model(folder, _SMALL)
        shared = configuration(folder / "shared.yaml", env_server={"port": 0}, trainer={"port": 0},
                               prm_judge={"port": 0, "judge": "rules"})
        ring = Home(folder / "ring")
        self._start("trainer", [sys.executable, str(_HERE / "ring.py"), "--accept", str(self.accepted), str(shared)],
                    ring)
        for name in ("prm_judge", "env_server"):
            self._start(name, [*_COMPONENT, name, "--config", str(shared)], ring)
        environment = self._address(ring, "env_server")
        for i in range(self._policy_servers):
            config = configuration(folder / f"policy{i}.yaml", env_server={"address": environment},
                                   policy_server={"port": 0, "grpc_port": 0, "model": str(model)})
            self._start("policy_server", [*_PEERS, "serve", str(config)], Home(folder / f"policy{i}"))
        for i in range(self._policy_servers):
            home = Home(folder / f"policy{i}")
            self.addresses.append(self._address(home, "policy_server"))
            until(partial(_ready, home.root / "log"), 120, "a policy server")

    def _start(self, name: str, command: Sequence[str], home: Home) -> None:
        home.create()
        with (home.root / "log").open("ab") as log:
            self.processes[name].append(psutil.Popen(
                command, env={**os.environ, "OPENCLAW_RL_HOME": str(home.root)}, stdout=log, stderr=log,
                cwd=REPOSITORY))

    def _address(self, home: Home, name: str) -> str:
        return str(until(lambda: read_record(home, name), 120, name).address)

    def cpu(self) -> dict[str, float]:
        """Seconds by component so far."""
        return {name: sum(sum(process.cpu_times()[:2]) for process in some)
                for name, some in self.processes.items() if some}

    def memory(self) -> dict[str, float]:
        """Resident MiB of a process, by component; the largest."""
        return {name: round(max(process.memory_info().rss for process in some) / 2**20)
                for name, some in self.processes.items() if some}

    def talk(self, sessions: int, tag: str) -> float:
        """Have so many sessions; CPU seconds of the users."""
        users = psutil.Popen([*_PEERS, "talk", str(sessions), tag, *self.addresses], cwd=REPOSITORY)
        _, status, usage = os.wait4(users.pid, 0)
        if status:
            raise SystemExit("the users' process failed")
        return usage.ru_utime + usage.ru_stime

    def samples(self) -> int:
        """Accepted so far."""
        return self.accepted.read_bytes().count(b"\n") if self.accepted.exists() else 0

    def stop(self) -> None:
        for some in self.processes.values():
            for process in some:
                process.terminate()
        for some in self.processes.values():
            for process in some:
                process.wait(60)


def _has_samples(mesh: Mesh, number: int) -> bool:
    return mesh.samples() >= number


def turns(policy_servers: int, sessions: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Runs with growing numbers of sessions, on one mesh."""
    with tempfile.TemporaryDirectory() as folder:
        mesh = Mesh(Path(folder), policy_servers)
        try:
            mesh.start()
            mesh.talk(4 * policy_servers, "warm")
            until(lambda: mesh.samples() >= 4 * policy_servers * peers.TURNS, 60, "the warm-up")
            for number in sessions:
                before, cpu, begin = mesh.samples(), mesh.cpu(), time.monotonic()
                users = mesh.talk(number, f"s{number}")
                count = number * peers.TURNS
                until(partial(_has_samples, mesh, before + count), 600, "the last sample")
                seconds = time.monotonic() - begin
                spent = {name: round((value - cpu[name]) / count * 1e3, 3) for name, value in mesh.cpu().items()}
                spent["users"] = round(users / count * 1e3, 3)
                yield {"bench": "scale turns", "policy_servers": policy_servers, "sessions": number, "turns": count,
                       "cpu_ms_per_turn": spent, "turns_per_s": round(count / seconds, 1), "memory_mib": mesh.memory(),
                       "load": round(os.getloadavg()[0], 1)}
        finally:
            mesh.stop()


def sources(policy_servers: int, fan: int) -> list[int | None]:
    """Whom each policy server copies in a tree in which everybody, the trainer included, feeds at most `fan`; None: the
    trainer."""
    return [None if i < fan else (i - fan) // fan for i in range(policy_servers)]


def fanout(policy_servers: int, fan: int, mbit: int, mib: int) -> dict[str, Any]:
    """One run; `fan` of `policy_servers` or more: the trainer feeds all."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name, \
            Rig(Path(name) / "rig", count=max(4, policy_servers + 1), env={"OMP_NUM_THREADS": "1"}) as rig:
        folder = Path(name)
        base = peers.make_model(folder, mib << 20)
        store = VersionStore(folder / "versions", base)
        peers.make_version(store, 1, base, mib << 20)
        trainer, *servers = rig.hosts[:policy_servers + 1]
        _distribute(folder, base, [trainer, *servers])
        tree = sources(policy_servers, fan)
        processes: list[subprocess.Popen[Any]] = []
        for host, source in zip(servers, tree, strict=True):
            section = {"host": host.address, "model": "/root/model", **(
                {"weights_from": f"{servers[source].address}:50051"} if source is not None else {})}
            configuration(host.home / "config.yaml", policy_server=section,
                          env_server={"address": "10.0.0.1:50052"})
            processes.append(host.popen([*_PEERS, "serve", "/root/config.yaml"], env=_env(),
                                        stderr=(host.home / "log").open("wb")))
        for host, process in zip(servers, processes, strict=True):
            log = host.home / "log"
            until(partial(_ready, log, process), 180, host.name)
            if process.poll():
                raise SystemExit(log.read_text()[-2000:])
        configuration(trainer.home / "config.yaml", trainer={"host": trainer.address},
                      policy_server={"address": f"{servers[0].address}:50051"})
        targets = [f"{host.address}:50051" for host, source in zip(servers, tree, strict=True) if source is None]
        paths = ["/root/config.yaml", "/root/versions", "/root/model"]
        sender = trainer.popen([*_PEERS, "publish", *paths, "1", *targets],
                               env=_env(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert sender.stdin is not None and sender.stdout is not None
        sender.stdout.readline()
        for host in rig.hosts:
            rig.limit(host, f"{mbit}mbit")
        sent, begin = _sent(trainer), time.monotonic()
        sender.stdin.write("go\n")
        sender.stdin.flush()
        times: dict[str, float] = {}
        while len(times) < len(servers):
            for host in servers:
                if host.name not in times and _active(host) == 1:
                    times[host.name] = time.monotonic() - begin
            if time.monotonic() - begin > 900:
                raise SystemExit(f"only {len(times)} of {len(servers)} have it after 900 s")
            time.sleep(0.02)
        return {"bench": "scale fanout", "policy_servers": policy_servers, "fan": min(fan, policy_servers),
                "mbit": mbit, "version_mib": mib, "first_s": round(min(times.values()), 1),
                "all_s": round(max(times.values()), 1), "link_s": round(mib * 2**20 * 8 / mbit / 1e6, 1),
                "trainer_sent_mib": round((_sent(trainer) - sent) / 2**20, 1), "load": round(os.getloadavg()[0], 1)}


def _env() -> dict[str, str]:
    return {"OPENCLAW_RL_HOME": "/root/home", "OPENCLAW_RL_API_KEYS": "nobody-uses-it", "PYTHONPATH": str(REPOSITORY)}


def _distribute(folder: Path, base: Path, hosts: Sequence[Host]) -> None:
    """Each host's files: the model, its certificate; the first one's the version too."""
    certs = folder / "certs"
    ca.make_authority(certs)
    for role in ("trainer", "policy_server"):
        ca.issue(certs, role)
    for host in hosts:
        subprocess.run(["cp", "-rl", str(base), str(host.home / "model")], check=True)
        (host.home / "home").mkdir()
        subprocess.run(["cp", "-r", str(certs), str(host.home / "home/certs")], check=True)
    subprocess.run(["cp", "-rl", str(folder / "versions"), str(hosts[0].home / "versions")], check=True)


def _sent(host: Host) -> int:
    """Bytes that left a host by its link."""
    line = next(line for line in host.net("cat", "/proc/net/dev").splitlines() if "eth0:" in line)
    return int(line.partition(":")[2].split()[8])


def _active(host: Host) -> int:
    try:
        return int(json.loads((host.home / "home/policy_server/policy.json").read_bytes())["active"])
    except (OSError, ValueError):
        return 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("turns", "fanout"))
    parser.add_argument("--policy-servers", type=int, nargs="+")
    parser.add_argument("--sessions", type=int, nargs="+", default=[200, 1000, 4000])
    parser.add_argument("--mbit", type=int, default=100)
    parser.add_argument("--mib", type=int, default=16)
    parser.add_argument("--fan", type=int, default=2, help="how many each feeds at most in the tree")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # end what was started then too
    if args.what == "turns":
        for number in args.policy_servers or (1, 4, 16):
            for line in turns(number, args.sessions):
                print(json.dumps(line), flush=True)
        return
    if reason := why_not():
        parser.error(reason)
    for number in args.policy_servers or (4, 16):
        for fan in (number, args.fan):
            print(json.dumps(fanout(number, fan, args.mbit, args.mib)), flush=True)


if __name__ == "__main__":
    main()
