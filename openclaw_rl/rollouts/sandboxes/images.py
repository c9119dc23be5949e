"""Images of sandboxes as the bubblewrap back end knows them: manifests under `<home>/images/NAME/TAG.json`.

A bubblewrap sandbox runs the programs of this machine, or of a tree of files (a debootstrap tree, say), read-only. So
an image is no copy: it names the tree and the programs that must be there, which is checked when it's built and again
before it's used.
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

#: `openclaw/terminal-env:latest`, as docker spells names.
_NAME = re.compile(r"[a-z0-9]+(?:[._-]+[a-z0-9]+)*(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*(?::[A-Za-z0-9_][A-Za-z0-9._-]*)?")


@dataclass(frozen=True, slots=True)
class Recipe:
    """What an image of servers/environment/images is made of."""

    tag: str
    programs: Sequence[str]  #: must be there
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
    folders: Sequence[str] = ()  #: further folders of this machine that are seen inside, read-only, at the same place

    def problem(self) -> str:
        """Why it can't be used any more; empty when it can."""
        root = Path(self.root or "/")
        gone = [path for path in self.programs.values() if not _there(root, path)]
        gone += [folder for folder in self.folders if not Path(folder).is_dir()]
        if not gone:
            return _closed(path for path in (self.root, *self.folders) if path)
        return (f"the image {self.name} needs {', '.join(gone)}, not there any more; install it, or build the image "
                f"anew: {build_line(self.kind, 'bubblewrap', self.name)}")


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
    """The name, if it is one.

    Raises:
        ValueError: it is none.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of an image; one is like openclaw/terminal-env:latest: small "
                         "letters, digits, '.', '_', '-' and '/', and after ':' a tag")
    return name


def missing(home: Path, name: str, backend: str) -> str:
    """Why this image can't be used, with the line that makes it; empty when it can. Of docker's images only their
    names are looked at: an engine is asked by the back end's own `problem`."""
    try:
        check_name(name)
    except ValueError as error:
        return str(error)
    if backend != "bubblewrap":
        return ""
    manifest = Images(home).find(name)
    return absent(name, backend) if manifest is None else manifest.problem()


def absent(name: str, backend: str) -> str:
    """What to tell when there is no image of this name, with the line that makes it."""
    return f"there is no image {name} for {backend}; build it: {build_line(kind_of(name), backend, name)}"


def kind_of(name: str) -> str:
    """The recipe that an image's name speaks of; `terminal` when of none."""
    return next((kind for kind in RECIPES if kind in name), "terminal")


def build_line(kind: str, backend: str, name: str) -> str:
    """The command that builds an image."""
    tag = "" if name == RECIPES[kind].tag else f" --tag {name}"
    return f"servers/environment/build-image {kind} --for {backend}{tag}"


def build(kind: str, *, name: str | None = None, root: Path | None = None, folders: Sequence[Path] = ()) -> Manifest:
    """Look whether all programs are there.

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


def _closed(paths: Iterable[str]) -> str:
    """Which of these folders a sandbox's user can't reach: root makes sandboxes as a user who is nobody."""
    if os.geteuid() == 0:
        for path in paths:
            for folder in (Path(path), *Path(path).parents):
                if not folder.stat().st_mode & 0o001:
                    return f"a sandbox's user can't enter {folder}, which {path} is in: chmod o+x {folder}"
    return ""


def _there(root: Path, path: str) -> bool:
    """Whether a program is in a tree; its links are followed in that tree."""
    for _ in range(20):
        full = root / path.lstrip("/")
        if not full.is_symlink():
            return full.is_file() and os.access(full, os.X_OK)
        target = os.readlink(full)
        path = target if target.startswith("/") else os.path.normpath(f"{os.path.dirname(path)}/{target}")
    return False
