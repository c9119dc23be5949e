"""Four hosts on this machine, 10.0.0.1 to 10.0.0.4, each with its own network, processes, home, /tmp and sshd.

By hand, until Ctrl-C:

    sudo .venv/bin/python -m tests.hosts.rig [--models FOLDER] [--folder FOLDER]

prints the folder in which `host1 CMD...` to `host4 CMD...` are scripts that run a command on a host, and `rig` one that
changes the network: `rig partition host1 host4`, `rig heal`, `rig kill host3`, `rig start host3`, `rig limit host1
20mbit`, `rig delay host1 100`, `rig capture FILE`, `rig ps`. In a test:

    with Rig(tmp_path) as rig:
        rig.host1.run([sys.executable, "-m", "openclaw_rl.cli", "status"])
        rig.partition(rig.host1, rig.host4)

Each host's disk is the folder `diskN/` (home as `root/`, `tmp/`) and outlives `kill()` and `start()`. Any of them may
ssh to any other as root without a question. The checkout, this Python and the models are visible at their own paths.

Several rigs live side by side: all names and addresses are inside namespaces without a name outside. A rig ends with
the process that made it, also when that is killed with -9, and nothing is left of it but its folder.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import psutil

from tests.hosts.box import Box, BoxError, check
from tests.hosts.capture import Capture
from tests.hosts.links import Network

#: Programs that a rig runs, and the Debian packages that have them; tools/outside-tools installs them.
TOOLS = {"ip": "iproute2", "tc": "iproute2", "nft": "nftables", "sshd": "openssh-server", "ssh": "openssh-client",
         "rsync": "rsync", "tcpdump": "tcpdump", "ethtool": "ethtool", "unshare": "util-linux", "nsenter": "util-linux"}
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_REPOSITORY = Path(__file__).resolve().parents[2]


def why_not() -> str | None:
    """Why there can be no rig here; None when there can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "hosts in network namespaces need Linux and root"
    missing = sorted({package for tool, package in TOOLS.items() if not shutil.which(tool, path=_PATH)})
    if missing:
        return f"missing: {', '.join(missing)} (tools/outside-tools installs them)"
    return None


class Host(Box):
    """One host. Its `home` and `tmp` here are /root and /tmp there."""

    def __init__(self, number: int, folder: Path, visible: list[Path], env: Mapping[str, str]) -> None:
        self.number = number
        self.address = f"10.0.0.{number}"
        self.disk = folder / f"disk{number}"
        self.home, self.tmp = self.disk / "root", self.disk / "tmp"
        self._visible = visible
        super().__init__(f"host{number}", folder, self._boot_script(folder), env)

    def _boot_script(self, folder: Path) -> str:
        lines = [f"mount --bind {folder}/hosts /etc/hosts"]
        # What the mounts on /root and /tmp would hide is mounted into what takes their place.
        for path in self._visible:
            for hidden, place in ((Path.home(), self.home), (Path("/tmp"), self.tmp)):
                if path.is_relative_to(hidden):
                    target = place / path.relative_to(hidden)
                    lines += [f"mkdir -p '{target}'", f"mount --rbind '{path}' '{target}'"]
        lines += [f"mount --rbind '{self.home}' {Path.home()}", "mount -t tmpfs tmpfs /dev/shm",
                  "mount -t tmpfs tmpfs /run", "mkdir /run/sshd", f"mount --rbind '{self.tmp}' /tmp",
                  f"exec /usr/sbin/sshd -D -e -f {Path.home()}/.ssh/sshd_config"]
        return "\n".join(lines)

    def install(self, keys: Path) -> None:
        """Make its disk: home, keys, sshd's configuration."""
        ssh = self.home / ".ssh"
        ssh.mkdir(parents=True)
        ssh.chmod(0o700)
        self.tmp.mkdir()
        self.tmp.chmod(0o1777)
        for name in ("id_ed25519", "id_ed25519.pub"):
            shutil.copy(keys / name, ssh / name)
        shutil.copy(keys / "id_ed25519.pub", ssh / "authorized_keys")
        shutil.copy(keys / "known_hosts", ssh / "known_hosts")
        shutil.copy(keys / self.name, ssh / "host_key")
        home = Path.home()
        (ssh / "sshd_config").write_text("\n".join([
            f"ListenAddress {self.address}", f"HostKey {home}/.ssh/host_key", "PidFile none", "PermitRootLogin yes",
            f"AuthorizedKeysFile {home}/.ssh/authorized_keys", "UsePAM no", "StrictModes no",
            "PasswordAuthentication no", "MaxStartups 100", "MaxSessions 100",
            "Subsystem sftp internal-sftp"]) + "\n")


