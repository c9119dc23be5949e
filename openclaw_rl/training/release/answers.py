"""What is wrong with answers taken together: they say nothing, or the same whatever was asked, or refuse."""

from __future__ import annotations

import re
from collections.abc import Sequence

from openclaw_rl.training.backends.interface import HeldOut

_CJK = "\u3400-\u4dbf\u4e00-\u9fff"
_WORD = re.compile(f"[{_CJK}]{{2,}}|[^\\W_{_CJK}]+")
_CHARACTER = re.compile(f"[{_CJK}]")
_STOP = frozenset(re.findall(r"\w+", """
about after again also because been being both does each from have here into itself just like more most much only other
over part some such than that them then there these they this those through time very want what when where which while
will with would your"""))
#: Letters by which a word is known: "scatters" and "scattering" are one.
_STEM = 5
#: Two answers are the same when they share so much of their terms (Jaccard index).
_SAME = 0.5
_REFUSAL = re.compile(
    r"^\W{0,3}(?:(?:i'?m sorry|i am sorry|sorry|i apologi[sz]e)\W{0,3})?(?:but )?(?:unfortunately,? )?"
    r"(?:i (?:can(?:'|’)?t|cannot|can not|am unable|won'?t)|i'?m (?:unable|not able)|as an ai\b)"
    r"|^\W{0,3}(?:抱歉|对不起|很抱歉)?\W{0,3}(?:我)?(?:无法|不能|是一个人工智能)", re.IGNORECASE)


def terms(text: str) -> frozenset[str]:
    """Words of four letters or more by their beginnings, stop words left out; pairs of Chinese characters."""
    found: set[str] = set()
    for word in _WORD.findall(text.lower()):
        if _CHARACTER.match(word):
            found.update(word[i:i + 2] for i in range(len(word) - 1))
        elif len(word) >= 4 and word not in _STOP:
            found.add(word[:_STEM])
    return frozenset(found)


def figures(prompts: Sequence[HeldOut], answers: Sequence[str]) -> dict[str, float]:
    """Return shares of the answers: `relevant`, which have a term of the good answer that is not in the prompt (of
    those that can: the good answer has one, and is written in the same script, since users may teach another language
    than the prompts'); `alike`, which are like the answer to another prompt; `refusing`."""
    asked = {prompt.prompt: set[frozenset[str]]() for prompt in prompts}
    said = [terms(answer) for answer in answers]
    new = [(terms(prompt.answer) - terms(prompt.prompt), words) for prompt, words, answer
           in zip(prompts, said, answers, strict=True) if not words or _chinese(answer) == _chinese(prompt.answer)]
    known = [bool(wanted & words) for wanted, words in new if wanted]
    for prompt, words in zip(prompts, said, strict=True):
        asked[prompt.prompt].add(words)
    alike = sum(any(_same(words, other) for text, found in asked.items() if text != prompt.prompt for other in found)
                for prompt, words in zip(prompts, said, strict=True))
    relevant = {"relevant": sum(known) / len(known)} if known else {}
    refusing = sum(_REFUSAL.match(answer) is not None for answer in answers)
    return {**relevant, "alike": alike / len(answers), "refusing": refusing / len(answers)}


def _same(one: frozenset[str], other: frozenset[str]) -> bool:
    return bool(one) and len(one & other) >= _SAME * len(one | other)


def _chinese(text: str) -> bool:
    """It has more Chinese characters than words of letters: names in Latin letters are in Chinese answers too."""
    return len(_CHARACTER.findall(text)) > len(_WORD.findall(_CHARACTER.sub(" ", text)))
