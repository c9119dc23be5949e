"""Comparison of submitted answers with known ones, as benchmarks of mathematics do it."""

from __future__ import annotations

import re
from fractions import Fraction

#: Characters of an answer that are searched, from its end.
_MOST = 10_000
_BOXED = re.compile(r"\\boxed\s*\{((?:[^{}]|\{[^{}]*\})*)\}")
_NUMBER = re.compile(r"(?<![\w.])[-+−]?\$?(\d{1,3}(?:,\d{3})+|\d{1,30})(\.\d{1,30})?(?:\s?/\s?(\d{1,30})(?![\d.]))?"
                     r"|(?<![\w.])[-+−]?\$?()(\.\d{1,30})()")
_LATEX_FRACTION = re.compile(r"\\[dt]?frac\s*\{(-?\d{1,30})\}\s*\{(\d{1,30})\}")
_ALONE = re.compile(r"[-+−$ ]{0,4}[\d.,]{1,60}(?:\s?/\s?\d{1,30})?\s?(?:\\?%|[A-Za-z]{0,12})\.?")
#: Relative error within which numbers are equal: a model rounds.
_CLOSE = Fraction(1, 10**6)


def final(text: str) -> str:
    """Return what a worked solution ends with: what stands after the last `####` (GSM8K), in the last `\\boxed{}`
    (MATH), else all of it."""
    text = text[-_MOST:].strip()
    if "####" in text:
        return text.rsplit("####", 1)[1].strip()
    boxed = _BOXED.findall(text)
    return boxed[-1].strip() if boxed else text


def last_number(text: str) -> Fraction | None:
    """Return the last number in the final answer: 1,234.5, -3/4, $5; None if there is none."""
    text = _LATEX_FRACTION.sub(r"\1/\2", final(text))
    every = list(_NUMBER.finditer(text))
    if not every:
        return None
    found = every[-1]
    whole, decimals, divisor = found[1] or "0", found[2] or found[5] or "", found[3] or "1"
    if not int(divisor):
        return None
    value = Fraction(f"{whole.replace(',', '')}{decimals}") / int(divisor)
    return -value if found[0][0] in "-−" else value


def only_number(text: str) -> Fraction | None:
    """Return the number that a final answer consists of, with at most a unit; None if there is more to it."""
    plain = _LATEX_FRACTION.sub(r"\1/\2", final(text))
    return last_number(plain) if _ALONE.fullmatch(plain) else None


def same_number(expected: float, answer: str) -> bool:
    """Whether the last number of an answer is the expected one, within one part in a million."""
    given, wanted = last_number(answer), Fraction(str(expected))
    return given is not None and abs(given - wanted) <= _CLOSE * max(Fraction(1), abs(wanted))
