"""From token ids to text, as they come: whole characters only, and never past a stop text."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any


class TokenBytes:
    """The bytes of every token of a vocabulary, and which tokens are no text.

    Works from the tokenizer's own description, for the two families there are: byte-level BPE (GPT-2, Llama 3,
    SmolLM2) and SentencePiece-like BPE with byte fallback (Llama 2).

    Attributes:
        table: bytes by token id; special tokens have those of their name.
        special: ids of tokens that are not shown, such as the end of the turn.
        strips_space: the first token of a text loses its leading space (SentencePiece).
    """

    def __init__(self, tokenizer_json: str) -> None:
        """Args: tokenizer_json: content of tokenizer.json. Raises: ValueError: neither of the two families."""
        spec = json.loads(tokenizer_json)
        decoders = set(_types(spec.get("decoder")))
        vocab: dict[str, int] = spec["model"]["vocab"]
        added = {token["id"]: token for token in spec.get("added_tokens", [])}
        size = max([*vocab.values(), *added]) + 1
        self.table: list[bytes] = [b""] * size
        if "ByteLevel" in decoders:
            to_byte = {char: byte for byte, char in _byte_alphabet().items()}
            for piece, index in vocab.items():
                if index not in added:
                    self.table[index] = bytes(to_byte[char] for char in piece if char in to_byte)
        elif "ByteFallback" in decoders or "Metaspace" in decoders:
            for piece, index in vocab.items():
                if match := re.fullmatch(r"<0x([0-9A-F]{2})>", piece):
                    self.table[index] = bytes([int(match[1], 16)])
                else:
                    self.table[index] = piece.replace("\u2581", " ").encode()
        else:
            raise ValueError(f"tokenizer.json: decoder {sorted(decoders)} is not supported: byte-level BPE, or BPE "
                             f"with byte fallback")
        for index, token in added.items():
            self.table[index] = token["content"].encode()
        self.special = frozenset(index for index, token in added.items() if token.get("special"))
        self.strips_space = bool({"Strip", "Metaspace"} & decoders)


class Detokenizer:
    """Text of one response, token by token; a character is given out when its last byte is there."""

    def __init__(self, tokens: TokenBytes, at_start: bool = False) -> None:
        """Args: at_start: the response is the beginning of a text (no prompt before it in the same text)."""
        self._tokens = tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._strip = at_start and tokens.strips_space

    def feed(self, token: int) -> str:
        """The text that is complete with this token; empty for special ones and within a character."""
        if token in self._tokens.special:
            return ""
        data = self._tokens.table[token] if token < len(self._tokens.table) else b""
        if self._strip and data:
            self._strip = False
            data = data.removeprefix(b" ")
        return self._decoder.decode(data)

    def finish(self) -> str:
        """What is left: a replacement character when the response ends within a character."""
        return self._decoder.decode(b"", final=True)


class StopTexts:
    """Cuts a text at the first of some stop texts, wherever the pieces' borders lie."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self.hit = False  #: a stop text was found; nothing more is given out

    def feed(self, text: str) -> str:
        """The text that can't be the beginning of a stop text any more."""
        if not self._stops:
            return text
        if self.hit:
            return ""
        held = self._held + text
        found = [at for stop in self._stops if (at := held.find(stop)) >= 0]
        if found:
            self.hit, self._held = True, ""
            return held[:min(found)]
        keep = max(overlap(held, stop) for stop in self._stops)
        self._held = held[len(held) - keep:]
        return held[:len(held) - keep]

    def finish(self) -> str:
        """What was held back and turned out to be no stop text."""
        held, self._held = self._held, ""
        return held


class WholePairs:
    """Joins the halves of surrogate pairs that come in two pieces of a text, as some APIs send them."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-16-le")("replace")

    def feed(self, text: str) -> str:
        """What is whole with this piece; U+FFFD for a half that has no other one."""
        return self._decoder.decode(text.encode("utf-16-le", "surrogatepass"))

    def finish(self) -> str:
        """What was held back: U+FFFD for a half whose other one has not come."""
        return self._decoder.decode(b"", final=True)


def overlap(text: str, word: str) -> int:
    """Length of the longest end of `text` that is a true beginning of `word`."""
    for size in range(min(len(text), len(word) - 1), 0, -1):
        if text.endswith(word[:size]):
            return size
    return 0


def _types(decoder: Any) -> list[str]:
    if not isinstance(decoder, dict):
        return []
    return [str(decoder.get("type")), *(name for part in decoder.get("decoders", []) for name in _types(part))]


@lru_cache(1)
def _byte_alphabet() -> dict[int, str]:
    """GPT-2's printable stand-in for each byte."""
    shown = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {byte: chr(byte) for byte in shown}
    hidden = [byte for byte in range(256) if byte not in alphabet]
    return alphabet | {byte: chr(256 + i) for i, byte in enumerate(hidden)}
