"""The id of a mesh, by which its components know one another from those of another mesh.

Ports and addresses are used again, also by a second mesh on the same machine; the id stays with the home. It is no
secret: it keeps meshes apart that meet by accident, certificates keep strangers out.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from openclaw_rl.runtime.home import Home

if TYPE_CHECKING:
    from openclaw_rl.config import Config

#: Variable that takes precedence over everything else.
VARIABLE = "OPENCLAW_RL_MESH"
#: What an id looks like; the trust domain of certificates is one, too.
PATTERN = r"[a-z0-9][a-z0-9._-]{0,63}"
_FILE = "mesh-id"


def configured(config: Config, trust_domain: str = "") -> str:
    """The id that the environment, the configuration or the certificates give a mesh; "" when none does.

    Args:
        trust_domain: of the caller's certificate.

    Raises:
        ConfigError: the variable's value can't be one.
    """
    from openclaw_rl.config import ConfigError

    given = os.environ.get(VARIABLE, "")
    if given and not re.fullmatch(PATTERN, given):
        raise ConfigError(f"{VARIABLE}: {given[:80]!r} is not allowed: 1 to 64 lower-case letters, digits, dots, "
                          "hyphens and underscores, as `openclaw-rl mesh id` prints it")
    return given or config.mesh_id or trust_domain


def read(home: Home) -> str:
    """The id that was made for a home; "" when there is none yet.

    Raises:
        ConfigError: the file is damaged, or can't be read.
    """
    from openclaw_rl.config import ConfigError

    path = home.root / _FILE
    try:
        known = path.read_text(errors="replace").strip()
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror}") from None
    if not re.fullmatch(PATTERN, known):
        raise ConfigError(f"{path} is damaged: it holds the id of the mesh, of lower-case letters, digits, dots, "
                          "hyphens and underscores. Restore it from a backup, or remove it: the next start makes "
                          "another one, and what other meshes or machines know of this one is out of date then")
    return known


def make(home: Home) -> str:
    """The id of a home, made the first time. Processes that start at the same moment get the same one.

    Raises:
        ConfigError: as `read`.
        OSError: there is none and it can't be written.
    """
    if known := read(home):
        return known
    home.root.mkdir(parents=True, exist_ok=True)
    fd, made = tempfile.mkstemp(dir=home.root, prefix=f".{_FILE}.")
    try:
        with os.fdopen(fd, "w") as file:
            file.write(f"mesh-{secrets.token_hex(8)}\n")
        with contextlib.suppress(FileExistsError):
            os.link(made, home.root / _FILE)  # of several at once, the first one stands
    finally:
        Path(made).unlink(missing_ok=True)
    return read(home)
