from __future__ import annotations

import time

import pytest

from openclaw_rl.rollouts.environments.terminal.text import Clip, plain


@pytest.mark.parametrize(("data", "text"), [
    (b"a\x1b[1;31mred\x1b[0m b", "ared b"),
    (b"\x1b]0;a title\x07x\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\", "xlink"),
    (b"\x1b(B\x1b=x\x1bc", "x"),
    (b"\xff\xfe\x00ok\x7f", "\\xff\\xfe\\x00ok\\x7f"),
    (b"10%\r50%\r100%\nnext\r\n", "100%\nnext\n"),
    ("\u202eabc\u200b é 中".encode(), "\\u202eabc\\u200b é 中"),
    (b"tab\tand\nnewline", "tab\tand\nnewline"),
    (b"\x9b31m\x1b[", "\\x9b31m"),
    (b"<script>alert(1)</script>", "<script>alert(1)</script>"),
])
def test_text_does_nothing(data: bytes, text: str) -> None:
    assert plain(data) == text


@pytest.mark.parametrize("data", [b"a" * 65536, b"ab\r" * 20000, b"\x1b]" * 30000, b"\x1b[1" * 20000, b"\x1b" * 60000])
def test_long_lines_take_no_time(data: bytes) -> None:
    began = time.perf_counter()
    plain(data)
    assert time.perf_counter() - began < 1


def test_the_middle_is_left_out_with_a_mark() -> None:
    clip = Clip(100)
    for at in range(1000):
        clip.add(b"%06d\n" % at)
    text = clip.text()
    assert clip.left_out == 6900 and "[... 6,900 bytes are left out ...]" in text
    assert text.startswith("000000\n") and text.endswith("000999\n") and len(text) < 200


@pytest.mark.parametrize("sizes", [[1] * 30, [30], [7, 23], [5, 5, 20]])
def test_what_is_within_the_limit_is_kept_whole(sizes: list[int]) -> None:
    data, clip = bytes(range(65, 95)), Clip(30)
    rest = data
    for size in sizes:
        clip.add(rest[:size])
        rest = rest[size:]
    assert clip.text() == plain(data) and not clip.left_out
    clip.cut(18)
    assert clip.text() == plain(data[:12]) and clip.seen == 12
