"""Images of the bubblewrap back end: manifests under `<home>/images/NAME/TAG.json`.

A bubblewrap sandbox runs the programs of this machine, or of a file tree (such as one of debootstrap), read-only. So an
image is no copy: it names the tree and the programs that must be present, which is checked when it is built and again
before it is used.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from openclaw_rl.rollouts.sandboxes.interface import Unusable
from openclaw_rl.runtime.rejection import Rejection

#: `openclaw/terminal-env:latest`, as docker spells names.
_NAME = re.compile(r"[a-z0-9]+(?:[._-]+[a-z0-9]+)*(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*(?::[A-Za-z0-9_][A-Za-z0-9._-]*)?")


@dataclass(frozen=True, slots=True)
class Recipe:
    """Contents of an image of servers/environment/images."""

    tag: str
    programs: Sequence[str]  #: required
    packages: Mapping[str, Sequence[str]] = field(default_factory=dict)  #: by the package manager that has them


RECIPES: dict[str, Recipe] = {
    "terminal": Recipe("openclaw/terminal-env:latest",
                       ("bash", "setsid", "awk", "sed", "grep", "find", "sort", "tar", "gzip", "git", "python3"),
                       {"apt-get": ("bash", "util-linux", "mawk", "sed", "grep", "findutils", "coreutils", "tar",
                                    "gzip", "git", "python3")}),
    "swe": Recipe("openclaw/swe-env:latest", ("bash", "setsid", "git", "python3", "diff"),
                  {"apt-get": ("bash", "util-linux", "git", "python3", "diffutils")}),
    "gui": Recipe("openclaw/gui-env:latest",
                  ("bash", "setsid", "Xvfb", "jwm", "xdotool", "xprop", "xwininfo", "import", "xterm", "zenity",
                   "python3"),
                  {"apt-get": ("bash", "util-linux", "xvfb", "jwm", "xdotool", "x11-utils", "imagemagick", "xterm",
                               "zenity", "python3-tk", "fonts-dejavu-core", "xauth")}),
}


@dataclass(frozen=True, slots=True)
class Manifest:
    """One image."""

    name: str  #: with its tag
    kind: str  #: the recipe that it was built from
    programs: Mapping[str, str]  #: program -> its path inside
    root: str = ""  #: tree of files; empty: this machine's own
    folders: Sequence[str] = ()  #: further folders of this machine, visible inside, read-only, at the same path

    def validate(self) -> Rejection[Unusable] | None:
        """Check that everything the image names is still there."""
        root = Path(self.root or "/")
        gone = [path for path in self.programs.values() if not _there(root, path)]
        gone += [folder for folder in self.folders if not Path(folder).is_dir()]
        if not gone:
            return _validate_access(path for path in (self.root, *self.folders) if path)
        return Rejection(Unusable.IMAGE_BROKEN, (
            f"the image {self.name} needs {', '.join(gone)}, not there any more; install it, or rebuild the image: "
            f"{build_line(self.kind, 'bubblewrap', self.name)}"))


class Images:
    """The images of one mesh."""

    def __init__(self, home: Path) -> None:
        self._folder = home / "images"

    def find(self, name: str) -> Manifest | None:
        """The image of this name; without a tag, `latest`.

        Raises:
            ValueError: `name` is none.
        """
        file = self._file(name)
        try:
            return Manifest(**json.loads(file.read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def add(self, manifest: Manifest) -> Path:
        """Keep an image; one of the same name is replaced. The file that it is in."""
        file = self._file(manifest.name)
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False) as temporary:
            json.dump(asdict(manifest), temporary, indent=1)
        os.replace(temporary.name, file)
        return file

    def _file(self, name: str) -> Path:
        name, _, tag = check_name(name).partition(":")
        return self._folder.joinpath(*name.split("/")) / f"{tag or 'latest'}.json"


def check_name(name: str) -> str:
    """Return the name of an image.

    Raises:
        ValueError: it is no valid name.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of an image; one is like openclaw/terminal-env:latest: small "
                         "letters, digits, '.', '_', '-' and '/', and after ':' a tag")
    return name


def validate_image(home: Path, name: str, backend: str) -> Rejection[Unusable] | None:
    """Check whether an image can be used. Of docker's images only the name is checked: its back end asks the engine."""
    try:
        check_name(name)
    except ValueError as error:
        return Rejection(Unusable.MISCONFIGURED, str(error))
    if backend != "bubblewrap":
        return None
    manifest = Images(home).find(name)
    return Rejection(Unusable.IMAGE_ABSENT, absent(name, backend)) if manifest is None else manifest.validate()


def absent(name: str, backend: str) -> str:
    """The message for an absent image, with the command that builds it."""
    return f"there is no image {name} for {backend}; build it: {build_line(recipe_of(name), backend, name)}"


def recipe_of(name: str) -> str:
    """The recipe that an image's name suggests; `terminal` by default."""
    return next((kind for kind in RECIPES if kind in name), "terminal")


def build_line(kind: str, backend: str, name: str) -> str:
    """The command that builds an image."""
    tag = "" if name == RECIPES[kind].tag else f" --tag {name}"
    return f"servers/environment/build-image {kind} --for {backend}{tag}"


def build(kind: str, *, name: str | None = None, root: Path | None = None, folders: Sequence[Path] = ()) -> Manifest:
    """Make an image's manifest, after checking that all programs are present.

    Raises:
        ValueError: a program is missing; the text has the line that installs what is missing.
    """
    recipe = RECIPES[kind]
    base = root or Path("/")
    programs, absent = {}, []
    for program in recipe.programs:
        path = next((f"{folder}/{program}" for folder in ("/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin")
                     if _there(base, f"{folder}/{program}")), None)
        if path is None:
            absent.append(program)
        else:
            programs[program] = path
    if absent:
        manager = next((manager for manager in recipe.packages if shutil.which(manager)), "apt-get")
        inside = f"chroot {root} " if root else ""
        raise ValueError(f"{', '.join(absent)} not found{f' in {root}' if root else ''}; install: "
                         f"{inside}{manager} install {' '.join(recipe.packages.get(manager, ()))}")
    return Manifest(check_name(name or recipe.tag), kind, programs, str(root.absolute()) if root else "",
                    [str(folder.absolute()) for folder in folders])


def _validate_access(paths: Iterable[str]) -> Rejection[Unusable] | None:
    """Check that a sandbox's user can reach these folders: root makes sandboxes as an unprivileged user."""
    if os.geteuid() == 0:
        for path in paths:
            for folder in (Path(path), *Path(path).parents):
                if not folder.stat().st_mode & 0o001:
                    return Rejection(Unusable.NOT_PERMITTED, (
                        f"a sandbox's user can't enter {folder}, which contains {path}: chmod o+x {folder}"))
    return None


def _there(root: Path, path: str) -> bool:
    """Whether a program is in a tree; links are followed within that tree."""
    for _ in range(20):
        full = root / path.lstrip("/")
        if not full.is_symlink():
            return full.is_file() and os.access(full, os.X_OK)
        target = os.readlink(full)
        path = target if target.startswith("/") else os.path.normpath(f"{os.path.dirname(path)}/{target}")
    return False
