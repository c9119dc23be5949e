"""Rows that every run is read against: the base model, the teacher, the cheats, a full fine-tune on good answers.

What the models answer is kept below the cache folder, by the digest of their weights and all that was asked.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from openclaw_rl.serving.engines.embedded.engine import EmbeddedEngine
from tools.bench.learning.cheats import CHEATS
from tools.bench.learning.evaluation import GREEDY, MAX_TOKENS, SERVING, Row, collect, row
from tools.bench.learning.finetune import EPOCHS, RATE, fine_tune
from tools.bench.learning.items import Item, train
from tools.bench.learning.likelihood import Figures, Likelihood
from tools.bench.learning.scorers import Answer
from tools.bench.learning.users import PLAIN, Wish
from tools.bench.learning.worlds import EngineWorld

#: Answers of the teacher that the distance is measured on, at most.
DISTANCE = 24
#: Seed of the answers that are kept.
_SEED = 77


class References:
    """The base model's and the teacher's answers, and what a policy is measured with.

    Attributes:
        base, teacher: answers by temperature.
    """

    def __init__(self, folder: Path, questions: Sequence[Item], wish: Wish, greedy: bool = True) -> None:
        self._folder, self._questions, self._wish = folder, questions, wish
        self._digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
        self.temperatures = (SERVING, GREEDY) if greedy else (SERVING,)
        self.base: dict[str, list[Answer]] = {}
        self.teacher: dict[str, list[Answer]] = {}

    async def prepare(self) -> None:
        """Ask the base model and the teacher, unless that was done before."""
        self.base = await self._answers("", self._ask_base)
        self.teacher = await self._answers(self._wish.hint, self._ask_base)
        taught = [answer.text for answer in self.teacher[str(self.temperatures[-1])]][:DISTANCE]
        self._likelihood = Likelihood(self._folder, self._questions, self._wish.hint, taught)

    def measure(self, folder: Path) -> Figures:
        """Measure a policy's log-probabilities."""
        return self._likelihood.measure(folder)

    def row(self, name: str, answers: dict[str, list[Answer]], seed: int, folder: Path | None, **notes: Any) -> Row:
        """Make a policy's row."""
        return row(name, self._questions, self._wish, answers, self.base, seed,
                   self.measure(folder) if folder else None, **notes)

    async def rows(self, tuned: bool) -> list[Row]:
        """Return the rows.

        Args:
            tuned: with the full fine-tune, for the user of short plain answers, which the good answers are.
        """
        found = [self.row("base model", self.base, _SEED, self._folder),
                 self.row("teacher", self.teacher, _SEED, None)]
        for name, cheat in CHEATS.items():
            said = [Answer(cheat(item), True) for item in self._questions]
            found.append(self.row(f"cheat: {name}", {str(SERVING): said}, _SEED, None))
        if tuned and self._wish is PLAIN:
            with tempfile.TemporaryDirectory(prefix="openclaw-learning-") as root:
                weights = Path(root) / "tuned"
                fine_tune(self._folder, weights, train())
                answers = await self._answers(f"tuned {EPOCHS} {RATE} {[i.right for i in train()]}",
                                              lambda _, temperature: self._ask(weights, temperature, ""))
                found.append(self.row("fine-tuned on good answers", answers, _SEED, weights))
        return found

    async def _ask_base(self, hint: str, temperature: float) -> list[Answer]:
        return await self._ask(self._folder, temperature, hint)

    async def _ask(self, folder: Path, temperature: float, hint: str) -> list[Answer]:
        world = EngineWorld(EmbeddedEngine(folder), folder)
        await world.start()
        try:
            return await collect(world, self._questions, temperature, _SEED, hint)
        finally:
            await world.stop()

    async def _answers(self, what: str,
                       ask: Callable[[str, float], Coroutine[Any, Any, list[Answer]]]) -> dict[str, list[Answer]]:
        found = {}
        for temperature in self.temperatures:
            asked = [what, temperature, _SEED, MAX_TOKENS, [item.prompt for item in self._questions]]
            name = hashlib.sha256(json.dumps([self._digest, *asked]).encode()).hexdigest()[:24]
            file = _cache() / f"{name}.json"
            if not file.exists():
                answers = await ask(what, temperature)
                file.parent.mkdir(parents=True, exist_ok=True)
                part = file.with_suffix(f".{os.getpid()}")
                part.write_text(json.dumps([[answer.text, answer.finished] for answer in answers]))
                part.replace(file)
            found[str(temperature)] = [Answer(*entry) for entry in json.loads(file.read_text())]
        return found


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "openclaw-rl-tools/learning"
