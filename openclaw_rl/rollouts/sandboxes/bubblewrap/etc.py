"""The /etc of bubblewrap sandboxes: a copy of the public files that programs need, and of their first process's shell.

It is a copy because bwrap scans all mounts for each single bind: forty of them doubled the start time of a sandbox.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from openclaw_rl.rollouts.sandboxes.interface import WORK

_NAMES = ("alternatives", "bash.bashrc", "bash_completion.d", "ca-certificates.conf", "debian_version", "fonts",
          "gai.conf", "gtk-2.0", "gtk-3.0", "host.conf", "inputrc", "jwm", "ld.so.cache", "ld.so.conf",
          "ld.so.conf.d", "localtime", "lsb-release", "magic", "mime.types", "nsswitch.conf", "os-release", "perl",
          "profile", "profile.d", "protocols", "python3", "python3.11", "python3.12", "python3.13", "services",
          "shells", "ssl/certs", "ssl/openssl.cnf", "terminfo", "timezone", "X11", "xattr.conf", "vim")
_LARGEST = 4 * 2**20


def prepare(source: Path, target: Path, user: int) -> None:
    """Make an /etc.

    Args:
        source: an /etc; what is not world-readable is left out.
        target: an existing folder.
        user: of the sandbox, inside.

    Raises:
        OSError: it can't be written.
    """
    for name in _NAMES:
        _copy(source / name, target / name)
    for name, text in (("passwd", f"root:x:0:0:root:/root:/bin/sh\nuser:x:{user}:{user}::{WORK}:/bin/bash\n"),
                       ("group", f"root:x:0:\nuser:x:{user}:\n"), ("hostname", "sandbox\n"),
                       ("hosts", "127.0.0.1 localhost sandbox\n::1 localhost\n"), ("resolv.conf", "")):
        (target / name).write_text(text)
        (target / name).chmod(0o644)
    for folder in (target, target / "ssl"):
        if folder.is_dir():
            folder.chmod(0o755)


def copy_shell(root: Path, target: Path) -> None:
    """Copy a tree's /bin/sh so that it can be executed but not read; init.py explains why.

    Raises:
        OSError: it can't be made, or can't be executed there.
    """
    source = root / "bin/sh"
    for _ in range(40):
        if not source.is_symlink():
            break
        link = os.readlink(source)
        source = root / link.lstrip("/") if link.startswith("/") else source.parent / link
    target.parent.mkdir(mode=0o755)
    target.parent.chmod(0o755)
    shutil.copyfile(source, target)
    target.chmod(0o111)
    if os.statvfs(target).f_flag & os.ST_NOEXEC:
        raise OSError(f"programs can't be executed there (mount option noexec); name another folder by TMPDIR: "
                      f"{target.parent.parent.parent}")


def _copy(source: Path, target: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        status = source.lstat()
        target.parent.mkdir(mode=0o755, exist_ok=True)
        if source.is_symlink():
            target.symlink_to(os.readlink(source))
        elif source.is_dir() and status.st_mode & 0o005 == 0o005:
            target.mkdir(mode=0o755)
            target.chmod(0o755)
            for entry in source.iterdir():
                _copy(entry, target / entry.name)
        elif source.is_file() and status.st_mode & 0o004 and status.st_size <= _LARGEST:
            shutil.copyfile(source, target)
            target.chmod(0o755 if status.st_mode & 0o001 else 0o644)
