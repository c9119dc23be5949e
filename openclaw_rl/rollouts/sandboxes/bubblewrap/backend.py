"""Sandboxes by bubblewrap: their own namespaces, this machine's programs read-only, no network."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import platform
import secrets
import shutil
import tempfile
from pathlib import Path

from openclaw_rl.rollouts.sandboxes.bubblewrap import cgroups, etc, init, seccomp
from openclaw_rl.rollouts.sandboxes.bubblewrap.sandbox import BubblewrapSandbox, remove_folder
from openclaw_rl.rollouts.sandboxes.images import Images, Manifest, absent
from openclaw_rl.rollouts.sandboxes.interface import WORK, Sandbox, SandboxError, Spec, Unusable
from openclaw_rl.runtime.rejection import Rejection

#: The user inside.
USER = 1000
#: First of the host users that root gives to sandboxes, one each; they own nothing and are in no group.
_FIRST_USER, _USERS = 0x7000_0000, 1 << 24
_BWRAP = ("--unshare-all", "--die-with-parent", "--new-session", "--uid", str(USER), "--gid", str(USER),
          "--as-pid-1", "--hostname", "sandbox", "--cap-drop", "ALL", "--clearenv")
_INSTALL = ("apt-get install bubblewrap (Debian, Ubuntu), dnf install bubblewrap (Fedora, RHEL), "
            "apk add bubblewrap (Alpine), pacman -S bubblewrap (Arch)")

#: (label, root) -> its copy of /etc, with the first process's shell, shared by all back ends of a process.
_etc: dict[tuple[str, str], Path] = {}


class Bubblewrap:
    """Makes bubblewrap sandboxes. An image is a manifest of programs that must be present (see images.py)."""

    name = "bubblewrap"

    def __init__(self, images: Images, label: str) -> None:
        """
        Args:
            label: part of the names of everything on the host (folders, control groups), which distinguishes
                leftovers from another mesh's: letters and digits.
        """
        self._images = images
        self._label = label
        self._parent: cgroups.Parent | None = None
        self._tried = False  # that a sandbox can be made here
        self._checking = asyncio.Lock()
        self._filter = seccomp.program()

    @property
    def description(self) -> str:
        """The protection in effect, for people."""
        limits = "control group" if self._parent is not None else "limits of each process"
        return f"bubblewrap, {limits}, {'system calls filtered' if self._filter else 'system calls not filtered'}"

    async def validate(self, spec: Spec) -> Rejection[Unusable] | None:
        if shutil.which("bwrap") is None:
            return Rejection(Unusable.PROGRAM_MISSING, f"bubblewrap is not installed; install it with: {_INSTALL}")
        manifest = await asyncio.to_thread(self._manifest, spec)
        if isinstance(manifest, Rejection):
            return manifest
        async with self._checking:
            if not self._etc_of(manifest).is_dir():
                try:
                    await asyncio.to_thread(self._prepare, _root(manifest))
                except OSError as error:
                    return Rejection(Unusable.HOST_ERROR,
                                     f"the sandboxes' /etc can't be made in {tempfile.gettempdir()}: {error}")
            if not self._tried:
                self._parent = await asyncio.to_thread(cgroups.find, self._label)
                try:
                    sandbox = await self._make(spec)
                except SandboxError as error:
                    return Rejection(Unusable.NOT_PERMITTED, (
                        f"bubblewrap can't make a sandbox here: {error}. It needs user namespaces: as root, "
                        "sysctl -w user.max_user_namespaces=65536 kernel.unprivileged_userns_clone=1 "
                        "kernel.apparmor_restrict_unprivileged_userns=0 (those of them that this kernel has); "
                        "in a container, see servers/environment/README.md"))
                await sandbox.close()
                self._tried = True
        return None

    async def make(self, spec: Spec) -> Sandbox:
        if rejection := await self.validate(spec):
            raise SandboxError(rejection.message)
        return await self._make(spec)

    async def _make(self, spec: Spec) -> BubblewrapSandbox:
        manifest = self._manifest(spec)
        if isinstance(manifest, Rejection):
            raise SandboxError(manifest.message)
        user = outside_user()
        folder = self._folder()
        group = None
        try:
            if self._parent is not None:
                # The sandbox's files are memory too.
                group = cgroups.make(self._parent, self._label, processes=spec.limits.processes + 2 * init.RESERVE,
                                     memory=spec.limits.memory + spec.limits.disk + spec.limits.disk // 4)
            script = init.script(
                processes=spec.limits.processes if user is not None or _counts_by_namespace() else None,
                memory=None if group is not None else spec.limits.memory)
            return await BubblewrapSandbox.boot(
                _launch(user, group), self._arguments(spec, manifest, folder), script,
                folder=folder, user=user, group=group, filter_program=self._filter)
        except BaseException as error:
            remove_folder(folder)
            if group is not None:
                group.remove()
            if isinstance(error, OSError):
                raise SandboxError(f"a sandbox can't be made: {error}") from error
            raise

    def _manifest(self, spec: Spec) -> Manifest | Rejection[Unusable] | None:
        """The image's manifest; None for this machine's own programs."""
        if spec.image is None:
            return None
        try:
            manifest = self._images.find(spec.image)
        except ValueError as error:
            return Rejection(Unusable.IMAGE_BROKEN, str(error))
        if manifest is None:
            return Rejection(Unusable.IMAGE_ABSENT, absent(spec.image, self.name))
        return manifest.validate() or manifest

    def _etc_of(self, manifest: Manifest | None) -> Path:
        return _etc.get((self._label, str(_root(manifest))), Path("/nonexistent"))

    def _prepare(self, root: Path) -> None:
        folder = self._folder()
        atexit.register(remove_folder, folder)
        folder.chmod(0o755)
        etc.prepare(root / "etc", folder, USER)
        etc.copy_shell(root, folder / Path(init.SHELL).relative_to("/etc"))
        _etc[self._label, str(root)] = folder

    def _folder(self) -> Path:
        """Make a folder for the sandbox's FIFOs, which its user can enter but not list or, since it is read-only
        inside, write to. An ordinary user owns it inside too."""
        folder = Path(tempfile.mkdtemp(prefix=f"{cgroups.PREFIX}{self._label}-{cgroups.maker()}-"))
        folder.chmod(0o711 if os.geteuid() == 0 else 0o311)
        return folder

    def _arguments(self, spec: Spec, manifest: Manifest | None, folder: Path) -> list[str]:
        """The arguments of bwrap, without the command."""
        root = _root(manifest)
        arguments = [*_BWRAP, "--ro-bind", str(root / "usr"), "/usr"]
        for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
            path = root / name
            if path.is_symlink():
                arguments += ["--symlink", os.readlink(path), f"/{name}"]
            elif path.is_dir():
                arguments += ["--ro-bind", str(path), f"/{name}"]
        arguments += ["--ro-bind", str(self._etc_of(manifest)), "/etc",
                      "--ro-bind-try", str(root / "var/cache/fontconfig"), "/var/cache/fontconfig",
                      "--ro-bind-try", str(root / "var/lib/xkb"), "/var/lib/xkb"]
        disk, small = spec.limits.disk, max(spec.limits.disk // 4, 1 << 20)
        arguments += ["--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev",
                      "--perms", "1777", "--size", str(small), "--tmpfs", "/dev/shm",
                      "--perms", "1777", "--size", str(small), "--tmpfs", "/tmp",
                      "--perms", "0755", "--size", str(disk), "--tmpfs", WORK]
        for folder_too in manifest.folders if manifest is not None else ():
            arguments += ["--ro-bind", folder_too, folder_too]
        arguments += ["--ro-bind", str(folder), init.CONTROL, "--remount-ro", "/", "--chdir", WORK]
        variables = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": WORK, "USER": "user", "LOGNAME": "user",
                     "SHELL": "/bin/bash", "LANG": "C.UTF-8", "TMPDIR": "/tmp", "TERM": "dumb", **spec.environment}
        for key, value in variables.items():
            arguments += ["--setenv", key, value]
        return arguments


def _root(manifest: Manifest | None) -> Path:
    return Path(manifest.root) if manifest is not None and manifest.root else Path("/")


def _launch(user: int | None, group: cgroups.Group | None) -> list[str]:
    """The command before bwrap: joins the group, and becomes the sandbox's host user."""
    become = [] if user is None else ["setpriv", "--reuid", str(user), "--regid", str(user), "--clear-groups"]
    join = "".join(f'echo $$ >"{path}" || exit 1; ' for path in (group.joins if group is not None else ()))
    return ["/bin/sh", "-c", f'{join}exec "$@"', "sh", *become]


def outside_user() -> int | None:
    """An unused user id for a new sandbox; None if this process may not change its user."""
    if os.geteuid() != 0:
        return None
    for line in Path("/proc/self/uid_map").read_text().splitlines():
        first, _, count = map(int, line.split())
        if first <= _FIRST_USER and first + count >= _FIRST_USER + _USERS:
            return _FIRST_USER + secrets.randbelow(_USERS)
    return 65534  # in a container with a small map: nobody


def remove_leftovers(label: str) -> int:
    """Remove what sandboxes of dead processes left on the host; returns the number of items. The sandboxes themselves
    end with the process that made them."""
    removed = cgroups.remove_leftovers(label)
    for folder in Path(tempfile.gettempdir()).glob(f"{cgroups.PREFIX}{label}-*"):
        if cgroups.is_leftover(folder.name):
            remove_folder(folder)
            removed += 1
    return removed


def _counts_by_namespace() -> bool:
    """Whether RLIMIT_NPROC counts the processes of a user namespace (Linux 5.14), not all of the user's."""
    with contextlib.suppress(ValueError):
        major, minor = map(int, platform.release().split(".")[:2])
        return (major, minor) >= (5, 14)
    return False
