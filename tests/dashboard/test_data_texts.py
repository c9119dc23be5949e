"""Texts are seen and do nothing."""

from __future__ import annotations

import time

import pytest

from openclaw_rl.dashboard.data import texts


@pytest.mark.parametrize(("text", "shown"), [
    ("plain\n\ttext", "plain\n\ttext"), ("a\r\nb\rc", "a\nb\nc"), ("\x1b[31m", "␛[31m"), ("a\0b", "a␀b"),
    ("x\u202egnp", "x⟨U+202E⟩gnp"), ("\u2066\u200f", "⟨U+2066⟩⟨U+200F⟩"), ("\x9b1m\x7f", "⟨U+009B⟩1m⟨U+007F⟩"),
    ("half \ud800 pair", "half \ufffd pair"), ("\u2028", "⟨U+2028⟩"), ("\U000e0041", "⟨U+E0041⟩"),
    ("مرحبا שלום 你好 👩‍👧", "مرحبا שלום 你好 👩‍👧"), ("<b>&amp;</b>", "<b>&amp;</b>")])
def test_inert(text: str, shown: str) -> None:
    assert texts.inert(text) == shown
    texts.inert(text).encode()


def test_a_long_text_is_cut_and_says_so() -> None:
    assert texts.inert("x" * 30, 10) == "x" * 10 + "\n… (+20)"
    assert texts.line("a \n b\t" * 100, 12) == "a b a b a b…"
    assert len(texts.line("\0" * 10_000, 50)) == 50


@pytest.mark.parametrize(("text", "shown"), [
    ("\x1b[1;31mred\x1b[0m", "red"), ("\x1b]0;title\x07x", "x"), ("\x1b]8;;http://a\x1b\\link\x1b]8;;\x1b\\", "link"),
    ("\x1bPdcs\x1b\\x\x1b(By\x1b7z", "xyz"), ("10%\r20%\r\n$ ", "20%\n$ "), ("a\x1b[2K\rb", "b"), ("end\r", "end"),
    ("\x1b", "␛"), ("\x9b31mx", "x"), ("\x07", "␇"), ("a\u202eb", "a⟨U+202E⟩b")])
def test_terminal(text: str, shown: str) -> None:
    assert texts.terminal(text) == shown


def test_a_terminal_s_end_is_shown() -> None:
    assert texts.terminal("a\n" * 1000 + "last", 10).endswith("last")


@pytest.mark.parametrize("text", ["\x1b]" * 500_000, "x" * 1_000_000, "\r" * 1_000_000, "\x1bP" + "x" * 1_000_000,
                                  "\x1b[" + ";" * 1_000_000, "\u202e" * 1_000_000])
def test_large_texts_take_no_time(text: str) -> None:
    begun = time.perf_counter()
    texts.terminal(text)
    texts.inert(text)
    texts.line(text)
    assert time.perf_counter() - begun < 1.0
