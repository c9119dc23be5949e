"""The changes of a version against an older one, in a file beside the newer one."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path

from openclaw_rl.v1 import weights_pb2 as pb
from openclaw_rl.v1.weights_pb2 import TensorSpec
from openclaw_rl.weights.format.delta_file import ADAPTERS_FILE, Update, UpdateWriter, update_file
from openclaw_rl.weights.format.encoding import sparse_content
from openclaw_rl.weights.format.safetensors import CorruptFile
from openclaw_rl.weights.store import VersionStore

logger = logging.getLogger(__name__)

_one_at_a_time = threading.Lock()  # each needs a tensor's room in memory, and several receivers ask for the same


def adapters(store: VersionStore, version: int) -> Update | None:
    """The adapters that made a version from the base model; None when others than adapters were trained.

    Raises:
        KeyError: the version is not there.
    """
    path = store.folder(version) / ADAPTERS_FILE
    return _open(path) if version else None


def changes(store: VersionStore, version: int, base: int) -> Update | None:
    """Those tensors of a version that are smaller as what changed since the base than dense or as adapters. Worked out
    when it is first asked for, which takes about a second per GB; removed with the version.

    Returns:
        None when it can't be done (disk full, base damaged); the log says why.

    Raises:
        KeyError: the version is not there.
    """
    if not version:
        return None
    path = store.folder(version) / update_file(base)
    with _one_at_a_time:
        there = _open(path)
        if there is None:
            try:
                _write(store, version, base, path)
            except (KeyError, CorruptFile, OSError) as error:
                logger.warning("version %d goes without what changed since version %d: %r", version, base, error)
                path.with_suffix(".tmp").unlink(missing_ok=True)
                return None
            there = _open(path)
    return there


def _open(path: Path) -> Update | None:
    try:
        return Update(path)
    except FileNotFoundError:
        return None
    except (CorruptFile, OSError) as error:
        logger.warning("%s can't be used: %s", path, error)
        return None


def _write(store: VersionStore, version: int, base: int, path: Path) -> None:
    before, after = store.open(base), store.open(version)
    bases = {spec.name: spec for spec in store.specs(base)}
    low_rank = adapters(store, version)
    writer = UpdateWriter(path.with_suffix(".tmp"))
    try:
        for spec in store.specs(version):
            old = bases.get(spec.name)
            if old is None or (old.dtype, old.shape) != (spec.dtype, spec.shape) or old.sha256 == spec.sha256:
                continue
            content = sparse_content(before[spec.name], after[spec.name], spec.dtype)
            if content is not None:
                limit = spec.encoded_bytes
                if low_rank is not None and spec.name in low_rank.specs:
                    limit = min(limit, low_rank.specs[spec.name].encoded_bytes)
                sparse = TensorSpec()
                sparse.CopyFrom(spec)
                sparse.encoding, sparse.base_sha256 = pb.TENSOR_ENCODING_SPARSE_ZSTD, old.sha256
                writer.add(sparse, content, limit)
        writer.finish()
    finally:
        writer.close()
    os.replace(path.with_suffix(".tmp"), path)
