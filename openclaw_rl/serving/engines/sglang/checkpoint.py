"""Checkpoints for SGLang: complete folders, checked before any server sees them.

SGLang 0.5.23 crashes on a tensor with a wrong shape, silently accepts unknown names, and leaves missing tensors
uninitialized; so all of it is checked here.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from openclaw_rl.models.checkpoint import check_tensors, tensor_files
from openclaw_rl.models.config import ModelConfig, ModelError
from openclaw_rl.serving.engines.interface import WeightsError
from openclaw_rl.weights.format.safetensors import INDEX_FILE, CorruptFile, Tensors, read_folder

#: Files beside the weights that SGLang reads.
_COMPANIONS = (".json", ".jinja", ".txt", ".model")
_PIECE = 1 << 22  # bytes that are checked at once
_numbers = itertools.count(1)  # of folders
#: Where the bits of the exponent are, by type: all set means NaN or Inf.
_EXPONENTS = {"BF16": ("<u2", 0x7F80), "F16": ("<u2", 0x7C00), "F32": ("<u4", 0x7F800000)}


@dataclass(frozen=True)
class Checkpoint:
    """A version in the form that servers load."""

    version: int
    folder: Path  #: its own Hugging Face folder, which outlives the version's


def prepare(version: int, source: Path, base: Path, root: Path) -> Checkpoint:
    """Check a version and make its folder below `root`, with hard links where possible. Blocks.

    Args:
        version: its number.
        source: its folder: safetensors, with or without configuration and tokenizer.
        base: the base model's folder.
        root: created when missing.

    Raises:
        WeightsError: a tensor is missing, unknown, of another shape or type, or holds NaN or Inf; or the files can't
            be read or written.
    """
    folder = root / f"{version}-{next(_numbers)}"  # a new one: that of an earlier staging may just be being deleted
    try:
        check_tensors(source, ModelConfig.read(base))
        check_values(source)
        folder.mkdir(parents=True)
        names = {path.name for path in tensor_files(source)}
        for path in source.iterdir():
            if path.is_file() and (path.name in names or path.name == INDEX_FILE):
                _link(path, folder / path.name)
        for path in base.iterdir():
            if path.is_file() and path.suffix in _COMPANIONS and path.name != INDEX_FILE:
                _link(path, folder / path.name)
    except ModelError as error:
        raise WeightsError(str(error)) from None
    except (CorruptFile, OSError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise WeightsError(f"version {version} can't be prepared: {error}") from None
    return Checkpoint(version, folder)


def check_values(folder: Path) -> None:
    """Check that no tensor holds NaN or Inf; about 0.3 s per GB.

    Raises:
        WeightsError: naming the file and the tensor.
        CorruptFile, OSError: a file can't be read.
    """
    import numpy as np

    tensors = Tensors(read_folder(folder))
    for name in tensors:
        kind, exponent = _EXPONENTS[tensors.places[name].dtype]
        data = tensors[name]
        for start in range(0, len(data), _PIECE):
            bits = np.frombuffer(data[start:start + _PIECE], kind)
            if ((bits & exponent) == exponent).any():
                raise WeightsError(f"{tensors.places[name].path}: tensor {name} holds NaN or Inf")


def _link(source: Path, target: Path) -> None:
    with contextlib.suppress(OSError):
        os.link(source.resolve(), target)
        return
    shutil.copyfile(source, target)
