"""The encodings of a tensor that are smaller than the tensor: what changed since a base, and low-rank adapters.

The formats are those of TensorEncoding in weights.proto. Everything here works through a tensor in pieces, so beside
the content of one frame, which is never larger than the tensor, only a few hundred KB are in memory.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import zstandard
from numpy.typing import NDArray
from typing_extensions import Buffer

from openclaw_rl.v1 import weights_pb2 as pb
from openclaw_rl.v1.weights_pb2 import TensorSpec
from openclaw_rl.weights.format.digest import ITEM_SIZE

Array: TypeAlias = NDArray[Any]

#: zstd level. Of a real update (learning rate 1e-5, 135M values), level 1 makes 1.25 %, 3 1.24 %, 9 1.22 % at 7 times
#: the time, 15 1.16 % at 30 times; adapters (float32 noise) are 92 % at any level.
LEVEL = 3

_WINDOW = 8 << 20  # bytes that a frame may refer back to
_PIECE = 1 << 18  # values compared together
_ROWS = 1 << 15  # values made of an adapter together: their float64 stay in the CPU's cache
_HEAD = struct.Struct("<II")  # number of values, bytes of a gap


class EncodingError(ValueError):
    """Encoded bytes that can't be decoded; the text says why."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """What made a tensor (rows x columns) from the base model's: base + scale * (b @ a)."""

    a: Array  #: rank x columns, float32
    b: Array  #: rows x rank, float32
    scale: float

    @property
    def rank(self) -> int:
        return len(self.a)


class Adapted(tuple[str, str, Sequence[int], Buffer]):
    """A tensor to write, (name, type, shape, bytes), that knows the adapter that made it from the base model's."""

    adapter: Adapter


def compress(content: Buffer) -> Iterator[bytes]:
    """One zstd frame, piece by piece."""
    view = memoryview(content).cast("B")
    compressor = zstandard.ZstdCompressor(level=LEVEL).compressobj(size=len(view))
    for start in range(0, len(view), 1 << 20):
        if piece := compressor.compress(view[start : start + (1 << 20)]):
            yield piece
    yield compressor.flush()


def decompress(frame: Buffer, limit: int) -> bytes:
    """The content of a zstd frame.

    Raises:
        EncodingError: it is no such frame, cut off, or has more than `limit` bytes.
    """
    try:
        said = zstandard.get_frame_parameters(memoryview(frame)[:18]).content_size
        if said != zstandard.CONTENTSIZE_UNKNOWN and said > limit:
            raise EncodingError(f"its frame has {said} bytes, more than the {limit} of the tensor")
        size = min(said, limit)
        content = zstandard.ZstdDecompressor(max_window_size=_WINDOW).stream_reader(memoryview(frame)).read(size + 1)
    except zstandard.ZstdError as error:
        raise EncodingError(f"its zstd frame is damaged: {error}") from None
    if len(content) > size:
        raise EncodingError(f"its frame has more than the {size} bytes that it may have")
    return content


def sparse_content(base: memoryview, new: memoryview, dtype: str) -> bytearray | None:
    """What changed between two tensors of one type, before compression; None when that is no smaller than the tensor
    or the type's values have neither 2 nor 4 bytes."""
    item = ITEM_SIZE[dtype]
    if item not in (2, 4):
        return None
    before, after = (np.frombuffer(data, f"<u{item}") for data in (base, new))
    count = last = widest = 0
    for places in _changed(before, after):
        gaps = np.diff(places, prepend=last)
        count, last, widest = count + len(places), int(places[-1]), max(widest, int(gaps.max()))
        if _HEAD.size + count * (1 + item) >= len(new):
            return None
    width = 1 if widest < 1 << 8 else 2 if widest < 1 << 16 else 4
    size = _HEAD.size + count * (width + item)
    if size >= len(new):
        return None
    content = bytearray(size)
    _HEAD.pack_into(content, 0, count, width)
    planes = np.frombuffer(content, np.uint8, offset=_HEAD.size).reshape(width + item, count)
    at = last = 0
    for places in _changed(before, after):
        stop = at + len(places)
        _fill(planes[:width, at:stop], np.diff(places, prepend=last).astype(f"<u{width}"))
        _fill(planes[width:, at:stop], _zigzag(after[places] - before[places]))
        at, last = stop, int(places[-1])
    return content


def low_rank_content(adapter: Adapter) -> bytes:
    """An adapter, before compression."""
    return adapter.a.astype("<f4").tobytes() + adapter.b.astype("<f4").tobytes()


def decode(spec: TensorSpec, frame: Buffer, base: memoryview) -> Iterator[memoryview]:
    """The dense bytes of a tensor, piece by piece, from its encoded ones and those of its base.

    Raises:
        EncodingError: they can't be decoded. That what came out is the tensor, only its digest tells.
    """
    if spec.encoding == pb.TENSOR_ENCODING_SPARSE_ZSTD:
        yield from _patch(decompress(frame, len(base)), base, spec.dtype)
        return
    if spec.encoding != pb.TENSOR_ENCODING_LOW_RANK_ZSTD:
        raise EncodingError(f"encoding {spec.encoding} is not known")
    rows, columns = spec.shape
    content = np.frombuffer(decompress(frame, low_rank_bytes(spec)), np.uint8)
    if len(content) != low_rank_bytes(spec):
        raise EncodingError(f"its adapter has {len(content)} of {low_rank_bytes(spec)} bytes")
    values = content.view("<f4")
    a, b = values[: spec.rank * columns].reshape(-1, columns), values[spec.rank * columns :].reshape(rows, -1)
    yield from merge(base, spec.dtype, Adapter(a, b, spec.scale))


