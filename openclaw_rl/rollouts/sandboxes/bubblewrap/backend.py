"""Sandboxes by bubblewrap: their own namespaces, this machine's programs read-only, no network."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import platform
import secrets
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from openclaw_rl.rollouts.sandboxes.bubblewrap import cgroups, etc, init, seccomp
from openclaw_rl.rollouts.sandboxes.bubblewrap.cover import Bind, Cover, mount_points, with_mounts
from openclaw_rl.rollouts.sandboxes.bubblewrap.sandbox import BubblewrapSandbox, remove_folder
from openclaw_rl.rollouts.sandboxes.images import Images, Manifest, absent
from openclaw_rl.rollouts.sandboxes.interface import WORK, Sandbox, SandboxError, Spec, Unusable
from openclaw_rl.runtime.rejection import Rejection

logger = logging.getLogger(__name__)

#: The user inside.
USER = 1000
#: First of the host users that root gives to sandboxes, one each; they own nothing and are in no group.
_FIRST_USER, _USERS = 0x7000_0000, 1 << 24
_BWRAP = ("--unshare-all", "--die-with-parent", "--new-session", "--uid", str(USER), "--gid", str(USER),
          "--as-pid-1", "--hostname", "sandbox", "--cap-drop", "ALL", "--clearenv")
#: Folders beside /usr that have programs and libraries, or are links to those of /usr.
_TOP = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_INSTALL = ("apt-get install bubblewrap (Debian, Ubuntu), dnf install bubblewrap (Fedora, RHEL), "
            "apk add bubblewrap (Alpine), pacman -S bubblewrap (Arch)")

#: Priority (nice) of sandboxes whose CPU time no control group limits.
_NICE = 15


@dataclass(frozen=True, slots=True)
class _Tree:
    """What all sandboxes with the same programs see of the host."""

    etc: Path  #: a copy of /etc, with the first process's shell
    binds: Sequence[Bind]
    cover: Cover


#: By label, root and further folders; shared by all back ends of a process.
_trees: dict[tuple[str, ...], _Tree] = {}


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
        self._covers = True  # that overlays can be mounted
        self._tried = False  # that a sandbox can be made here
        self._checking = asyncio.Lock()
        self._filter = seccomp.program()

    @property
    def description(self) -> str:
        """The protection in effect, for people."""
        limits = "limits of each process" if self._parent is None else "control group"
        return ", ".join(["bubblewrap", limits, *(["CPU by priority"] if not self._limits_cpu else []),
                          *(["sockets under /usr in reach"] if not self._covers else []),
                          f"system calls {'' if self._filter else 'not '}filtered"])

    @property
    def _limits_cpu(self) -> bool:
        return self._parent is not None and self._parent.cpu is not None

    async def validate(self, spec: Spec) -> Rejection[Unusable] | None:
        if shutil.which("bwrap") is None:
            return Rejection(Unusable.PROGRAM_MISSING, f"bubblewrap is not installed; install it with: {_INSTALL}")
        manifest = await asyncio.to_thread(self._manifest, spec)
        if isinstance(manifest, Rejection):
            return manifest
        async with self._checking:
            if not self._is_prepared(manifest):
                try:
                    await asyncio.to_thread(self._prepare, manifest)
                except OSError as error:
                    return Rejection(Unusable.HOST_ERROR,
                                     f"the sandboxes' /etc can't be made in {tempfile.gettempdir()}: {error}")
            if not self._tried:
                self._parent = await asyncio.to_thread(cgroups.find, self._label)
                try:
                    sandbox = await self._try(spec)
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

    async def _try(self, spec: Spec) -> BubblewrapSandbox:
        """Make the first sandbox, and find out whether overlays can be mounted.

        Raises:
            SandboxError: it can't be made.
        """
        try:
            return await self._make(spec)
        except SandboxError as error:
            self._covers = False
            made = await self._make(spec)
            logger.warning("sockets and FIFOs of this machine under /usr can be reached from sandboxes: overlays can't "
                           "be mounted: %s", error)
            return made

    async def _make(self, spec: Spec) -> BubblewrapSandbox:
        manifest = self._manifest(spec)
        if isinstance(manifest, Rejection):
            raise SandboxError(manifest.message)
        user = outside_user()
        tree = _trees[self._key(manifest)]
        folder = self._folder()
        group = None
        try:
            if self._parent is not None:
                # The sandbox's files are memory too.
                group = cgroups.make(self._parent, self._label, cpus=spec.limits.cpus,
                                     processes=spec.limits.processes + 2 * init.RESERVE,
                                     memory=spec.limits.memory + spec.limits.disk + spec.limits.disk // 4)
            script = init.script(
                processes=spec.limits.processes if user is not None or _counts_by_namespace() else None,
                memory=None if group is not None else spec.limits.memory)
            return await BubblewrapSandbox.boot(
                [*_join(group), *(tree.cover.command() if self._covers else ()), *_become(user),
                 *([] if self._limits_cpu else ["nice", "-n", str(_NICE)])],
                self._arguments(spec, manifest, tree, folder), script,
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

    def _key(self, manifest: Manifest | None) -> tuple[str, ...]:
        return self._label, str(_root(manifest)), *(manifest.folders if manifest is not None else ())

    def _is_prepared(self, manifest: Manifest | None) -> bool:
        """Whether its tree was made, and nothing has cleaned up the folder for temporary files since."""
        tree = _trees.get(self._key(manifest))
        return tree is not None and tree.etc.is_dir()

    def _prepare(self, manifest: Manifest | None) -> None:
        root = _root(manifest)
        folder = self._folder()
        atexit.register(remove_folder, folder)
        folder.chmod(0o755)
        made = folder / "etc"
        made.mkdir(mode=0o755)
        etc.prepare(root / "etc", made, USER)
        etc.copy_shell(root, made / Path(init.SHELL).relative_to("/etc"))
        mounted = mount_points()
        binds = [bind for one in _binds(root, manifest) for bind in with_mounts(one, mounted)]
        _trees[self._key(manifest)] = _Tree(made, binds, Cover(binds, folder))

    def _folder(self) -> Path:
        """Make a folder for the sandbox's FIFOs, which its user can enter but not list or, since it is read-only
        inside, write to. An ordinary user owns it inside too."""
        folder = Path(tempfile.mkdtemp(prefix=f"{cgroups.PREFIX}{self._label}-{cgroups.maker()}-"))
        folder.chmod(0o711 if os.geteuid() == 0 else 0o311)
        return folder

    def _arguments(self, spec: Spec, manifest: Manifest | None, tree: _Tree, folder: Path) -> list[str]:
        """The arguments of bwrap, without the command."""
        arguments = list(_BWRAP)
        for name in _TOP:
            path = _root(manifest) / name
            if path.is_symlink():
                arguments += ["--symlink", os.readlink(path), f"/{name}"]
        arguments += ["--ro-bind", str(tree.etc), "/etc"]
        disk, small = spec.limits.disk, max(spec.limits.disk // 4, 1 << 20)
        arguments += ["--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev",
                      "--perms", "1777", "--size", str(small), "--tmpfs", "/dev/shm",
                      "--perms", "1777", "--size", str(small), "--tmpfs", "/tmp",
                      "--perms", "0755", "--size", str(disk), "--tmpfs", WORK]
        # After /tmp, in which further folders may be.
        for bind in tree.cover.binds if self._covers else tree.binds:
            arguments += ["--ro-bind", bind.source, bind.target]
        arguments += ["--ro-bind", str(folder), init.CONTROL, "--remount-ro", "/", "--chdir", WORK]
        variables = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": WORK, "USER": "user", "LOGNAME": "user",
                     "SHELL": "/bin/bash", "LANG": "C.UTF-8", "TMPDIR": "/tmp", "TERM": "dumb", **spec.environment}
        for key, value in variables.items():
            arguments += ["--setenv", key, value]
        return arguments


def _root(manifest: Manifest | None) -> Path:
    return Path(manifest.root) if manifest is not None and manifest.root else Path("/")


def _binds(root: Path, manifest: Manifest | None) -> list[Bind]:
    """What a sandbox sees of the host."""
    folders = [name for name in ("usr", *_TOP) if (root / name).is_dir() and not (root / name).is_symlink()]
    folders += [name for name in ("var/cache/fontconfig", "var/lib/xkb") if (root / name).is_dir()]
    return [*(Bind(str(root / name), f"/{name}") for name in folders),
            *(Bind(folder, folder) for folder in (manifest.folders if manifest is not None else ()))]


def _join(group: cgroups.Group | None) -> list[str]:
    """The command before another one, which is run in the group."""
    join = "".join(f'echo $$ >"{path}" || exit 1; ' for path in (group.joins if group is not None else ()))
    return ["/bin/sh", "-c", f'{join}exec "$@"', "sh"]


def _become(user: int | None) -> list[str]:
    """The command before another one, which is run as that host user."""
    return [] if user is None else ["setpriv", "--reuid", str(user), "--regid", str(user), "--clear-groups"]


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
