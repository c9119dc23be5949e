"""An image that stands for docker.io/library/python:3.11-slim where no registry is: this machine's own Python 3.11 and
Debian packages."""

from __future__ import annotations

import io
import os
import sys
import sysconfig
import tarfile
import tempfile
from importlib.util import find_spec
from pathlib import Path

from openclaw_rl.rollouts.sandboxes.docker import image_build

NAME = "docker.io/library/python"
_PACKAGES = ("base-files", "base-passwd", "bash", "ca-certificates", "coreutils", "dash", "libbz2-1.0", "libc-bin",
             "libffi8", "liblzma5", "libsqlite3-0", "libssl3", "libstdc++6", "passwd", "zlib1g")
_LEFT_OUT = {"__pycache__", "test", "tests", "site-packages", "idlelib", "tkinter", "include", "share"}


def make(url: str) -> None:
    """Give it to the engine at `url`."""
    import docker

    prefix = Path(sys.base_prefix)
    library = Path(sysconfig.get_paths()["stdlib"])
    with tempfile.TemporaryFile() as data:
        with tarfile.open(fileobj=data, mode="w") as archive:
            made = {f"/etc/{name}" for name in ("passwd", "group", "shadow", "gshadow", "login.defs")}
            for path in sorted(made | {*image_build._files(image_build._closure(_PACKAGES))}):
                if os.access(path, os.R_OK):
                    archive.add(path, path.lstrip("/"), recursive=False)
            archive.add(prefix / "bin/python3.11", "usr/local/bin/python3.11")
            _link(archive, "usr/local/bin/python", "python3.11")
            _text(archive, "usr/local/bin/pip", "#!/bin/sh\nexec /usr/local/bin/python -m pip \"$@\"\n", 0o755)
            for shared in prefix.glob("lib/libpython3.11*.so*"):
                archive.add(shared, f"usr/local/lib/{shared.name}")
            archive.add(library, "usr/local/lib/python3.11",
                        filter=lambda entry: None if _LEFT_OUT & {*Path(entry.name).parts} else entry)
            pip = find_spec("pip")  # not imported, since it would keep setuptools from being imported later
            assert pip is not None and pip.origin is not None
            archive.add(Path(pip.origin).parent, "usr/local/lib/python3.11/site-packages/pip")
            _text(archive, "tmp/.keep", "", 0o666)
        data.seek(0)
        client = docker.APIClient(base_url=url, version="1.41")
        client.timeout = 120
        response = client._post(client._url("/images/create"), data=data, headers={
            "Content-Type": "application/x-tar"}, params={
                "fromSrc": "-", "repo": NAME, "tag": "3.11-slim", "changes": [
                    "ENV PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin",
                    "ENV LD_LIBRARY_PATH=/usr/local/lib", "ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt"]})
        assert response.ok and b'"error"' not in response.content, response.text[-500:]
        client.close()


def _text(archive: tarfile.TarFile, name: str, text: str, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(text), mode
    archive.addfile(entry, io.BytesIO(text.encode()))


def _link(archive: tarfile.TarFile, name: str, target: str) -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = tarfile.SYMTYPE, target
    archive.addfile(entry)