class Rig:
    """The hosts and what is between them.

    Args:
        folder: for all files; has to be empty or new.
        models: folder of prepared models, visible in each host as ~/.openclaw-rl/models; default: none.
        env: further variables of everything in the hosts.
        count: hosts, four or more.
    """

    def __init__(self, folder: Path, models: Path | None = None, env: Mapping[str, str] | None = None,
                 count: int = 4) -> None:
        self.folder = folder.absolute()
        self.key = self.folder / "keys/id_ed25519"  #: with which root may log in to each
        self._models = models
        base = {"PATH": f"{Path(sys.prefix) / 'bin'}:{_PATH}", "HOME": str(Path.home()), "USER": "root",
                "LOGNAME": "root", "LANG": "C.UTF-8", "SHELL": "/bin/sh", **(env or {})}
        visible = {_REPOSITORY, Path(sys.prefix), Path(sys.base_prefix), *([models.resolve()] if models else [])}
        outermost = [path for path in sorted(visible) if not any(path != other and path.is_relative_to(other)
                                                                 for other in visible)]
        self.hub = Box("hub", self.folder, "exec sleep infinity", base)
        self.network = Network(self.hub)
        self.hosts = [Host(number, self.folder, outermost, base) for number in range(1, count + 1)]
        self.host1, self.host2, self.host3, self.host4 = self.hosts[:4]

    def __enter__(self) -> Rig:
        try:
            self._install()
            self.hub.boot()
            self.network.create()
            for host in self.hosts:
                self.start(host)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End everything in the hosts and the hosts; returns when nothing runs."""
        self.network.close()
        for box in (*self.hosts, self.hub):
            box.kill()

    def _install(self) -> None:
        keys = self.folder / "keys"
        keys.mkdir(parents=True)
        known = []
        for host in self.hosts:
            check("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", host.name, "-f", str(keys / host.name))
            kind, public = (keys / f"{host.name}.pub").read_text().split()[:2]
            known.append(f"{host.address},{host.name} {kind} {public}\n")
        check("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "rig", "-f", str(self.key))
        (keys / "known_hosts").write_text("".join(known))
        (self.folder / "hosts").write_text("127.0.0.1 localhost\n" + "".join(
            f"{host.address} {host.name}\n" for host in self.hosts))
        for host in self.hosts:
            host.install(keys)
            if self._models is not None:
                link = host.home / ".openclaw-rl/models"
                link.mkdir(parents=True)
                for model in self._models.resolve().glob("[!.]*"):
                    (link / model.name).symlink_to(model)

    def start(self, host: Host) -> None:
        """Switch a host on: its namespaces, its link, its sshd. Its disk is as it was left.

        Raises:
            BoxError: it does not come up.
        """
        # sshd can listen only on an address that is there: the link comes first, while its script still waits.
        gate = self.folder / f"{host.name}.gate"
        gate.unlink(missing_ok=True)
        host.script = f"while ! [ -e {gate} ]; do sleep 0.02; done\n" + host._boot_script(self.folder)
        host.boot()
        self.network.plug(host.number, host)
        gate.touch()
        (self.folder / f"{host.name}.pid").write_text(str(host.pid))
        with contextlib.suppress(BoxError):
            host.run("for i in $(seq 200); do ss -Hltn | grep -q :22 && exit 0; sleep 0.05; done; exit 1")
            return
        raise BoxError(f"{host.name}: no sshd: {host.log()}")

    def kill(self, host: Host) -> None:
        """Cut a host's power: its link goes first, so that nobody gets a last word from it."""
        self.network.unplug(host.number)
        host.kill()

    def partition(self, a: Host, b: Host | None = None) -> None:
        """Let nothing through between two hosts, or between one and all others, until `reconnect`."""
        for other in self.hosts if b is None else [b]:
            if other is not a:
                self.network.partition(a.address, other.address)

    def reconnect(self) -> None:
        """End all partitions; links stay as slow as they are."""
        self.network.reconnect()

    def heal(self) -> None:
        """End all partitions, limits and delays."""
        self.network.heal()

    def limit(self, host: Host, rate: str) -> None:
        """Bound a host's link to `rate`, such as "20mbit", each way."""
        self.network.limit(host.number, host, rate)

    def delay(self, host: Host, milliseconds: float, loss: float = 0.0) -> None:
        """Let each packet to and from a host take this much longer; `loss`: the part of them that is lost."""
        self.network.delay(host.number, host, milliseconds, loss)

    def capture(self, file: Path) -> Capture:
        """Record all packets between the hosts, from now until its `stop()`."""
        return Capture(self.hub, file)

    def processes(self, *hosts: Host) -> dict[str, list[str]]:
        """Command lines of what runs on the hosts (all), besides their sshd and what it runs for open sessions."""
        found: dict[str, list[str]] = {}
        for host in hosts or tuple(self.hosts):
            lines = []
            for process in host.processes():
                with contextlib.suppress(psutil.Error):
                    if process.pid != host.pid and not process.name().startswith("sshd"):
                        lines.append(" ".join(process.cmdline()) or f"[{process.name()}, {process.status()}]")
            found[host.name] = lines
        return found


if __name__ == "__main__":
    from tests.hosts.by_hand import main

    main()
