"""Translations of generated pages: YAML files keyed by the subject of a text.

Each entry has the digest of the English text that it translates, so that a change of that is noticed:

    components.trainer.min_samples:
      of: 3f2a91bc
      text: ...
"""

from __future__ import annotations

import hashlib

import yaml

from openclaw_rl.docs import FOLDER, Language


def digest(english: str) -> str:
    """Eight hexadecimal digits of an English text, however it is wrapped."""
    return hashlib.sha256(" ".join(english.split()).encode()).hexdigest()[:8]


class Translations:
    """Of one generated page into one language; English needs none.

    Attributes:
        problems: texts that were asked for and are missing, or translate another English text than there is now.
    """

    def __init__(self, page: str, language: Language) -> None:
        self._file = FOLDER / language / f"{page}.yaml"
        self._texts: dict[str, dict[str, str]] = {}
        self._english = language == "en"
        if not self._english:
            self._texts = yaml.safe_load(self._file.read_text(encoding="utf-8")) or {}
        self._used: set[str] = set()
        self.problems: list[str] = []

    def text(self, key: str, english: str) -> str:
        """The text in this language; the English one where there is no translation."""
        english = " ".join(english.split())
        if self._english or not english:
            return english
        entry = self._texts.get(key)
        self._used.add(key)
        if entry is None:
            self.problems.append(f"{self._file.name}: {key} is missing (of: {digest(english)}): {english}")
            return english
        if str(entry.get("of")) != digest(english):
            self.problems.append(f"{self._file.name}: {key} translates another text than there is now "
                                 f"(of: {digest(english)}): {english}")
        return str(entry["text"])

    def unused(self) -> list[str]:
        """Return keys that were never requested."""
        return sorted(self._texts.keys() - self._used)
