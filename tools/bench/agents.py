"""How an agent gets better by training on its own episodes: success on held-out tasks before and after GRPO.

    .venv/bin/python tools/bench/agents.py --seeds 3 --steps 6 --out /tmp/agents-bench

Two arms, each from the base model: rewards that are the outcome alone, and outcome plus step rewards (the judge's
votes on each step). A step: `--groups` tasks of the training split are drawn, `--group-size` episodes of each are
played by the policy as it is, the rules judge votes on each step, the trainer makes one version of the groups that
teach something, and the engine swaps to it. Success is the share of episodes whose task's check says done, over all
held-out tasks, each played `--tries` times.

Everything is in one process and is what the mesh runs: embedded engine, chat template and tool parser, kinds and
sandboxes, rules judge, groups, torch back end; only the gRPC hops and, by default, the gate are left out. The model has
135 million parameters and was not made to call functions, so its prompts say more than those of `openclaw-rl episodes
run`, which makes each response a call and shows the calls' forms too: `submit` is not offered, and in a terminal two
goals with their commands come first. They were chosen by looking at the tasks to train on.

Prints progress, a table and the curve; `OUT/agents.json` is written after each step, so it may be stopped at any time;
`OUT/curve.svg` at the end of each run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from openclaw_rl.config import TrainerConfig
from openclaw_rl.rollouts.tasks.task import Task
from tools.bench.agents_report import curve, svg, table
from tools.bench.agents_world import Played, World, tasks

ARMS = {"outcome": "off", "bounded": "bounded", "outcome+steps": "full"}
#: Added to the trainer's clock, so that it waits for no group.
_AT_ONCE = 1e6


async def measure(world: World, held_out: list[Task], args: argparse.Namespace) -> dict[str, Any]:
    """Success on held-out tasks, the same draws each time."""
    played = await asyncio.gather(*(
        world.play(task, start_seed=10_000 + i, seed=hash((number, i)), temperature=args.temperature,
                   max_steps=args.max_steps)
        for number, task in enumerate(held_out) for i in range(args.tries)))
    by_kind: dict[str, list[Played]] = defaultdict(list)
    for episode in played:
        by_kind[episode.kind].append(episode)
    figures = {kind: figures_of(episodes) for kind, episodes in by_kind.items()}
    by_task: dict[str, list[float]] = defaultdict(list)
    for episode in played:
        by_task[episode.task].append(episode.outcome >= 1)
    return figures | {"tasks": {name: sum(done) / len(done) for name, done in by_task.items()}}


def figures_of(episodes: list[Played]) -> dict[str, float]:
    """Shares of episodes, and means."""
    count = max(len(episodes), 1)
    return {"success": sum(e.outcome >= 1 for e in episodes) / count,
            "outcome": sum(e.outcome for e in episodes) / count,
            "acted": sum(e.calls > 0 for e in episodes) / count,
            "steps": sum(len(e.turns) for e in episodes) / count,
            "broken_off": sum(bool(e.error) for e in episodes) / count}


async def run(seed: int, arm: str, args: argparse.Namespace, save: Any) -> dict[str, Any]:
    """One seed of one arm."""
    root = Path(tempfile.mkdtemp(prefix="openclaw-agents-"))
    trainer = TrainerConfig.model_validate({
        "learning_rate": args.learning_rate, "threads": args.threads, "keep_versions": 1,
        "gate": {"enabled": args.gate}, "degenerate": "keep",
        "grpo": {"step_rewards": ARMS[arm], "max_tokens": args.max_tokens, "kl_weight": args.kl_weight}})
    result: dict[str, Any] = {"seed": seed, "arm": arm, "steps": []}
    save(result)
    world = await World.start(root, trainer, args.response_tokens, args.parallel, args.kinds)
    try:
        train = [task for kind in args.kinds for task in tasks(kind, "train", args.tasks)]
        held_out = [task for kind in args.kinds for task in tasks(kind, "held_out", args.tasks)]
        say(seed, arm, f"{len(train)} tasks to train on, {len(held_out)} held out")
        result["before"] = await measure(world, held_out, args)
        say(seed, arm, f"before: {short(result['before'])}")
        draw = random.Random(seed)
        for step in range(1, args.steps + 1):
            began = time.monotonic()
            # As many of each kind.
            chosen = [task for kind in args.kinds for task in draw.sample(
                [task for task in train if task.type_name == kind], args.groups // len(args.kinds))]
            groups = []
            for task in chosen:
                start_seed, seeds = draw.getrandbits(32), [draw.getrandbits(48) for _ in range(args.group_size)]
                groups.append([world.play(task, start_seed, number, args.temperature, args.max_steps)
                               for number in seeds])
            flat = iter(await asyncio.gather(*(episode for group in groups for episode in group)))
            played = [[next(flat) for _ in group] for group in groups]
            generated = time.monotonic()
            await world.submit(played)
            made = await world.learn(time.time() + _AT_ONCE)
            episodes = [episode for group in played for episode in group]
            counters = {name: count for name, count in world.store.counters.all().items()
                        if name.startswith(("groups_", "dropped:", "steps_"))}
            record: dict[str, Any] = {"step": step, **figures_of(episodes), "generated_s": round(generated - began, 1),
                      "trained_s": round(time.monotonic() - generated, 1), "versions": len(made),
                      "metrics": [dict(manifest.metrics) for manifest in made], "counters": counters,
                      "kinds": {kind: figures_of([e for e in episodes if e.kind == kind]) for kind in args.kinds}}
            if args.measure_every and step % args.measure_every == 0 and step < args.steps:
                record["held_out"] = await measure(world, held_out, args)
            result["steps"].append(record)
            save(result)
            metrics = record["metrics"][-1] if made else {}
            say(seed, arm, f"step {step}: success {record['success']:.2f}, acted {record['acted']:.2f}, "
                f"{len(made)} versions, reward {metrics.get('reward_mean', float('nan')):.2f}, kl "
                f"{metrics.get('kl', float('nan')):.3f}; {record['generated_s']} + {record['trained_s']} s")
        result["after"] = await measure(world, held_out, args)
        say(seed, arm, f"after: {short(result['after'])}")
        save(result)
    finally:
        await world.stop()
        shutil.rmtree(root, ignore_errors=True)
    return result


def short(measured: dict[str, Any]) -> str:
    """A measurement in a line."""
    return ", ".join(f"{kind} {figures['success']:.2f} ({figures['acted']:.2f} acted)"
                     for kind, figures in measured.items() if kind != "tasks")


def say(seed: int, arm: str, text: str) -> None:
    """Progress, on stderr."""
    print(f"{time.strftime('%H:%M:%S')} seed {seed} {arm}: {text}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--steps", type=int, default=6, help="of training, of each arm and seed")
    parser.add_argument("--groups", type=int, default=4, help="of a step, of all kinds together")
    parser.add_argument("--group-size", type=int, default=6, help="episodes of a group")
    parser.add_argument("--kinds", nargs="+", choices=("tool_call", "terminal"), default=["tool_call", "terminal"])
    parser.add_argument("--tasks", default="easy", help="tag of the tasks; empty: all")
    parser.add_argument("--tries", type=int, default=6, help="of each held-out task")
    parser.add_argument("--measure-every", type=int, default=0, metavar="STEPS", help="on held-out tasks too")
    parser.add_argument("--max-steps", type=int, default=2, help="of an episode")
    parser.add_argument("--response-tokens", type=int, default=40, help="of a response at most")
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--max-tokens", type=int, default=16_384, help="grpo.max_tokens")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--kl-weight", type=float, default=0.01)
    parser.add_argument("--gate", action="store_true", help="try each version on held-out prompts")
    parser.add_argument("--parallel", type=int, default=12, help="episodes at once")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("agents-bench"), help="folder of the results")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    runs: list[dict[str, Any]] = []
    settings = {name: str(value) if isinstance(value, Path) else value for name, value in vars(args).items()}

    def save(result: dict[str, Any]) -> None:
        if not any(known is result for known in runs):
            runs.append(result)
        (args.out / "agents.json").write_text(json.dumps({"bench": "agents", "settings": settings, "runs": runs},
                                                         indent=1))

    for seed in range(args.first_seed, args.first_seed + args.seeds):
        for arm in args.arms:
            asyncio.run(run(seed, arm, args, save))
            (args.out / "curve.svg").write_text(svg(runs))
            (args.out / "table.md").write_text(f"{table(runs)}\n\n{curve(runs)}\n")
    print(table(runs))
    print()
    print(curve(runs))


if __name__ == "__main__":
    main()
