"""Incremental detokenization: whole characters only, never past a stop text.

`tokenizers.decoders.DecodeStream` is not used: it takes 0.75 µs a token against 0.40 µs here (SmolLM2, one core), and
has no way to flush an incomplete character at the end of a response.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any


class TokenBytes:
    """The bytes of each token of a vocabulary, and its special tokens.

    Reads the tokenizer's description, for two families: byte-level BPE (GPT-2, Llama 3,
    SmolLM2) and SentencePiece-like BPE with byte fallback (Llama 2).

    Attributes:
        table: bytes by token id; for special tokens, of their name.
        special: ids of tokens that are not text, such as the end of the turn.
        strips_space: the first token of a text loses its leading space (SentencePiece).
    """

    def __init__(self, tokenizer_json: str) -> None:
        """
        Args:
            tokenizer_json: content of tokenizer.json.

        Raises:
            ValueError: the tokenizer is of neither family.
        """
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
    """Decodes a response token by token; a character is returned with its last byte."""

    def __init__(self, tokens: TokenBytes, at_start: bool = False) -> None:
        """Args: at_start: no prompt precedes the response in the same text."""
        self._tokens = tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._strip = at_start and tokens.strips_space

    def feed(self, token: int) -> str:
        """Return the text that is complete with this token; empty for special tokens and within a character."""
        if token in self._tokens.special:
            return ""
        data = self._tokens.table[token] if token < len(self._tokens.table) else b""
        if self._strip and data:
            self._strip = False
            data = data.removeprefix(b" ")
        return self._decoder.decode(data)

    def finish(self) -> str:
        """Return the rest: U+FFFD when the response ends within a character."""
        return self._decoder.decode(b"", final=True)


class StopTexts:
    """Cuts a text at the first stop text, which may span several pieces."""

    def __init__(self, stops: Sequence[str], include: bool = False) -> None:
        """Args: include: the stop text stays."""
        self._stops, self._include = [stop for stop in stops if stop], include
        self._held = ""
        self.found = ""  #: the stop text
        self.hit = False  #: a stop text was found; nothing more is returned

    def feed(self, text: str) -> str:
        """Return the text that can no longer be part of a stop text."""
        if not self._stops:
            return text
        if self.hit:
            return ""
        held = self._held + text
        found = [(at, stop) for stop in self._stops if (at := held.find(stop)) >= 0]
        if found:
            self.hit, self._held = True, ""
            at, self.found = min(found)
            return held[:at + len(self.found) * self._include]
        keep = max(overlap(held, stop) for stop in self._stops)
        self._held = held[len(held) - keep:]
        return held[:len(held) - keep]

    def finish(self) -> str:
        """Return the text held back, which turned out not to be a stop text."""
        held, self._held = self._held, ""
        return held


class WholePairs:
    """Joins surrogate pairs that are split between pieces of a text, as some APIs send them."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-16-le")("replace")

    def feed(self, text: str) -> str:
        """Return the text that is complete with this piece; U+FFFD for an unpaired half."""
        return self._decoder.decode(text.encode("utf-16-le", "surrogatepass"))

    def finish(self) -> str:
        """Return the rest: U+FFFD for a half whose pair did not come."""
        return self._decoder.decode(b"", final=True)


def overlap(text: str, word: str) -> int:
    """Length of the longest suffix of `text` that is a proper prefix of `word`."""
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
