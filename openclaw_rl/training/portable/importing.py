"""Import of an exported version into a home whose trainer does not run: the next start serves it and trains on from
it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from openclaw_rl.config import Config
from openclaw_rl.models.api_endpoints import uses_api
from openclaw_rl.models.config import ModelError
from openclaw_rl.models.prepare import ensure_model
from openclaw_rl.runtime.home import Home
from openclaw_rl.runtime.lock import AlreadyRuns, only_process
from openclaw_rl.training.backends.data_adapter import TokenAdapter
from openclaw_rl.training.backends.interface import WEIGHTS_FILE
from openclaw_rl.training.portable.folder import ADAPTER, Description, PortableError, read_adapter
from openclaw_rl.training.store import TrainerStore
from openclaw_rl.training.tables.versions import refused
from openclaw_rl.training.version_files import VersionFiles
from openclaw_rl.v1.weights_pb2 import VersionManifest
from openclaw_rl.weights.format.safetensors import MODEL_FILE, Tensors, file_order, read_folder
from openclaw_rl.weights.store import Tensor


def import_version(home: Home, config: Config, folder: Path) -> VersionManifest:
    """Keep an exported version as the newest of a home; the next step builds on it.

    Returns:
        Its manifest, with the number that it has here.

    Raises:
        PortableError: the folder is none of ours or damaged, the version is of another base model, was made by a method
            that is not configured here, or was refused by the gate; or the trainer runs.
    """
    folder = folder.expanduser().absolute()
    policy, trainer = config.components.policy_server, config.components.trainer
    if uses_api(policy):
        raise PortableError(f"{policy.model} is served by an API and takes no weights")
    described = Description.read(folder)
    if refused(described.manifest):
        raise PortableError(f"{folder} did not pass the gate where it was made: "
                            f"{'; '.join(described.manifest.gate.failures)}")
    made = dict(described.manifest.settings)
    if (key := TokenAdapter(trainer).conflict(made)) is not None:
        raise PortableError(f"{folder} was made with components.trainer.{key}: {made.get(key)}, and here it is "
                            f"{TokenAdapter(trainer).settings()[key]}; set the same")
    if made.get("method") == "lora" and not (folder / ADAPTER).is_dir():
        raise PortableError(f"{folder} has no {ADAPTER} from which training could go on: its trainer had deleted "
                            "that; export a newer version")
    try:
        base = ensure_model(policy.model, home.create())
        with only_process(home, "trainer"):
            store = TrainerStore(home.component("trainer") / "state.db", config.durability, trainer)
            try:
                return _import(VersionFiles(store, home.component("trainer"), base), store, described, folder)
            finally:
                store.close()
    except AlreadyRuns:
        raise PortableError(f"the trainer of {home.root} runs; `openclaw-rl stop-all` first, and start it again "
                            "afterwards") from None
    except (ModelError, OSError) as error:
        raise PortableError(f"{folder} can't be imported: {error}") from error


def _import(files: VersionFiles, store: TrainerStore, described: Description, folder: Path) -> VersionManifest:
    base = files.weights.manifest(0)
    if described.manifest.model_id != base.model_id:
        raise PortableError(f"{folder} is a version of another base model (id {described.manifest.model_id[:12]}, here "
                            f"{base.model_id[:12]}); set components.policy_server.model to the one that README.md in "
                            "it names")
    wanted = {spec.name: (spec.dtype, tuple(spec.shape)) for spec in files.weights.specs(0)}
    if wanted != {spec.name: (spec.dtype, tuple(spec.shape)) for spec in described.tensors}:
        raise PortableError(f"{folder} has other tensors than the base model")
    for known in store.versions.all():
        if known.manifest.digest == described.manifest.digest:
            raise PortableError(f"{folder} is here already, as version {known.manifest.version}")
    manifest = VersionManifest()
    manifest.CopyFrom(described.manifest)
    manifest.version, manifest.parent = store.versions.highest + 1, 0
    manifest.settings["imported_from"] = f"{described.mesh or 'another mesh'}, version {described.manifest.version}"
    try:
        manifest = files.weights.write(manifest, _tensors(described, folder))
        digests = files.checkpoints.write(manifest.version, lambda into: _checkpoint(folder, into))
        with store.database.transaction() as db:
            store.versions.add(db, manifest, digests)
    except ValueError as error:
        files.remove(manifest.version)
        raise PortableError(f"{folder} can't be imported: {error}") from error
    except BaseException:
        files.remove(manifest.version)
        raise
    return manifest


def _tensors(described: Description, folder: Path) -> Iterator[Tensor]:
    tensors = Tensors(read_folder(folder))
    for spec in file_order(described.tensors):
        yield spec.name, spec.dtype, spec.shape, tensors[spec.name]


def _checkpoint(folder: Path, into: Path) -> None:
    """Write what training goes on from: the adapter, else all weights as they are served."""
    if (folder / ADAPTER).is_dir():
        read_adapter(folder / ADAPTER, into / WEIGHTS_FILE)
    else:
        shutil.copyfile(folder / MODEL_FILE, into / WEIGHTS_FILE)
