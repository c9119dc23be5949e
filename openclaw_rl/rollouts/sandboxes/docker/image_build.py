"""Build of images for a container engine from this machine's packages, without a registry.

The files of the recipe's packages and of all their dependencies, according to dpkg, form one layer.
"""

from __future__ import annotations

import os
import re
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from openclaw_rl.rollouts.sandboxes.docker.backend import EngineAbsent, connect
from openclaw_rl.rollouts.sandboxes.images import RECIPES, check_name
from openclaw_rl.rollouts.sandboxes.interface import WORK

#: Files of packages that no sandbox needs.
_LEFT_OUT = re.compile(r"^/usr/share/(doc|man|info|lintian|bug|locale)/|^/var/lib/dpkg/|^/etc/(cron|init|pam|apt)")
_BASE = ("base-files", "coreutils", "libc-bin", "libc6", "dash", "procps", "hostname")
_MADE = {"etc/passwd": f"root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::{WORK}:/bin/bash\n",
         "etc/group": "root:x:0:\nuser:x:1000:\n"}


class BuildError(Exception):
    """The image can't be built; the text says how to repair it."""


def build(kind: str, name: str | None = None) -> tuple[str, int]:
    """Build an image and import it into the first container engine that answers.

    Returns:
        Its name, and the size of its files in bytes.

    Raises:
        BuildError: no engine answers, dpkg is missing, or a package is.
        ValueError: `name` is invalid.
    """
    recipe = RECIPES[kind]
    name = check_name(name or recipe.tag)
    repository, _, tag = name.partition(":")
    try:
        client, _ = connect()
    except EngineAbsent as error:
        raise BuildError(str(error)) from None
    try:
        files = _files(_closure((*_BASE, *recipe.packages["apt-get"])))
        with tempfile.TemporaryFile() as data:
            size = _pack(files, data)
            data.seek(0)
            # The SDK's own import_image reads everything into memory.
            response = client._post(client._url("/images/create"), data=data, params={
                "fromSrc": "-", "repo": repository, "tag": tag or "latest",
                "changes": ["ENV PATH=/usr/local/bin:/usr/bin:/bin", f"WORKDIR {WORK}"]},
                headers={"Content-Type": "application/x-tar"})
            client._raise_for_status(response)
            if b'"error"' in response.content:
                raise BuildError(f"the container engine refused the image: {response.text[-500:]}")
    except OSError as error:
        raise BuildError(f"the image can't be built: {error}") from error
    finally:
        client.close()
    return name if tag else f"{name}:latest", size


def _closure(packages: Iterable[str]) -> list[str]:
    """List packages and their installed dependencies.

    Raises:
        BuildError: one of `packages` is not installed.
    """
    try:
        listing = subprocess.run(["dpkg-query", "-W", "-f=${db:Status-Status}\t${binary:Package}\t${Package}\t"
                               "${Provides}\t${Pre-Depends}, ${Depends}\n"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        raise BuildError("this machine has no dpkg; build the image by servers/environment/images/NAME/Containerfile "
                         "(docker build or podman build), which needs a registry") from None
    names: dict[str, str] = {}  # a package, or what it provides -> its name in dpkg
    needs: dict[str, list[list[str]]] = {}
    for line in listing.stdout.splitlines():
        status, binary, package, provides, depends = line.split("\t")
        if status == "installed":
            names[package] = binary
            for provided in _alternatives(provides):
                names.setdefault(provided[0], binary)
            needs[binary] = _alternatives(depends)
    if missing := [package for package in packages if package not in names]:
        raise BuildError(f"packages are missing: apt-get install {' '.join(missing)}")
    found: dict[str, None] = {}
    waiting = [names[package] for package in packages]
    while waiting:
        package = waiting.pop()
        if package not in found:
            found[package] = None
            for group in needs[package]:
                waiting += [names[name] for name in group if name in names][:1]
    return list(found)


def _alternatives(text: str) -> list[list[str]]:
    return [[re.split(r"[ (:]", name.strip(), maxsplit=1)[0] for name in group.split("|")]
            for group in text.split(",") if group.strip()]


def _files(packages: Sequence[str]) -> list[str]:
    """The files of packages by their real paths, and the links of /etc/alternatives to them."""
    listing = subprocess.run(["dpkg", "-L", *packages], capture_output=True, text=True, check=False).stdout
    files: dict[str, None] = {}
    for path in listing.splitlines():
        if path.startswith("/") and path != "/." and not _LEFT_OUT.match(path) and os.path.lexists(path):
            files[os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))] = None
    for link in Path("/etc/alternatives").glob("*"):
        if os.path.realpath(link) in files:
            files[str(link)] = None
            for folder in ("/usr/bin", "/usr/sbin"):
                if os.path.islink(f"{folder}/{link.name}"):
                    files[f"{folder}/{link.name}"] = None
    for path in ("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/localtime", "/bin", "/sbin", "/lib", "/lib64"):
        if os.path.lexists(path):
            files[path] = None
    for folder in ("/etc/ssl/certs", "/etc/fonts", "/var/cache/fontconfig", "/etc/ld.so.conf.d"):
        files.update(dict.fromkeys(str(path) for path in Path(folder).rglob("*")))
    return sorted(files)


def _pack(files: Sequence[str], data: object) -> int:
    """Write a layer of these files; returns their size in bytes."""
    size = 0
    with tarfile.open(fileobj=data, mode="w", format=tarfile.GNU_FORMAT) as archive:  # type: ignore[call-overload]
        for path in files:
            if path.lstrip("/") in _MADE or path in ("/tmp", WORK):
                continue
            if not os.access(path, os.R_OK) and not os.path.islink(path):
                continue
            entry = archive.gettarinfo(path, path.lstrip("/"))
            if entry is None or not (entry.isreg() or entry.isdir() or entry.issym() or entry.islnk()):
                continue
            entry.mode &= 0o777  # no setuid: nothing runs as another user than who starts it
            if entry.isreg():
                size += entry.size
                with open(path, "rb") as content:
                    archive.addfile(entry, content)
            else:
                archive.addfile(entry)
        for path, text in _MADE.items():
            with tempfile.TemporaryFile() as content:
                content.write(text.encode())
                content.seek(0)
                entry = tarfile.TarInfo(path)
                entry.size, entry.mode = len(text), 0o644
                archive.addfile(entry, content)
        for folder in ("tmp", "work"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777
            archive.addfile(entry)
    return size
