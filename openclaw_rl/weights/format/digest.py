"""Digests of tensors and versions, and the check that a tensor has numbers only."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence

from typing_extensions import Buffer

from openclaw_rl.v1.weights_pb2 import TensorSpec

#: Bytes of an element, by safetensors' name of the type.
ITEM_SIZE = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}

#: Of the floating-point types: the unsigned type of the same size and the exponent's bits. All of them set means
#: NaN or infinite (IEEE 754, bfloat16 alike).
_EXPONENT = {"F64": ("<u8", 0x7FF0 << 48), "F32": ("<u4", 0x7F80 << 16), "F16": ("<u2", 0x7C00),
             "BF16": ("<u2", 0x7F80)}

_PIECE = 1 << 20  # bytes looked at together: stays in the CPU's cache


def dense_bytes(dtype: str, shape: Sequence[int]) -> int:
    """Bytes of a dense tensor.

    Raises:
        ValueError: a type that is not known, or a negative dimension.
    """
    if dtype not in ITEM_SIZE:
        raise ValueError(f"type {dtype!r} is not one of {', '.join(ITEM_SIZE)}")
    if any(size < 0 for size in shape):
        raise ValueError(f"shape {list(shape)} has a negative dimension")
    return math.prod(shape) * ITEM_SIZE[dtype]


def can_adapt(dtype: str, shape: Sequence[int], rank: int) -> bool:
    """Whether an adapter of this rank is a way to send a tensor: it is a matrix of floats, and larger."""
    return (dtype in ("BF16", "F16", "F32") and len(shape) == 2 and rank > 0
            and 4 * rank * sum(shape) <= dense_bytes(dtype, shape))


def tensor_digest(data: Buffer) -> bytes:
    """SHA-256 of a tensor's dense bytes, little-endian, row-major (32 bytes)."""
    return hashlib.sha256(data).digest()


def manifest_digest(specs: Iterable[TensorSpec]) -> str:
    """Digest of a version: lower-case hexadecimal SHA-256 over its tensors in the order of their names' UTF-8 bytes.

    Each tensor counts as its name, a zero byte, its type, a zero byte, its dimensions in decimal separated by commas,
    a zero byte, and the 32 bytes of its digest.
    """
    sha = hashlib.sha256()
    for spec in sorted(specs, key=lambda spec: spec.name.encode()):
        shape = ",".join(map(str, spec.shape))
        sha.update(f"{spec.name}\0{spec.dtype}\0{shape}\0".encode() + spec.sha256)
    return sha.hexdigest()


class TensorCheck:
    """Digest of a dense tensor, and whether all its values are finite, from its bytes in pieces of any size."""

    def __init__(self, dtype: str) -> None:
        self._sha = hashlib.sha256()
        self._finite = True
        self._item = ITEM_SIZE[dtype]
        self._unsigned, self._exponent = _EXPONENT.get(dtype, ("", 0))
        self._rest = b""  # of a value that a piece ended in

    def update(self, data: memoryview) -> None:
        """Take in the next bytes. Lets other threads run meanwhile."""
        for start in range(0, len(data), _PIECE):
            piece = data[start : start + _PIECE]
            self._sha.update(piece)
            if self._unsigned and self._finite:
                self._look(piece)

    def result(self) -> tuple[bytes, bool]:
        """SHA-256, and whether all values are finite."""
        return self._sha.digest(), self._finite

    def _look(self, piece: memoryview) -> None:
        import numpy as np  # only needed where weights are received; an API policy does without

        if self._rest:
            head = -len(self._rest) % self._item
            value, piece = self._rest + bytes(piece[:head]), piece[head:]
            self._rest = b""
            self._look(memoryview(value))
            if not piece:
                return
        whole = len(piece) - len(piece) % self._item
        bits = np.frombuffer(piece[:whole], self._unsigned) & np.array(self._exponent, self._unsigned)
        self._finite = self._finite and not (bits == self._exponent).any()
        self._rest = bytes(piece[whole:])


def check_tensor(data: memoryview, dtype: str) -> tuple[bytes, bool]:
    """Digest of a dense tensor, and whether all its values are finite, in one pass over its bytes."""
    check = TensorCheck(dtype)
    check.update(data)
    return check.result()
