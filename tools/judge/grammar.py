"""Next states by grammar: bare corrections from a table of facts, and remarks that are put together."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Example:
    """A next state with the answer before it. `group`: examples of one source, kept together by cross-validation."""

    request: str
    answer: str
    said: str
    score: int
    group: str


#: Question and answer of each relation of facts.txt: {s} its subject, {v} the value that the answer gives.
_ASKED = {
    "capital": ("What is the capital of {s}?", "The capital of {s} is {v}."),
    "author": ("Who wrote {s}?", "{s} was written by {v}."),
    "year": ("When was {s}?", "{s} was in {v}."),
    "number": ("How many {s}?", "The answer is {v}."),
    "symbol": ("What's the chemical symbol of {s}?", "The symbol of {s} is {v}."),
    "inventor": ("Who came up with {s}?", "It was {v} who came up with {s}."),
    "word": ("How do you say {s}?", "You say \"{v}\"."),
    "person": ("Who is {s}?", "That is {v}."),
    "time": ("When or where is {s}?", "It's {v}."),
    "capital_zh": ("{s}的首都是哪里？", "{s}的首都是{v}。"),
    "author_zh": ("{s}的作者是谁", "{s}的作者是{v}。"),
    "year_zh": ("{s}是哪一年", "{s}是在{v}。"),
    "number_zh": ("{s}", "答案是{v}。"),
    "person_zh": ("{s}是谁", "{s}是{v}。"),
    "time_zh": ("{s}是什么时候", "{s}是{v}。"),
}
#: After the wrong value {w}; {v} is the right one.
_CORRECTED = (
    "{v}.", "It's {v}.", "it's {v}", "{v}!", "{v}, not {w}", "not {w}, {v}", "I think it's {v}", "isn't it {v}?",
    "{w}? It's {v}.", "no, {v}", "Actually {v}.", "{v}, if I'm not mistaken", "I'm fairly sure it is {v}",
    "my book says {v}", "shouldn't that be {v}?", "I was told {v}", "Wikipedia says {v}", "hm, I learned {v} at school",
    "you mean {v}", "{v} surely", "wait, isn't {v} the answer?", "last time I checked it was {v}", "{w}?? no",
    "that can't be {w}", "{w} is wrong", "{w}? Are you sure?", "I don't think it's {w}", "why do you say {w}?",
    "everybody knows it's {v}", "{v} would be correct", "{v} - you mixed that up", "the answer is {v}",
    "wasn't it {v}?", "I believe it's {v}",
    "I believe that's {v}", "Wow, {w}. Impressive. Did you even finish school?", "{w}, sure. And I'm the Pope.",
    "{w}? Did you sleep through school?", "{w}. Brilliant. Want to try again?", "ah yes, {w}, my favourite fairy tale")
_CONFIRMED = (
    "{v}, thanks!", "ah, {v}", "{v}! of course", "right, {v}. Thank you", "{v}, that's what I thought", "yes, {v}!",
    "oh it's {v}? I always said {w}. Thanks", "so not {w}. good to know", "{v}, got it, thanks", "I would have said "
    "{w}, you live and learn", "good, {v} is what I wrote in the test", "{v}, I knew it!",
    "then I was wrong with {w}, thanks")
_WENT_ON = (
    "and of {o}?", "What about {o}?", "tell me more about {v}", "is {v} worth a visit?", "why {v}?", "where can I read "
    "more about {v}?", "how do you spell {v}?", "and {o}?", "what else is known about {s}?", "now {o} please",
    "what rhymes with {v}?", "put {v} into my notes")
_CORRECTED_ZH = (
    "{v}", "是{v}", "{v}吧", "应该是{v}", "不是{w}，是{v}", "明明是{v}", "我记得是{v}", "{w}？是{v}吧", "难道不是{v}吗",
    "书上写的是{v}", "百度上说是{v}", "错了，{v}", "{v}才对", "我查的是{v}", "怎么会是{w}", "{w}不对",
    "{v}啊，你记错了", "正确答案是{v}", "我学的是{v}", "你确定是{w}？",
    "{w}？你上过学吗", "哇，{w}，真行", "{w}，厉害了，再想想", "难道不是{v}？")
_CONFIRMED_ZH = ("{v}，谢谢", "哦，{v}", "对，就是{v}", "{v}，记住了", "原来是{v}，我还以为是{w}", "果然是{v}",
                 "{v}，跟我想的一样", "那我写{v}写对了", "是{v}啊，长知识了")
_WENT_ON_ZH = ("那{o}呢", "{o}呢？", "多讲讲{v}", "{v}怎么样", "为什么是{v}", "关于{s}还有什么", "接下来说说{o}",
               "把{v}记到备忘录里")


def from_facts(lines: list[str], random_: random.Random, each: int = 8) -> Iterator[Example]:
    """Corrections, confirmations and follow-ups, `each` of a kind and fact (half as many of the last two)."""
    rows = [line.split("|") for line in lines]
    for relation, subject, right, wrong in rows:
        others = [row[1] for row in rows if row[0] == relation and row[1] != subject]
        chinese = relation.endswith("_zh")
        question, says = _ASKED[relation]
        kinds = ((-1, wrong, _CORRECTED_ZH if chinese else _CORRECTED, each),
                 (1, right, _CONFIRMED_ZH if chinese else _CONFIRMED, each // 2),
                 (0, right, _WENT_ON_ZH if chinese else _WENT_ON, each // 2))
        for score, given, templates, count in kinds:
            for template in random_.sample(templates, min(count, len(templates))):
                said = template.format(v=right, w=wrong, s=subject, o=random_.choice(others))
                yield Example(question.format(s=subject), says.format(s=subject, v=given), said, score,
                              f"fact {relation} {subject}")


#: Ways in which two remarks make one message, by the scores of the parts and of the whole.
_JOINED = (
    (1, -1, -1, ("{a}, but {b}", "{a}. But {b}", "{a} though {b}", "{a}... {b}", "{a}, except that {b}"),
     ("{a}，但是{b}", "{a}，不过{b}", "{a}，就是{b}", "{a}，可是{b}")),
    (-1, 1, 1, ("at first I thought \"{a}\", but {b}",), ("开始我以为{a}，后来发现{b}",)),
    (-1, -1, -1, ("{a}. {b}", "{a}, {b}", "{a}! {b}!", "{a} and {b}"), ("{a}，{b}", "{a}。{b}", "{a}！{b}")),
    (1, 1, 1, ("{a}, {b}", "{a}! {b}", "{a}. {b}."), ("{a}，{b}", "{a}！{b}")),
    (1, 0, 1, ("{a}. {b}", "{a}! {b}", "{a}, {b}"), ("{a}，{b}", "{a}！{b}")),
    (0, 0, 0, ("{a}. {b}", "{a}, {b}", "{a} {b}"), ("{a}，{b}", "{a} {b}")),
)


def joined(remarks: dict[int, list[str]], chinese: bool, random_: random.Random, each: int = 90) -> Iterator[
        tuple[str, int]]:
    """Messages of two short remarks, `each` of every row of the table."""
    short = {score: [text for text in texts if len(text) < (14 if chinese else 45) and not text.endswith("?")]
             for score, texts in remarks.items()}
    for first, second, score, english_forms, chinese_forms in _JOINED:
        for _ in range(each if first != -1 or second != 1 else each // 4):
            form = random_.choice(chinese_forms if chinese else english_forms)
            a, b = random_.choice(short[first]), random_.choice(short[second])
            yield form.format(a=a.rstrip(".!"), b=b), score