def low_rank_bytes(spec: TensorSpec) -> int:
    """Bytes of a tensor's adapter."""
    rows, columns = spec.shape
    return int(4 * spec.rank * (rows + columns))


def merge(base: memoryview, dtype: str, adapter: Adapter) -> Iterator[memoryview]:
    """base + scale * (b @ a) in float64, rounded once to the type (to nearest, ties to even), some rows at a time.

    Trainer and receiver both call this, so they agree to the bit wherever their float64 arithmetic does.
    """
    values = np.frombuffer(base, f"<u{ITEM_SIZE[dtype]}").reshape(len(adapter.b), -1)
    a = adapter.a.astype(np.float64)
    rows = max(1, _ROWS // max(1, values.shape[1]))
    for start in range(0, len(values), rows):
        product = adapter.b[start : start + rows].astype(np.float64) @ a
        product *= adapter.scale
        product += _widen(values[start : start + rows], dtype)
        yield _bytes(_narrow(product, dtype))


def _changed(before: Array, after: Array) -> Iterator[Array]:
    """Flat indices of values whose bits differ, piece by piece, none of them empty."""
    for start in range(0, len(after), _PIECE):
        places = np.flatnonzero(before[start : start + _PIECE] != after[start : start + _PIECE])
        if len(places):
            yield places + start


def _bytes(values: Array) -> memoryview:
    return memoryview(values.view(np.uint8).reshape(-1).data)


def _fill(planes: Array, values: Array) -> None:
    """Spread the bytes of little-endian values over planes."""
    planes[:] = values.view(np.uint8).reshape(len(values), -1).T


def _gather(planes: Array) -> Array:
    """Values from their planes."""
    return np.ascontiguousarray(planes.T).view(f"<u{len(planes)}").reshape(-1)


def _zigzag(difference: Array) -> Array:
    top = difference.dtype.type(8 * difference.itemsize - 1)
    zigzag: Array = (difference << difference.dtype.type(1)) ^ -(difference >> top)
    return zigzag


def _unzigzag(values: Array) -> Array:
    one = values.dtype.type(1)
    difference: Array = (values >> one) ^ -(values & one)
    return difference


def _patch(content: bytes, base: memoryview, dtype: str) -> Iterator[memoryview]:
    item = ITEM_SIZE[dtype]
    if len(content) < _HEAD.size:
        raise EncodingError("its frame is cut off")
    count, width = _HEAD.unpack_from(content)
    if width not in (1, 2, 4) or len(content) != _HEAD.size + count * (width + item):
        raise EncodingError(f"{count} values with gaps of {width} bytes do not make a frame of {len(content)}")
    planes = np.frombuffer(content, np.uint8, offset=_HEAD.size).reshape(width + item, count)
    values = np.frombuffer(base, f"<u{item}")
    taken = at = 0
    places = differences = np.empty(0, np.int64)
    for start in range(0, len(values), _PIECE):
        piece = values[start : start + _PIECE].copy()
        stop = start + len(piece)
        while True:
            if not len(places) and taken < count:
                block = planes[:, taken : taken + _PIECE]
                taken += block.shape[1]
                places = at + np.cumsum(_gather(block[:width]), dtype=np.int64)
                differences = _unzigzag(_gather(block[width:]))
                at = int(places[-1])
            here = int(np.searchsorted(places, stop))
            if not here:
                break
            piece[places[:here] - start] += differences[:here]
            places, differences = places[here:], differences[here:]
        yield _bytes(piece)
    if len(places) or taken < count:
        raise EncodingError("it changes values beyond the end of the tensor")


def _widen(bits: Array, dtype: str) -> Array:
    if dtype == "BF16":
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return bits.view({"F16": np.float16, "F32": np.float32}[dtype])


def _narrow(values: Array, dtype: str) -> Array:
    """float64 rounded once; numpy knows all types but bfloat16."""
    with np.errstate(over="ignore"):  # too large becomes infinite, which is refused
        if dtype != "BF16":
            return values.astype({"F16": "<f2", "F32": "<f4"}[dtype])
        single = values.astype(np.float32)
    bits = single.view(np.uint32)
    # A float32 in the middle between two bfloat16 values may have been on either side of it before.
    flat, exact = bits.reshape(-1), values.reshape(-1)
    middle = np.flatnonzero((flat & np.uint32(0xFFFF)) == 0x8000)
    if len(middle):
        before, after = np.abs(exact[middle]), np.abs(single.reshape(-1)[middle])
        flat[middle] += (before > after).astype(np.uint32) - (before < after).astype(np.uint32)
    nan = np.isnan(single)
    halves = ((bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(16)).astype("<u2")
    if nan.any():
        halves[nan] = 0x7FC0
    return halves
