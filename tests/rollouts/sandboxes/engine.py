"""A real container engine in a folder of its own, for tests."""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

BUSYBOX = "openclaw/test-busybox:latest"


def why_not() -> str:
    """Why no engine can be started here; empty when one can."""
    if os.geteuid() != 0:
        return "only root can start dockerd"
    if missing := [name for name in ("dockerd", "containerd", "runc", "busybox") if shutil.which(name) is None]:
        return f"{', '.join(missing)} missing: apt-get install docker.io busybox-static"
    return ""


@contextmanager
def dockerd(folder: Path) -> Iterator[str]:
    """Runs one: what DOCKER_HOST has to be."""
    # The path of a unix socket is short.
    socket = Path("/tmp") / f"openclaw-rl-test-{os.getpid()}.sock"
    url = f"unix://{socket}"
    with (folder / "dockerd.log").open("wb") as log:
        process = subprocess.Popen(
            ["dockerd", "--data-root", str(folder / "data"), "--exec-root", str(folder / "exec"),
             "-p", str(folder / "pid"), "-H", url, "--iptables=false", "--ip6tables=false", "--bridge=none",
             "--storage-driver", "overlay2"], stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    try:
        import docker

        client = docker.APIClient(base_url=url, version="1.41")
        deadline = time.monotonic() + 60
        while True:
            try:
                client.ping()
                break
            except Exception:
                assert process.poll() is None, (folder / "dockerd.log").read_text()[-2000:]
                assert time.monotonic() < deadline, "dockerd is not ready"
                time.sleep(0.1)
        client.close()
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
        socket.unlink(missing_ok=True)
        for mount in (folder / "exec/netns").glob("*"):  # it leaves the host's network mounted there
            subprocess.run(["umount", str(mount)], check=False)


def import_busybox(url: str) -> None:
    """Make an image of one program."""
    import docker

    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        archive.add(shutil.which("busybox") or "", "bin/busybox")
        for name in subprocess.run(["busybox", "--list"], capture_output=True, text=True, check=True).stdout.split():
            if name != "busybox":
                link = tarfile.TarInfo(f"bin/{name}")
                link.type, link.linkname = tarfile.SYMTYPE, "busybox"
                archive.addfile(link)
        for folder in ("tmp", "work", "etc", "proc", "sys", "dev"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if folder in ("tmp", "work") else 0o755
            archive.addfile(entry)
    client = docker.APIClient(base_url=url, version="auto")
    client.import_image_from_data(data.getvalue(), repository=BUSYBOX.partition(":")[0], tag="latest",
                                  changes=["ENV PATH=/bin"])
    client.close()
