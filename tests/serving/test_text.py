from __future__ import annotations

import random

import pytest

from openclaw_rl.serving.text.detokenizer import Detokenizer, StopTexts, TokenBytes, overlap
from openclaw_rl.serving.text.template import ChatTemplate

TEXT = "Grüße, 世界 👋🏽\n\tthe end — ½"


def test_characters_come_whole(template: ChatTemplate) -> None:
    reader = Detokenizer(template.tokens)
    pieces = [reader.feed(token) for token in template.encode(TEXT)]
    assert "".join(pieces) + reader.finish() == TEXT
    assert not any("\ufffd" in piece for piece in pieces)


def test_an_unfinished_character_is_replaced(template: ChatTemplate) -> None:
    reader = Detokenizer(template.tokens)
    ids = template.encode("a世")[:-1]
    assert [reader.feed(token) for token in ids] == ["a", "", ""]
    assert reader.finish() == "\ufffd"


def test_special_and_unknown_tokens_are_no_text(template: ChatTemplate) -> None:
    reader = Detokenizer(template.tokens)
    assert reader.feed(2) == "" and reader.feed(10**6) == ""
    assert template.tokens.table[2] == b"<|im_end|>"


def test_sentencepiece_with_byte_fallback() -> None:
    tokens = TokenBytes("""{"model": {"vocab": {"<s>": 0, "<0xC3>": 1, "<0xA9>": 2, "\u2581hi": 3, "x": 4}},
        "added_tokens": [{"id": 0, "content": "<s>", "special": true}],
        "decoder": {"type": "Sequence", "decoders": [{"type": "Replace"}, {"type": "ByteFallback"},
                                                      {"type": "Fuse"}, {"type": "Strip"}]}}""")
    reader = Detokenizer(tokens)
    assert [reader.feed(token) for token in (0, 3, 1, 2, 4)] == ["", " hi", "", "é", "x"]
    assert Detokenizer(tokens, at_start=True).feed(3) == "hi"


def test_other_tokenizers_are_refused() -> None:
    with pytest.raises(ValueError, match="WordPiece"):
        TokenBytes('{"model": {"vocab": {"a": 0}}, "decoder": {"type": "WordPiece"}}')


def test_stop_texts_wherever_the_borders_lie() -> None:
    text = "one <<stop and <stop> two STO no STOP rest"
    rng = random.Random(1)
    for _ in range(200):
        stops, out, at = StopTexts(["<stop>", "STOP"]), "", 0
        while at < len(text) and not stops.hit:
            size = rng.randint(1, 6)
            out += stops.feed(text[at:at + size])
            at += size
        assert stops.hit and out == "one <<stop and "


def test_what_is_no_stop_text_is_given_out() -> None:
    stops = StopTexts(["END"])
    assert stops.feed("the EN") == "the "
    assert stops.feed("D") == "" and stops.hit
    stops = StopTexts(["END"])
    assert (stops.feed("the EN"), stops.finish(), stops.hit) == ("the ", "EN", False)


def test_overlap() -> None:
    assert [overlap("abc<to", "<tool>"), overlap("abc", "<tool>"), overlap("<tool>", "<tool>")] == [3, 0, 0]
