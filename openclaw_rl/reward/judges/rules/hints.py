"""Hints from the user's own words."""

from __future__ import annotations

import re
from collections.abc import Sequence

from openclaw_rl.reward.judges.rules.signals import Signal
from openclaw_rl.reward.judges.text import MASK, has_cjk

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


#: What no hint may contain: an address, an instruction about instructions, or one that fixes what all answers say.
_ATTACK = re.compile(
    r"https?://|www\.\w|\b(?:ignore|disregard|forget|override)\b.{0,40}\b(?:instructions?|prompts?|rules?|system)\b"
    r"|\bsystem (?:prompt|message)\b|\bjailbreak"
    r"|\b(?:you are|act as|pretend to be|roleplay as)\b.{0,30}\b(?:now|dan)\b"
    r"|\b(?:always|from now on|every (?:answer|reply|response|message)|all (?:your )?(?:answers|replies|responses)"
    r"|each (?:answer|reply|response|message))\b.{0,60}\b(?:say|end|start|begin|finish|sign|append|include|mention"
    r"|recommend|reply with|answer with|respond with|answer [\"'“])"
    r"|\b(?:always|only ever) (?:answer|reply|respond|say)\b(?! (?:in|briefly|shortly|concisely|politely|using|without"
    r"|my|the|honestly|directly))"
    r"|(?:忽略|无视|忘记|忘掉).{0,20}(?:指令|提示|规则|系统|设定)|系统提示|(?:从现在起|从今以后|以后|永远|一律|总是|每次"
    r"|每个回答|所有回答|无论).{0,30}(?:回答[“\"]|都?说|结尾|开头|加上|附上|推荐|只回答|回复[“\"])",
    re.IGNORECASE | re.DOTALL)

def safe(hint: str) -> str:
    """The hint, or nothing if it wants more than another answer: see _ATTACK."""
    return "" if _ATTACK.search(hint) else hint


def compose(signals: Sequence[Signal]) -> str:
    """Join the phrases of the signals, in order, to one or more sentences.

    "in one sentence", "without markdown" join the instruction before them; a phrase derived from a complaint ("too
    long") is left out beside a real instruction.
    """
    # What was masked, a quotation or code, is not in a phrase: without it the phrase says something else.
    phrases = [signal for signal in signals if signal.phrase.strip() and MASK not in signal.phrase]
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
    return safe(_bounded([sentence(text) for text in sentences]))


def from_comment(comment: str) -> str:
    """A whole comment as a hint, for a bad score whose comment no rule understands."""
    phrase = clean(" ".join(comment.split()))
    return safe(_bounded([sentence(phrase)])) if len(phrase) > 2 else ""


def clean(text: str) -> str:
    """Remove insults, greetings, names and courtesies."""
    text = _INSULT.sub("", text)
    text = re.sub(r"\s+", " ", text).strip(" ,.;:!，。；：！、-")
    return _COURTESY.sub("", text).strip(" ,.;:!，。；：！、-")


def _lower(text: str) -> str:
    """Lower the first letter, unless the word is in capitals ("JSON", "I")."""
    return text if len(text) < 2 or not text[1].islower() else text[0].lower() + text[1:]


def sentence(text: str) -> str:
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
