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


def check_tensor(data: memoryview, dtype: str) -> tuple[bytes, bool]:
    """Digest of a dense tensor, and whether all its values are finite, in one pass over its bytes."""
    import numpy as np  # only needed where weights are received; an API policy does without

    sha, finite = hashlib.sha256(), True
    unsigned, exponent = _EXPONENT.get(dtype, ("", 0))
    for start in range(0, len(data), _PIECE):  # a multiple of every element's size
        piece = data[start : start + _PIECE]
        sha.update(piece)
        if unsigned and finite:
            bits = np.frombuffer(piece, unsigned) & np.array(exponent, unsigned)
            finite = not (bits == exponent).any()
    return sha.digest(), finite
