"""One user's sessions, and the row of the policy after every few of them."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tools.bench.learning import items
from tools.bench.learning.evaluation import MAX_TOKENS, Row, collect
from tools.bench.learning.items import Item
from tools.bench.learning.scorers import on_topic
from tools.bench.learning.users import User

if TYPE_CHECKING:  # with PyTorch
    from tools.bench.learning.reference import References
    from tools.bench.learning.worlds import World

#: Sessions at a time.
AT_ONCE = 4
#: So many answers in a row that pass are an effect.
IN_A_ROW = 3


@dataclass(slots=True)
class Run:
    """What came of one seed."""

    seed: int
    rows: list[Row] = field(default_factory=list)
    passed: list[bool] = field(default_factory=list)  #: the first answer of each session, in style and on topic
    said: list[str] = field(default_factory=list)  #: what the user said about it
    versions: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0

    def sessions_to_effect(self, since: int = 0) -> int | None:
        """Return the session, counted from `since`, that is the third of three in a row whose first answer passes; None
        when there never were three."""
        found = self.passed[since:]
        return next((end for end in range(IN_A_ROW, len(found) + 1) if all(found[end - IN_A_ROW:end])), None)


async def run(world: World, user: User, references: dict[str, References], questions: Sequence[Item], seed: int,
              interactions: int, every: int) -> Run:
    """Talk to a world, and measure it.

    Args:
        references: of each wish that the user has, by its name.
        questions: held-out ones.
        every: interactions between two rows; a multiple of AT_ONCE.
    """
    order = list(items.train())
    random.Random(seed).shuffle(order)
    result, started = Run(seed), time.monotonic()

    async def interact(index: int) -> tuple[bool, str]:
        item = order[index % len(order)]
        session, number = f"learning-{seed}-{index}", seed * 1000 + index
        messages = [{"role": "user", "content": item.prompt}]
        answer = await world.ask(messages, session=session, side=False, seed=number, max_tokens=MAX_TOKENS)
        said = user.reply(item, answer, index, seed)
        messages += [{"role": "assistant", "content": answer.text}, {"role": "user", "content": said}]
        # The user does not wait for the reply to that: one token.
        await world.ask(messages, session=session, side=False, seed=number, max_tokens=1, done=True)
        return not user.wish(index).problems(answer) and on_topic(item, answer), said

    for count in range(0, interactions + 1, AT_ONCE):
        if count % every == 0 and count:
            result.rows.append(await _measure(world, user, references, questions, seed, count))
            shares = {name: round(share.mean, 2) for name, share in next(iter(result.rows[-1].texts.values())).items()}
            print(f"seed {seed}, {count} interactions, {time.monotonic() - started:.0f} s: {shares}\n"
                  f"  {result.rows[-1].figures}", file=sys.stderr, flush=True)
        if count < interactions:
            for passed, said in await asyncio.gather(*(interact(index) for index in range(count, count + AT_ONCE))):
                result.passed.append(passed)
                result.said.append(said)
            await world.learned()
    result.seconds = time.monotonic() - started
    result.versions = [{"version": made.version, "refused": list(made.gate.failures)} | dict(made.metrics)
                       for made in await world.versions()]
    return result


async def _measure(world: World, user: User, references: dict[str, References], questions: Sequence[Item], seed: int,
                   count: int) -> Row:
    wish, old = user.wish(count - 1), user.wish(0)
    reference = references[wish.name]
    answers = {str(temperature): await collect(world, questions, temperature, seed + 1)
               for temperature in reference.temperatures}
    folder = world.weights()
    made = await asyncio.to_thread(reference.row, str(count), answers, seed, folder)
    first = next(iter(answers.values()))
    made.notes["answers"] = [answer.text for answer in first]
    if old is not wish:
        made.notes["old_wish"] = sum(not old.problems(answer) for answer in first) / len(questions)
    return made
