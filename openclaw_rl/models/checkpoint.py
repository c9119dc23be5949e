"""The safetensors files of a model folder, checked by their headers alone."""

from __future__ import annotations

import struct
from pathlib import Path

from openclaw_rl.models.config import ModelConfig, ModelError, read_json
from openclaw_rl.runtime.json import parse_json

#: Element types that the engine supports, as safetensors names them.
DTYPES = ("BF16", "F16", "F32")
_BYTES = {"BF16": 2, "F16": 2, "F32": 4}


def tensor_files(folder: Path) -> list[Path]:
    """List the folder's safetensors files: model.safetensors, or the shards that model.safetensors.index.json names.

    Raises:
        ModelError: neither exists, or the index names a file outside the folder.
    """
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file():
        return [single]
    if not index.is_file():
        raise ModelError(f"{folder}: neither model.safetensors nor model.safetensors.index.json is there")
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise ModelError(f"{index}: weight_map must map tensors to files")
    files = [folder / name for name in sorted(set(names.values()))]
    for file in files:
        if file.parent != folder or not file.is_file():
            raise ModelError(f"{index}: names {file.name}, which is not in {folder}")
    return files


def check_tensors(folder: Path, config: ModelConfig) -> None:
    """Check that the folder's files are whole and hold exactly the tensors of `config`.

    The output matrix of a tied model is allowed and ignored.

    Raises:
        ModelError: naming the file and the first tensor that is missing, unknown or of another shape or type.
    """
    expected = config.tensors()
    missing = set(expected)
    for file in tensor_files(folder):
        for name, (dtype, shape) in _header(file).items():
            if name not in expected:
                if name == "lm_head.weight" or name.endswith("rotary_emb.inv_freq"):
                    continue
                raise ModelError(f"{file}: tensor {name} is not part of a {config.architecture} model as config.json "
                                 f"describes it")
            if shape != expected[name]:
                raise ModelError(f"{file}: tensor {name} has shape {list(shape)}; config.json asks for "
                                 f"{list(expected[name])}")
            if dtype not in DTYPES:
                raise ModelError(f"{file}: tensor {name} has type {dtype}; allowed: {', '.join(DTYPES)}")
            missing.discard(name)
    if missing:
        raise ModelError(f"{folder}: tensor {min(missing)} is missing ({len(missing)} of {len(expected)} are)")


def _header(file: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Read name -> (type, shape) of a safetensors file, and check its length."""
    try:
        with file.open("rb") as opened:
            (length,) = struct.unpack("<Q", opened.read(8))
            size = file.stat().st_size
            if length > size - 8:
                raise ValueError("its header exceeds the file")
            header = parse_json(opened.read(length))
        header.pop("__metadata__", None)
        found, end = {}, 0
        for name, entry in header.items():
            shape, (start, stop) = tuple(entry["shape"]), entry["data_offsets"]
            elements = 1
            for n in shape:
                elements *= n
            width = _BYTES.get(entry["dtype"])
            if stop < start or (width is not None and stop - start != width * elements):
                raise ValueError(f"tensor {name} has {stop - start} bytes for shape {list(shape)}")
            found[name], end = (entry["dtype"], shape), max(end, stop)
        if 8 + length + end != size:
            raise ValueError(f"it has {size} bytes and declares {8 + length + end}")
        return found
    except OSError as error:
        raise ModelError(f"{file}: {error.strerror}") from None
    except (struct.error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{file}: not a whole safetensors file: {error}") from None
