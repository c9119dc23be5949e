"""A real systemd, as process 1 of namespaces of its own, with no units but those given."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.support.waiting import until

_SYSTEMD = "/lib/systemd/systemd"
#: What every unit leans on.
_STANDARD = ("basic.target", "sysinit.target", "shutdown.target", "umount.target", "final.target", "exit.target",
             "systemd-exit.service", "sockets.target", "timers.target", "paths.target", "slices.target",
             "network-online.target")


def why_not() -> str:
    """Why none can be started here; empty when one can."""
    if os.geteuid() != 0:
        return "only root can start a systemd of its own"
    if not Path(_SYSTEMD).exists():
        return "systemd is missing: apt-get install systemd"
    return ""


class Booted:
    def __init__(self, pid: int, log: Path) -> None:
        self._pid, self.log = pid, log

    def systemctl(self, *args: str, check: bool = True) -> str:
        done = subprocess.run(["nsenter", "-t", str(self._pid), "-p", "-m", "--cgroup", "systemctl", "--no-pager",
                               *args], capture_output=True, text=True, timeout=120, check=False)
        assert not check or done.returncode == 0, f"{args}: {done.stdout}{done.stderr}\n{self.log.read_text()[-3000:]}"
        return done.stdout.strip()

    def show(self, unit: str, what: str) -> str:
        return self.systemctl("show", "--property", what, "--value", unit)


@contextmanager
def systemd(folder: Path, units: Path) -> Iterator[Booted]:
    """Boot one; `units` is its only folder of units."""
    for name in _STANDARD:
        shutil.copy(Path(_SYSTEMD).parent / "system" / name, units / name)
    (units / "default.target").write_text("[Unit]\nRequires=basic.target\nAfter=basic.target\nAllowIsolate=yes\n")
    log = folder / "systemd.log"
    boot = (f"mount -t tmpfs tmpfs /run && exec env -i PATH=$PATH container=test SYSTEMD_UNIT_PATH={units} "
            f"{_SYSTEMD} --system --unit=default.target --log-target=console --show-status=no </dev/null")
    with log.open("wb") as output:
        process = subprocess.Popen(["unshare", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc", "--cgroup",
                                    "--uts", "--ipc", "sh", "-c", boot], stdout=output, stderr=output)
    try:
        def first() -> int | None:
            children = psutil.Process(process.pid).children()
            return next((child.pid for child in children if child.name() == "systemd"), None)

        machine = Booted(until(first, 30, f"systemd {log.read_text()}"), log)
        until(lambda: machine.systemctl("is-active", "default.target", check=False) == "active", 30, "the start")
        yield machine
        machine.systemctl("exit", check=False)
        process.wait(60)
    finally:
        process.kill()
        process.wait()
