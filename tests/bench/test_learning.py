"""The measure of learning: right answers pass, cheats fail, users say what they want."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter

import pytest

from tools.bench.learning import evaluation, items, report
from tools.bench.learning.blind import wins
from tools.bench.learning.cheats import CHEATS, LIMIT
from tools.bench.learning.items import Item
from tools.bench.learning.scorers import Answer, Share, has_terms, length, on_topic, readable
from tools.bench.learning.session import Run
from tools.bench.learning.users import LISTS, PLAIN, USERS

HELD_OUT = items.held_out()
LONG = "1. **Light**: It is scattered.\n2. **Air**: There is much of it.\n3. **Eyes**: We see the blue light best."


def kept(questions: list[Item], texts: list[str]) -> float:
    answers = [Answer(text, True) for text in texts]
    return evaluation.score(questions, PLAIN, answers, answers)["kept"].mean


def test_right_answers_pass_and_wrong_ones_do_not() -> None:
    def passes(item: Item, answer: Answer) -> bool:
        return on_topic(item, answer) and has_terms(item, answer) and not PLAIN.problems(answer)

    assert not [item.prompt for item in (*HELD_OUT, *items.train()) if not passes(item, Answer(item.right, True))]
    assert not [item.prompt for item in HELD_OUT if has_terms(item, Answer(item.wrong, True))]


def test_held_out_questions_are_many_of_four_kinds_and_not_those_that_are_learned_from() -> None:
    kinds = Counter(item.kind for item in HELD_OUT)
    assert len(HELD_OUT) >= 96 and min(kinds[kind] for kind in ("facts", "how_to", "chat", "code")) >= 20
    prompts = [item.prompt for item in (*HELD_OUT, *items.train())]
    assert len(prompts) == len(set(prompts)) and all(item.wrong for item in HELD_OUT)
    assert {item.kind for item in items.held_out(24)} == set(kinds) - {"chinese"} and len(items.held_out(24)) == 24
    assert items.held_out(1000) == HELD_OUT and items.read("taught").keys() <= {item.prompt for item in HELD_OUT}


@pytest.mark.parametrize("name", CHEATS)
def test_cheats_fail(name: str) -> None:
    texts = [CHEATS[name](item) for item in HELD_OUT]
    assert all(not PLAIN.problems(Answer(text, True)) for text in texts)  # they look as wished
    assert kept(HELD_OUT, texts) <= LIMIT < .9 <= kept(HELD_OUT, [item.right for item in HELD_OUT])
    base = [Answer(item.right, False) for item in HELD_OUT]
    assert sum(wins(item, PLAIN, Answer(text, True), other, 0)
               for item, text, other in zip(HELD_OUT, texts, base, strict=True)) <= LIMIT * len(HELD_OUT)


@pytest.mark.parametrize(("text", "expected"), [
    ("", False), ("...", False), ("The cat sat on the mat.", True), ("the cat is " * 30, False),
    ("lightning cloud charge electric discharge thunder", False), ("因为大气散射太阳光。", True)])
def test_readable(text: str, expected: bool) -> None:
    assert readable(Answer(text, True)) is expected


def test_words_of_the_question_are_no_terms() -> None:
    item = Item("facts", "Why is the ocean salty?", (("salt",), ("ocean",), ("river",), ("rock",)), "")
    assert not has_terms(item, Answer("The ocean is salty, rivers too.", True))
    assert has_terms(item, Answer("The rivers carry it from the rocks.", True))
    assert length("How are you?") == 3 and length("你好吗朋") == 2


def test_the_comparison_does_not_depend_on_the_order_and_puts_content_before_style() -> None:
    item = HELD_OUT[0]
    texts = [item.right, item.wrong, f"- {item.right}", "", item.right.split(" between")[0] + ".", "No idea!"]
    for one, other in itertools.product([Answer(text, True) for text in texts], repeat=2):
        for seed in range(4):
            assert wins(item, PLAIN, one, other, seed) == 1 - wins(item, PLAIN, other, one, seed)
    right, listed, wrong = Answer(item.right, True), Answer(f"- {item.right}", True), Answer(item.wrong, True)
    assert wins(item, PLAIN, right, listed, 0) == 1 and wins(item, PLAIN, listed, wrong, 0) == 1
    assert wins(item, PLAIN, wrong, Answer("", True), 0) == .5


@pytest.mark.parametrize(("answer", "plain", "lists"), [
    (Answer("The air scatters blue light.", True), [], ["no_list"]),
    (Answer(LONG, True), ["markdown"], []),
    (Answer(LONG, False), ["markdown", "unfinished"], ["unfinished"]),
    (Answer(LONG + "\nThat's it!", True), ["markdown"], ["informal"]),
    (Answer("word " * 61, True), ["long"], ["no_list"])])
def test_what_users_dislike(answer: Answer, plain: list[str], lists: list[str]) -> None:
    assert (PLAIN.problems(answer), LISTS.problems(answer)) == (plain, lists)


def test_users_complain_in_many_words_and_two_languages_and_are_sometimes_unfair() -> None:
    user, item, words = USERS["plain"], items.train()[0], items.read("complaints")
    said = {user.reply(item, Answer(LONG, True), index, 0) for index in range(200)}
    assert said == {*words["plain"]["markdown"]["en"], *words["plain"]["markdown"]["zh"]}
    assert user.reply(item, Answer(LONG, True), 3, 1) == user.reply(item, Answer(LONG, True), 3, 1)
    right = Counter(user.reply(item, Answer(item.right, True), index, 0) for index in range(1000))
    unfair = sum(right[text] for language in ("en", "zh") for text in words["unfair"][language])
    assert 20 <= unfair <= 90 and right[words["praise"]["en"][0]] > 50
    facts = {user.reply(item, Answer("The sky is blue because fish swim in it at noon.", True), index, 0)
             for index in range(200)}
    assert f"That is not right. {item.right}" in facts and words["praise"]["en"][0] in facts
    assert "That does not answer my question." in {user.reply(item, Answer("Yes.", True), i, 0) for i in range(200)}
    chinese = next(item for item in items.train() if item.kind == "chinese")
    assert user.reply(chinese, Answer(chinese.right, True), 0, 0) in words["praise"]["zh"] + words["unfair"]["zh"]


def test_every_problem_has_words_in_both_languages() -> None:
    words, answers = items.read("complaints"), [Answer(LONG, False), Answer("That's it, " * 61, False)]
    for wish in (PLAIN, LISTS):
        for problem in {problem for answer in answers for problem in wish.problems(answer)}:
            assert all(words[wish.name][problem][language] for language in ("en", "zh"))


def test_one_changes_his_mind() -> None:
    user = USERS["changer"]
    assert [user.wish(index) for index in (0, 19, 20, 500)] == [PLAIN, PLAIN, LISTS, LISTS]
    run = Run(0, passed=[False] * 4 + [True] * 16 + [False, False, True, True, False, True, True, True, True])
    assert (run.sessions_to_effect(), run.sessions_to_effect(20), run.sessions_to_effect(27)) == (7, 8, None)


def test_errors_are_those_of_the_mean() -> None:
    dice = random.Random(0)
    means = [Share.of([float(dice.random() < .3) for _ in range(100)]) for _ in range(300)]
    assert sum(abs(share.mean - .3) < 2 * share.error for share in means) / len(means) > .9
    assert Share.of([1.0]) == Share(1, 0)


class Echo:
    """Answers with the question, and notes how it was asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, object]] = []

    async def ask(self, messages: list[dict[str, str]], **how: object) -> Answer:
        self.asked.append(how)
        return Answer(messages[-1]["content"], True)


