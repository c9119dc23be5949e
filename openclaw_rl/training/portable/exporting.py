"""Export of a version, also while the mesh runs: nothing of the mesh is changed."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

from openclaw_rl.config import Config
from openclaw_rl.models.api_endpoints import uses_api
from openclaw_rl.runtime import mesh_id
from openclaw_rl.runtime.home import Home
from openclaw_rl.training.backends.interface import WEIGHTS_FILE
from openclaw_rl.training.portable.card import model_card
from openclaw_rl.training.portable.folder import ADAPTER, Description, PortableError, write_adapter
from openclaw_rl.training.tables.versions import lineage, parent_of, read_manifests
from openclaw_rl.v1.weights_pb2 import VersionManifest
from openclaw_rl.weights.format.safetensors import CorruptFile
from openclaw_rl.weights.store import MANIFEST_FILE, read_version


def export_version(home: Home, config: Config, number: int, folder: Path) -> Description:
    """Write a version of this machine as a Hugging Face folder, which appears whole or not at all.

    Args:
        folder: is not there yet, or empty.

    Raises:
        PortableError: the version is not on this machine, is the base model or a playbook, or the folder can't be
            written.
    """
    policy = config.components.policy_server
    if uses_api(policy):
        raise PortableError(f"the versions of {policy.model} are playbooks, not weights: `openclaw-rl versions show "
                            f"{number}` shows one")
    if number == 0:
        raise PortableError(f"version 0 is the base model, {policy.model}; name a version that was trained")
    folder = folder.expanduser().absolute()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise PortableError(f"{folder} is not empty; name a folder that is not there yet")
    source = _source(home, number)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    except OSError as error:
        raise PortableError(f"{folder} can't be written: {error.strerror}") from None
    try:
        described = _fill(made, home, policy.model, source, number)
        os.replace(made, folder)
    except (CorruptFile, OSError) as error:
        raise PortableError(f"version {number} can't be exported to {folder}: {error}") from error
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return described


def _source(home: Home, number: int) -> Path:
    folders = [home.component(name) / "versions" for name in ("trainer", "policy_server")]
    for folder in folders:
        if (folder / str(number) / MANIFEST_FILE).exists():
            return folder / str(number)
    there = sorted({int(path.name) for folder in folders if folder.is_dir() for path in folder.iterdir()
                    if path.name.isdecimal()} - {0})
    raise PortableError(f"the weights of version {number} are not in {home.root}; there are "
                        f"{', '.join(map(str, there)) or 'none'}")


def _fill(folder: Path, home: Home, model: str, source: Path, number: int) -> Description:
    manifest, specs = read_version(source)
    for file in source.iterdir():
        if file.is_file() and file.name != MANIFEST_FILE and file.suffix != ".update":
            shutil.copyfile(file, folder / file.name)
    steps = _steps(home, manifest)
    whole = VersionManifest()
    whole.CopyFrom(manifest)
    whole.parent = 0
    del whole.turn_ids[:]
    whole.turn_ids.extend(dict.fromkeys(turn for step in reversed(steps) for turn in step.turn_ids))
    described = Description(whole, specs, mesh_id.read(home), [step.version for step in steps])
    described.write(folder)
    described.read(folder)  # what was copied is what was meant
    checkpoint = home.component("trainer") / "checkpoints" / str(number) / WEIGHTS_FILE
    adapter = manifest.settings.get("method") == "lora" and checkpoint.exists()
    if adapter:
        write_adapter(checkpoint, folder / ADAPTER, model)
    (folder / "README.md").write_text(model_card(manifest, steps, base_model=model, mesh=described.mesh,
                                                 adapter=adapter))
    return described


def _steps(home: Home, manifest: VersionManifest) -> list[VersionManifest]:
    """The version and those that it was made from, as far as the trainer knows them; newest first."""
    known = {manifest.version: manifest}
    with contextlib.suppress(FileNotFoundError):
        known |= read_manifests(home.component("trainer") / "state.db")
    parents = {number: parent_of(step) for number, step in known.items()}
    return [known[number] for number in lineage(parents, manifest.version) if number > 0]
