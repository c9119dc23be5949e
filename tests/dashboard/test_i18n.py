"""The languages have the same sentences, with the same names in them; and a reader gets their own."""

from __future__ import annotations

import re

import pytest

from openclaw_rl.dashboard.i18n import LANGUAGES, chosen, t, texts


def test_all_languages_have_the_same_sentences() -> None:
    english = texts("en")
    for language in LANGUAGES:
        other = texts(language)
        assert set(other) == set(english), f"{language}: {set(other) ^ set(english)}"
        for key, text in other.items():
            assert text.strip(), f"{language}: {key} is empty"
            assert set(re.findall(r"{(\w+)", text)) == set(re.findall(r"{(\w+)", english[key])), f"{language}: {key}"


def test_chinese_is_chinese() -> None:
    same = [key for key, text in texts("zh").items() if text == texts("en")[key] and re.search("[a-z]{4}", text)
            and not re.fullmatch(r"[^a-z]*({\w+}[^a-z]*|p\d\d|\w+[._-]\w+)*", text)]
    assert len(same) <= len(texts("zh")) // 20, same


@pytest.mark.parametrize(("cookie", "accept", "expected"), [
    ("", "", "en"), ("", "zh-CN,zh;q=0.9,en;q=0.8", "zh"), ("", "de-DE,en;q=0.5,zh;q=0.9", "zh"), ("", "fr", "en"),
    ("en", "zh-CN", "en"), ("xx'><script>", "zh", "zh"), ("", "zh;q=x,en", "en"), ("", "," * 10_000, "en")])
def test_the_reader_s_language(cookie: str, accept: str, expected: str) -> None:
    assert chosen(cookie, accept) == expected


def test_a_sentence_never_breaks_a_page() -> None:
    assert t("no.such.key", x=1) == "no.such.key"
    assert t("frame.down") == texts("en")["frame.down"]
    assert "{0.__class__}" in t("frame.down", name="{0.__class__}", since="", problem="")