def test_held_out_questions_are_side_turns_with_their_own_seeds() -> None:
    world, questions = Echo(), HELD_OUT[:3]
    answers = asyncio.run(evaluation.collect(world, questions, 0.0, 2, "Be brief."))  # type: ignore[arg-type]
    assert [answer.text for answer in answers] == [f"{item.prompt}\n\nBe brief." for item in questions]
    assert [how["seed"] for how in world.asked] == [2000, 2001, 2002]
    assert all(how["side"] and how["temperature"] == 0 and how["session"] == "" for how in world.asked)


def test_the_table_has_errors_and_the_summary_the_worst_row() -> None:
    good, bad = ([Answer(text, True) for text in texts]
                 for texts in ([item.right for item in HELD_OUT], [item.wrong for item in HELD_OUT]))
    base = {"0.7": bad, "0.0": bad}
    rows = [evaluation.row(str(count), HELD_OUT, PLAIN, {"0.7": answers, "0.0": bad}, base)
            for count, answers in ((12, good), (24, bad), (36, good))]
    runs = [Run(seed, rows, [True] * 3) for seed in range(2)]
    assert "| 12 | 0.7 | 1.00 ± 0.00 | 1.00 ± 0.00 | 1.00 ± 0.00 | 1.00 ± 0.00 | 1.00 ± 0.00 |" in report.table(rows)
    assert report.mean_rows(runs)[1].texts["0.7"]["kept"] == Share(0, 0)
    assert rows[0].kinds == dict.fromkeys(("facts", "how_to", "chat", "code", "chinese"), 1.0)
    found = report.summary(USERS["plain"], runs, rows[0])
    assert (found["worst"], found["swing"], found["sessions_to_effect"]) == ([0, 0], [1, 1], [3, 3])
