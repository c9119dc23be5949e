"""Version 0: the base model, as the folder that it comes in."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from google.protobuf.timestamp_pb2 import Timestamp

from openclaw_rl.models.identity import model_id as identify
from openclaw_rl.runtime.home import write_atomically
from openclaw_rl.v1.weights_pb2 import TensorSpec, VersionManifest
from openclaw_rl.weights.format.digest import manifest_digest, tensor_digest
from openclaw_rl.weights.format.safetensors import Place, Tensors, make_spec, read_folder

logger = logging.getLogger(__name__)


def base_manifest(folder: Path, cache: Path | None = None,
                  model_id: str | None = None) -> tuple[VersionManifest, list[TensorSpec]]:
    """Manifest and tensors of a base model. Reads all its bytes, so call it on a thread; takes about a second per GB.

    Args:
        folder: a Hugging Face folder; its tensors in one file or several.
        cache: JSON file that keeps the digests until a file of the model changes; None reads all again.
        model_id: None asks models.identity.

    Raises:
        CorruptFile: a file is damaged.
        OSError: a file is missing or can't be read.
    """
    places = read_folder(folder)
    stamp = _stamp(places)
    digests = _cached(cache, stamp)
    if digests.keys() != places.keys():
        tensors = Tensors(places)
        digests = {name: tensor_digest(tensors[name]) for name in places}
        _keep(cache, stamp, digests)
    specs = [make_spec(name, place.dtype, place.shape, digests[name]) for name, place in places.items()]
    made = Timestamp()
    made.FromNanoseconds(max(mtime for _, _, mtime in stamp) if stamp else 0)
    manifest = VersionManifest(version=0, digest=manifest_digest(specs), model_id=model_id or identify(folder),
                               algorithm="base", created_at=made, total_bytes=sum(spec.encoded_bytes for spec in specs))
    return manifest, specs


def _stamp(places: dict[str, Place]) -> list[tuple[str, int, int]]:
    """What changes when a file of the model changes: path, bytes, nanoseconds of its last change."""
    paths = sorted({place.path.resolve() for place in places.values()})
    return [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in paths]


def _cached(cache: Path | None, stamp: list[tuple[str, int, int]]) -> dict[str, bytes]:
    try:
        data = json.loads(cache.read_bytes()) if cache else {}
        if data.get("files") == [list(file) for file in stamp]:
            return {name: bytes.fromhex(digest) for name, digest in data["tensors"].items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        pass  # missing or damaged: the digests are computed again
    return {}


def _keep(cache: Path | None, stamp: list[tuple[str, int, int]], digests: dict[str, bytes]) -> None:
    if cache is None:
        return
    data = {"files": stamp, "tensors": {name: digest.hex() for name, digest in digests.items()}}
    try:
        write_atomically(cache, json.dumps(data).encode())
    except OSError as error:
        logger.warning("%s: can't be written (%s); the base model is read again at the next start", cache, error)
