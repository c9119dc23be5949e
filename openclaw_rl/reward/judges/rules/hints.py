"""Hints from the user's own words."""

from __future__ import annotations

import re
from collections.abc import Sequence

from openclaw_rl.reward.judges.rules.signals import Signal
from openclaw_rl.reward.judges.text import has_cjk

#: Longest hint in characters: it goes beside the prompt of a small model.
LIMIT = 300
_INSULT = re.compile(
    r"\b(?:you )?(?:(?:fucking|fuckin|damn|damned|goddamn|bloody|freaking|stupid|dumb|useless|idiotic|silly"
    r"|lazy)\b ?)+(?:bot|ai|machine|model|thing|idiot)?"
    r"|\b(?:you )?(?:idiot|moron|dumbass|bastard|bitch|asshole|shithead|imbecile)s?\b|\b(?:shit|crap)\b"
    r"|你(?:这个|个)?(?:笨蛋|蠢货|傻瓜|白痴|废物|垃圾|智障|傻[逼子缺])|(?:笨蛋|蠢货|傻[逼缺]|白痴|智障|他妈的?|妈的"
    r"|tmd|卧槽|我靠)", re.IGNORECASE)
_COURTESY = re.compile(
    r"^(?:(?:please|pls|hey|hi|hello|dear|ok|okay|well|no|nope|sorry|thanks|thank you|bot|chatgpt|assistant|ai|dude"
    r"|bro)\b[ ,!.]*)+"
    r"|(?<![ ,])[ ,]*\b(?:please|pls|plz|thanks|thank you|dude|bro|man)[ .!]*$"
    r"|^(?:(?:请你?|麻烦你?|拜托|不对|不是|你好|喂)[,， !！。]*)+"
    r"|(?<![,， ])[,， ]*(?:谢谢你?|拜托了?)[。!！ ]*$", re.IGNORECASE)


def compose(signals: Sequence[Signal]) -> str:
    """Join the phrases of the signals, in order, to one or more sentences.

    "in one sentence", "without markdown" join the instruction before them; a phrase derived from a complaint ("too
    long") is left out beside a real instruction.
    """
    phrases = [signal for signal in signals if signal.phrase.strip()]
    if any(not signal.fallback for signal in phrases):
        phrases = [signal for signal in phrases if not signal.fallback]
    sentences: list[str] = []
    seen: set[str] = set()
    for signal in phrases:
        phrase = clean(signal.phrase)
        if not phrase or phrase.lower() in seen:
            continue
        seen.add(phrase.lower())
        cjk = has_cjk(phrase)
        if sentences and (signal.manner or (cjk and has_cjk(sentences[-1]))):
            joined = sentences[-1] + ("，" if cjk else ", ") + (phrase if cjk else _lower(phrase))
            if len(joined) <= LIMIT:
                sentences[-1] = joined
                continue
        sentences.append(f"Answer {_lower(phrase)}" if signal.manner and not cjk else phrase)
    return _bounded([_sentence(text) for text in sentences])


def from_comment(comment: str) -> str:
    """A whole comment as a hint, for a bad score whose comment no rule understands."""
    phrase = clean(" ".join(comment.split()))
    return _bounded([_sentence(phrase)]) if len(phrase) > 2 else ""


def clean(text: str) -> str:
    """Remove insults, greetings, names and courtesies."""
    text = _INSULT.sub("", text)
    text = re.sub(r"\s+", " ", text).strip(" ,.;:!，。；：！、-")
    return _COURTESY.sub("", text).strip(" ,.;:!，。；：！、-")


def _lower(text: str) -> str:
    """Lower the first letter, unless the word is in capitals ("JSON", "I")."""
    return text if len(text) < 2 or not text[1].islower() else text[0].lower() + text[1:]


def _sentence(text: str) -> str:
    stop = "。" if has_cjk(text[-1:]) or (has_cjk(text) and not text.endswith((".", "。", "!", "?"))) else "."
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "。", "!", "?", "！", "？")) else stop)


def _bounded(sentences: Sequence[str]) -> str:
    hint = ""
    for sentence in sentences:
        joined = f"{hint}{'' if not hint or has_cjk(sentence[:1]) else ' '}{sentence}"
        if len(joined) > LIMIT:
            return hint or f"{sentence[:LIMIT - 1].rstrip()}…"
        hint = joined
    return hint
