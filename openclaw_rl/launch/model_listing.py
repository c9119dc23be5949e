"""Models that are on this machine."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from openclaw_rl.config import EMBEDDED_MODEL, Config
from openclaw_rl.launch.memory import least_memory, weights_of
from openclaw_rl.models.api_endpoints import uses_api
from openclaw_rl.models.config import ModelError
from openclaw_rl.models.hub import is_hub_id
from openclaw_rl.models.prepare import check_folder
from openclaw_rl.runtime.home import Home


@dataclass(frozen=True)
class LocalModel:
    """A model, as `openclaw-rl models --json` prints it. Figures are None when its folder can't be read."""

    model: str  #: as components.policy_server.model names it
    folder: str
    configured: bool  #: the mesh's configuration names it
    weights: int | None
    disk: int  #: bytes
    serving: int | None  #: bytes of memory that serving takes at least, without a GPU
    training: int | None  #: the same of training with lora
    problem: str  #: why it can't be used, or is not here; empty when it can

    def json(self) -> dict[str, Any]:
        return asdict(self)


def local_models(home: Home, config: Config) -> list[LocalModel]:
    """List the embedded model, those that were downloaded into the home, and the configured one."""
    policy = config.components.policy_server
    found = {EMBEDDED_MODEL: home.models / EMBEDDED_MODEL}
    for folder in sorted(home.models.iterdir()) if home.models.is_dir() else ():
        if folder.is_dir() and not folder.name.startswith(".") and is_hub_id(name := folder.name.replace("--", "/", 1)):
            found[name] = folder
    if policy.model not in found and not uses_api(policy) and not is_hub_id(policy.model):
        found[policy.model] = Path(policy.model).expanduser().absolute()
    return [_look(name, folder, name == policy.model) for name, folder in found.items()]


def _look(name: str, folder: Path, configured: bool) -> LocalModel:
    disk = sum(file.stat().st_size for file in folder.iterdir() if file.is_file()) if folder.is_dir() else 0
    weights, problem = None, ""
    try:
        if folder.is_dir():
            weights = weights_of(folder)
            check_folder(folder)
        else:
            problem = "comes with the first start (93 MB)" if name == EMBEDDED_MODEL else "its folder is not there"
    except ModelError as error:
        problem = str(error)
    serving, training = (None, None) if weights is None else least_memory(weights)
    return LocalModel(name, str(folder), configured, weights, disk, serving, training, problem)
