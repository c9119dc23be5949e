"""What is broken when: a list that depends on the seed and the options alone."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from openclaw_rl.runtime.home import COMPONENTS

#: Faults that --faults may name.
KINDS = ("kill", "stop", "disk", "damage", "cut", "clock")

#: What is damaged, and in which component; `books.DAMAGE` says how.
DAMAGES = (("policy_server", "policy.json"), ("policy_server", "weights"), ("policy_server", "store"),
           ("policy_server", "wal"), ("env_server", "wal"), ("prm_judge", "wal"), ("prm_judge", "store"),
           ("trainer", "wal"), ("trainer", "weights"), ("trainer", "checkpoint"), ("policy_server", "journal"))
#: Kills of these forms, with their weights. The number that each of them kills is in `_kill`.
_KILLS = {"one": 60, "several": 8, "start": 8, "step": 8, "transfer": 8}
_CUTS = ("cut", "cut_every", "slow", "refuse")


@dataclass(frozen=True)
class Action:
    """One fault. `gap`: seconds after the one before has been done."""

    number: int
    gap: float
    kind: str
    names: tuple[str, ...]
    how: dict[str, Any] = field(default_factory=dict)

    @property
    def kills(self) -> int:
        """Processes that it kills on purpose (damage needs a killed process too, and doesn't count)."""
        return int(self.how.get("kills", 0))

    def __str__(self) -> str:
        how = " ".join(f"{key}={value}" for key, value in self.how.items() if key != "kills")
        return f"{self.kind} {'+'.join(self.names)}{' ' + how if how else ''}"


def make_plan(seed: int, kills: int, faults: Sequence[str] = KINDS, gap: tuple[float, float] = (0.3, 2.0)
              ) -> list[Action]:
    """The faults of a run, in order.

    Args:
        seed: another one makes another list.
        kills: processes that are killed in all; with "kill" not among the faults, the number of faults.
        faults: kinds, of KINDS. Of each there is at least one.
        gap: bounds of the pauses, in seconds.
    """
    if unknown := set(faults) - set(KINDS):
        raise ValueError(f"faults: {', '.join(sorted(unknown))}; there are {', '.join(KINDS)}")
    rng = random.Random(seed)
    others = [kind for kind in KINDS if kind != "kill" and kind in faults]
    steps: list[tuple[str, tuple[str, ...], dict[str, Any]]] = []
    if "kill" in faults:
        victims: list[str] = []
        left = kills
        while left:
            step = _kill(rng, victims, left)
            left -= step[2]["kills"]
            steps.append(step)
    count = (max(len(others), len(steps) // 3) if "kill" in faults else kills) if others else 0
    turns: dict[str, list[Any]] = {}
    kinds: list[str] = []
    for i in range(count):
        if not kinds:
            kinds = rng.sample(others, len(others))
        at = len(steps) * (i + 1) // (count + 1) + i if steps else i
        steps.insert(at, _other(rng, kinds.pop(), turns))
    return [Action(i + 1, round(rng.uniform(*gap), 2), *step) for i, step in enumerate(steps)]


def _next(rng: random.Random, bag: list[Any], all_of: Sequence[Any]) -> Any:
    """One after another in an order of chance, so that each gets its share."""
    if not bag:
        bag.extend(rng.sample(list(all_of), len(all_of)))
    return bag.pop()


def _kill(rng: random.Random, victims: list[str], left: int) -> tuple[str, tuple[str, ...], dict[str, Any]]:
    form = rng.choices(list(_KILLS), list(_KILLS.values()))[0]
    victim = _next(rng, victims, COMPONENTS)
    if form == "several" and left >= 2:
        number = rng.randint(2, min(4, left))
        return "kill", tuple(rng.sample(COMPONENTS, number)), {"when": "several", "kills": number}
    if form == "start" and left >= 2:
        return "kill", (victim,), {"when": "start", "after": round(rng.uniform(0.1, 3.0), 2), "kills": 2}
    if form == "step":
        return "kill", ("trainer",), {"when": "step", "after": round(rng.uniform(0, 3), 2), "kills": 1}
    if form == "transfer":
        name = rng.choice(("policy_server", "trainer"))
        return "kill", (name,), {"when": "transfer", "after": round(rng.uniform(0, 0.3), 2), "kills": 1}
    return "kill", (victim,), {"when": "any", "kills": 1}


def _other(rng: random.Random, kind: str, turns: dict[str, list[Any]]
           ) -> tuple[str, tuple[str, ...], dict[str, Any]]:
    bag = turns.setdefault(kind, [])
    if kind == "stop":
        return kind, (_next(rng, bag, COMPONENTS),), {"seconds": round(rng.uniform(2, 8), 1)}
    if kind == "disk":
        name = _next(rng, bag, (*COMPONENTS, "home"))
        return kind, (name,), {"seconds": round(rng.uniform(4, 10), 1)}
    if kind == "damage":
        name, what = _next(rng, bag, DAMAGES)
        return kind, (name,), {"what": what, "how": rng.choice(("truncate", "garbage")), "salt": rng.randrange(2**31)}
    if kind == "clock":
        hours = rng.choice((-1, 1)) * round(rng.uniform(1, 30), 1)
        names = COMPONENTS if rng.random() < 0.5 else (rng.choice(COMPONENTS),)
        return kind, tuple(names), {"hours": hours, "seconds": round(rng.uniform(5, 15), 1)}
    how = _next(rng, bag, _CUTS)
    if how == "cut_every":
        # From a part of a chunk to more than the difference between two versions.
        return kind, ("policy_server",), {"what": how, "bytes": int(10 ** rng.uniform(4, 6.5)),
                                          "times": rng.randint(2, 10)}
    name = rng.choice(COMPONENTS)
    if how == "slow":
        return kind, (name,), {"what": how, "rate": rng.randint(20_000, 400_000), "seconds": rng.randint(3, 8)}
    return kind, (name,), {"what": how, "seconds": round(rng.uniform(1, 6), 1) if how == "refuse" else 0}
