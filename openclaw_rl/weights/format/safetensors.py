"""The safetensors file format: eight bytes of header length, a JSON header, and the tensors end to end."""

from __future__ import annotations

import json
import mmap
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openclaw_rl.runtime.json import parse_json
from openclaw_rl.v1.weights_pb2 import TENSOR_ENCODING_DENSE, TensorSpec
from openclaw_rl.weights.format.digest import ITEM_SIZE, dense_bytes

MODEL_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
_MAX_HEADER = 100 << 20  # as the safetensors library has it


class CorruptFile(ValueError):
    """A file is not what it should be; the text names it and says how."""


@dataclass(frozen=True, slots=True)
class Place:
    """A tensor in a file, from byte `start` up to byte `stop`."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


def make_spec(name: str, dtype: str, shape: Iterable[int], sha256: bytes) -> TensorSpec:
    """Spec of a dense tensor."""
    shape = tuple(shape)
    return TensorSpec(name=name, dtype=dtype, shape=shape, encoding=TENSOR_ENCODING_DENSE,
                      encoded_bytes=dense_bytes(dtype, shape), sha256=sha256)


def specs_to_json(specs: Iterable[TensorSpec]) -> list[list[Any]]:
    """Dense specs as the files beside a version's weights have them: name, type, shape and SHA-256 of each."""
    return [[spec.name, spec.dtype, list(spec.shape), spec.sha256.hex()] for spec in specs]


def specs_from_json(data: Iterable[tuple[str, str, list[int], str]]) -> list[TensorSpec]:
    """The specs that `specs_to_json` wrote.

    Raises:
        ValueError, TypeError: they are something else.
    """
    return [make_spec(name, dtype, shape, bytes.fromhex(sha256)) for name, dtype, shape, sha256 in data]


def header(specs: Iterable[TensorSpec], room: int = 0) -> bytes:
    """Header of a file that holds these tensors in this order, padded to `room` bytes, at the least to a multiple of
    8. It is longer than `room` when it does not fit."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for spec in specs:
        stop = at + dense_bytes(spec.dtype, spec.shape)
        entries[spec.name] = {"dtype": spec.dtype, "shape": list(spec.shape), "data_offsets": [at, stop]}
        at = stop
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text = text.ljust(max(room - 8, len(text) + -len(text) % 8))
    return struct.pack("<Q", len(text)) + text


def file_order(specs: Iterable[TensorSpec]) -> list[TensorSpec]:
    """Tensors in the order of a file: wide elements first, so that each begins at a multiple of its element's size."""
    return sorted(specs, key=lambda spec: (-ITEM_SIZE[spec.dtype], spec.name))


def read_header(path: Path) -> dict[str, Place]:
    """Tensors of a safetensors file, by name.

    Raises:
        CorruptFile: it is cut off or not a safetensors file.
        OSError: it can't be read.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else _MAX_HEADER + 1
        if length > min(_MAX_HEADER, size - 8):
            raise CorruptFile(f"{path} is not a safetensors file, or is cut off")
        text = file.read(length)
    first, places = 8 + length, {}
    try:
        for name, entry in parse_json(text).items():
            if name == "__metadata__":
                continue
            start, stop = entry["data_offsets"]
            place = Place(path, entry["dtype"], tuple(entry["shape"]), first + start, first + stop)
            if stop - start != dense_bytes(place.dtype, place.shape):
                raise ValueError(f"{name}: {stop - start} bytes do not make {place.dtype}{list(place.shape)}")
            places[name] = place
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CorruptFile(f"{path}: its header can't be read: {error}") from None
    end = max((place.stop for place in places.values()), default=first)
    if end > size:
        raise CorruptFile(f"{path} is cut off: {size} of {end} bytes")
    return places


def read_folder(folder: Path) -> dict[str, Place]:
    """Tensors of a Hugging Face folder, in one file or in several.

    Raises:
        CorruptFile: a file is damaged.
        OSError: there are no safetensors files, or one can't be read.
    """
    index = folder / INDEX_FILE
    if (folder / MODEL_FILE).exists() or not index.exists():
        return read_header(folder / MODEL_FILE)
    try:
        files = sorted(set(parse_json(index.read_bytes())["weight_map"].values()))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CorruptFile(f"{index}: can't be read: {error}") from None
    places: dict[str, Place] = {}
    for file in files:
        places |= read_header(folder / file)
    return places


class Tensors:
    """Tensors on disk, mapped into memory: `tensors[name]` is a read-only memoryview of the dense bytes."""

    def __init__(self, places: dict[str, Place]) -> None:
        self.places = places
        self._maps: dict[Path, memoryview] = {}
        for path in {place.path for place in places.values()}:
            with path.open("rb") as file:  # the mapping outlives the descriptor, and the file's name
                self._maps[path] = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))

    def __getitem__(self, name: str) -> memoryview:
        place = self.places[name]
        return self._maps[place.path][place.start : place.stop]

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)
