"""What is decoded is what was encoded, to the bit; what can't be, says so."""

from __future__ import annotations

import math
import struct
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import zstandard

from openclaw_rl.v1 import weights_pb2 as pb
from openclaw_rl.weights.format import encoding
from openclaw_rl.weights.format.digest import ITEM_SIZE, TensorCheck, check_tensor
from openclaw_rl.weights.format.encoding import (
    Adapter,
    EncodingError,
    compress,
    decode,
    decompress,
    low_rank_content,
    merge,
    sparse_content,
)


def view(values: np.ndarray) -> memoryview:
    return memoryview(values.view(np.uint8).reshape(-1).data)


def sparse_spec(dtype: str, size: int) -> pb.TensorSpec:
    return pb.TensorSpec(name="t", dtype=dtype, shape=[size], encoding=pb.TENSOR_ENCODING_SPARSE_ZSTD)


def round_trip(base: np.ndarray, new: np.ndarray, dtype: str) -> bytes | None:
    """Encode, decode and compare; the frame."""
    content = sparse_content(view(base), view(new), dtype)
    if content is None:
        return None
    frame = b"".join(compress(content))
    decoded = b"".join(decode(sparse_spec(dtype, len(new)), frame, view(base)))
    assert decoded == bytes(view(new))
    again = np.frombuffer(decoded, base.dtype)
    assert len(content) < len(view(new)) or not len(new)
    assert sparse_content(view(again), view(new), dtype) in (None, bytearray(struct.pack("<II", 0, 1)))
    return frame


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
@pytest.mark.parametrize("seed", range(12))
def test_what_changed_is_put_back_to_the_bit(dtype: str, seed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "_PIECE", 1000)  # many pieces
    rng = np.random.default_rng(seed)
    unsigned = f"<u{ITEM_SIZE[dtype]}"
    for _ in range(20):
        size = int(rng.integers(20, 5000))
        base = rng.integers(0, 2 ** (8 * ITEM_SIZE[dtype]), size, unsigned)  # any bits: NaN, infinities, both zeros
        new = base.copy()
        places = rng.choice(size, int(rng.integers(0, size // 4)), replace=False)
        kind = rng.integers(3)
        new[places] = [base[places] + 1, base[places] - 1, rng.integers(0, 60000, len(places))][kind]
        assert round_trip(base, new, dtype) is not None


@pytest.mark.parametrize("gap", [255, 256, 65535, 65536, 200_000])
def test_gaps_of_each_width(gap: int) -> None:
    base = np.zeros(500_000, "<u2")
    new = base.copy()
    new[gap] = new[2 * gap] = 7
    frame = round_trip(base, new, "BF16")
    _, width = struct.unpack_from("<II", decompress(frame, 10**6))
    assert width == (1 if gap < 256 else 2 if gap < 65536 else 4)


def test_the_ends_of_a_tensor_and_of_a_piece() -> None:
    size = 2 * encoding._PIECE + 3
    base = np.arange(size).astype("<u2")
    new = base.copy()
    new[[0, encoding._PIECE - 1, encoding._PIECE, size - 1]] ^= 0x8000
    assert round_trip(base, new, "BF16")


def test_zeros_differ_by_their_sign() -> None:
    base, new = (np.array([value] + [1.0] * 9, "<f4") for value in (0.0, -0.0))
    assert round_trip(base.view("<u4"), new.view("<u4"), "F32")


def test_nothing_changed_and_nothing_there() -> None:
    same = np.arange(100).astype("<u2")
    assert len(round_trip(same, same, "BF16")) < 30
    nothing = np.empty(0, "<u2")
    assert sparse_content(view(nothing), view(nothing), "BF16") is None


@pytest.mark.parametrize("dtype", ["BF16", "F32"])
def test_a_tensor_of_which_too_much_changed_goes_dense(dtype: str) -> None:
    base = np.arange(1000).astype(f"<u{ITEM_SIZE[dtype]}")
    assert round_trip(base, base + 1, dtype) is None


def test_types_of_other_widths_go_dense() -> None:
    values = np.zeros(10, "<u8")
    assert sparse_content(view(values), view(values), "F64") is None


BASE = np.arange(1000).astype("<u2")
GOOD = bytes(sparse_content(view(BASE), view(np.where(BASE % 50, BASE, BASE + 3)), "BF16") or b"")


@pytest.mark.parametrize(("content", "text"), [
    (GOOD[:-1], "do not make a frame"),
    (GOOD[:5], "cut off"),
    (struct.pack("<II", 20, 3) + GOOD[8:], "gaps of 3 bytes"),
    (struct.pack("<II", 2**32 - 1, 1) + GOOD[8:], "4294967295 values"),
    (struct.pack("<II", 1, 2) + struct.pack("<HH", 1000, 1), "beyond the end"),
    (bytes(2001), "more than the 2000"),
])
def test_frames_that_make_no_sense(content: Any, text: str) -> None:
    with pytest.raises(EncodingError, match=text):
        list(decode(sparse_spec("BF16", 1000), b"".join(compress(content)), view(BASE)))


def test_damaged_frames() -> None:
    frame = b"".join(compress(GOOD))
    rng = np.random.default_rng(0)
    for cut in range(len(frame)):
        with pytest.raises(EncodingError):
            list(decode(sparse_spec("BF16", 1000), frame[:cut], view(BASE)))
    for _ in range(300):  # whatever it is, it is refused here or by the tensor's digest
        damaged = bytearray(frame)
        damaged[rng.integers(len(frame))] ^= 1 << rng.integers(8)
        try:
            assert sum(map(len, decode(sparse_spec("BF16", 1000), bytes(damaged), view(BASE)))) == 2000
        except EncodingError:
            pass


def test_bombs_are_not_unpacked() -> None:
    said = zstandard.ZstdCompressor().compress(bytes(100 << 20))
    unsaid = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(100 << 20))
    for bomb in (said, unsaid):
        assert len(bomb) < 20_000
        with pytest.raises(EncodingError, match="more than the"):
            list(decode(sparse_spec("BF16", 1000), bomb, view(BASE)))
    wide = zstandard.ZstdCompressor(
        compression_params=zstandard.ZstdCompressionParameters(window_log=27)).compressobj()
    with pytest.raises(EncodingError, match="memory"):
        decompress(wide.compress(bytes(10 << 20)) + wide.flush(), 100 << 20)


def rounded(value: Fraction) -> int:
    """Bits of the nearest bfloat16, ties to even, by exact arithmetic."""
    sign, value = (0x8000, -value) if value < 0 else (0, value)
    best = min(range(0x7F80), key=lambda b: (abs(exact(b) - value), b & 1))
    return sign | best


def exact(bits: int) -> Fraction:
    return Fraction(float(np.array([bits << 16], "<u4").view("<f4")[0]))


def test_rounding_is_done_once() -> None:
    # Just above and below the middle of two bfloat16 values, closer than a float32 can tell.
    bits = np.array([0x3F80, 0x3F81, 0xBF80, 0xBF81, 0x0001], "<u2").astype(np.uint32) << 16
    low = bits.view("<f4").astype(np.float64)
    high = (bits + 0x10000).view("<f4").astype(np.float64)
    middle = (low + high) / 2
    for nudge in (-1e-14, 0.0, 1e-14):
        values = middle * (1 + nudge)
        want = [int(b) >> 16 if (abs(v) < abs(m) or (v == m and not int(b) >> 16 & 1)) else (int(b) >> 16) + 1
                for b, v, m in zip(bits, values, middle, strict=True)]
        assert encoding._narrow(values, "BF16").tolist() == want
    rng = np.random.default_rng(0)
    values = rng.standard_normal(5) * 10.0 ** rng.integers(-3, 3, 5)
    assert encoding._narrow(values, "BF16").tolist() == [rounded(Fraction(float(v))) for v in values]
    odd = np.array([math.inf, -math.inf, 1e39, 3.4e38, math.nan, -0.0, 1e-45])
    assert encoding._narrow(odd, "BF16").tolist() == [0x7F80, 0xFF80, 0x7F80, 0x7F80, 0x7FC0, 0x8000, 0]


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
def test_an_adapter_makes_the_same_tensor_at_both_ends(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "_ROWS", 500)
    rng = np.random.default_rng(1)
    base = encoding._narrow(rng.standard_normal((90, 120)), dtype)
    adapter = Adapter(rng.standard_normal((4, 120)).astype("<f4"), rng.standard_normal((90, 4)).astype("<f4"), 2.0)
    made = b"".join(merge(view(base), dtype, adapter))
    want = encoding._widen(base.view(f"<u{ITEM_SIZE[dtype]}"), dtype) + 2.0 * (
        adapter.b.astype(np.float64) @ adapter.a.astype(np.float64))
    assert made == bytes(view(encoding._narrow(want, dtype)))
    spec = pb.TensorSpec(dtype=dtype, shape=[90, 120], encoding=pb.TENSOR_ENCODING_LOW_RANK_ZSTD, rank=4, scale=2.0)
    frame = b"".join(compress(low_rank_content(adapter)))
    assert b"".join(decode(spec, frame, view(base))) == made
    with pytest.raises(EncodingError, match="its adapter has 4 of 3360 bytes"):
        list(decode(spec, b"".join(compress(b"1234")), view(base)))


def test_an_unknown_encoding() -> None:
    with pytest.raises(EncodingError, match="encoding 9"):
        list(decode(pb.TensorSpec(encoding=9), b"", memoryview(b"")))  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", ["BF16", "F32", "F64", "I32"])
def test_a_check_in_pieces_of_any_size_is_that_of_the_whole(dtype: str) -> None:
    rng = np.random.default_rng(0)
    for bad in (False, True):
        values = np.zeros(500, f"<u{ITEM_SIZE[dtype]}")
        if bad:
            values[rng.integers(500)] = np.array(-1).astype(values.dtype)  # all bits set: NaN
        data, check, at = view(values), TensorCheck(dtype), 0
        while at < len(data):
            step = int(rng.integers(1, 9))
            check.update(data[at : at + step])
            at += step
        assert check.result() == check_tensor(data, dtype)
        assert check.result()[1] is (dtype == "I32" or not bad)
