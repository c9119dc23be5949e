"""Command line of the benchmark."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml
from transformers.utils.logging import disable_progress_bar

import tools.bench.learning
from openclaw_rl.config import EMBEDDED_MODEL, Config, TrainerConfig
from openclaw_rl.models.prepare import ensure_model
from openclaw_rl.runtime.home import Home
from tools.bench.learning import items, report
from tools.bench.learning.recorded import Recorder
from tools.bench.learning.reference import References
from tools.bench.learning.session import AT_ONCE, Run, run
from tools.bench.learning.users import USERS
from tools.bench.learning.worlds import InProcess, Mesh

#: Seconds after which a mesh trains on fewer than AT_ONCE samples: not all that a user says is understood.
_INTERVAL = 15


def main() -> None:
    """Print the table and one JSON line."""
    args = _arguments()
    settings = {key: yaml.safe_load(value) for key, _, value in (item.partition("=") for item in args.set)}
    Config.model_validate({"components": {"trainer": settings}})
    disable_progress_bar()
    print(json.dumps(asyncio.run(_bench(args, settings))))


async def _bench(args: argparse.Namespace, settings: dict[str, Any]) -> dict[str, Any]:
    base, user, questions = ensure_model(EMBEDDED_MODEL, Home.default()), USERS[args.user], items.held_out(args.prompts)
    references = {wish.name: References(base, questions, wish, args.greedy) for _, wish in user.wishes}
    for reference in references.values():
        await reference.prepare()
    rows = await references[user.wish(args.interactions).name].rows(args.tuned)
    runs = []
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        world = _in_process if args.in_process else _in_mesh
        runs.append(await world(args, settings, seed, base, references, questions))
    learned = report.mean_rows(runs) if runs else []
    figures = report.summary(user, runs, rows[0]) if runs else {}
    print(report.table([*rows, *learned]), json.dumps(figures), sep="\n\n", file=sys.stderr)
    return {"bench": "learning", "user": user.name, "settings": settings, "in_process": args.in_process,
            "prompts": len(questions), "interactions": args.interactions, "summary": figures,
            "rows": [row.json() for row in [*rows, *learned]],
            "seeds": [{"seed": r.seed, "seconds": round(r.seconds), "rows": [row.json() for row in r.rows],
                       "passed": r.passed, "said": r.said, "versions": r.versions} for r in runs]}


async def _in_mesh(args: argparse.Namespace, settings: dict[str, Any], seed: int, base: Path,
                   references: dict[str, References], questions: list[items.Item]) -> Run:
    """Run one seed in a mesh of its own."""
    with tempfile.TemporaryDirectory(prefix="openclaw-learning-") as folder:
        config = {"components": {
            "policy_server": {"port": 0, "grpc_port": 0}, "env_server": {"port": 0}, "prm_judge": {"port": 0},
            "trainer": {"port": 0, "min_samples": AT_ONCE, "update_interval": _INTERVAL, **settings}}}
        path = Path(folder) / "config.yaml"
        path.write_text(yaml.safe_dump(config))
        (Path(folder) / "models").symlink_to(base.parent)
        env, command = os.environ | {"OPENCLAW_RL_HOME": folder}, str(Path(sys.executable).with_name("openclaw-rl"))
        await _call(env, command, "local-start", "--config", str(path))
        try:
            return await run(Mesh(Home(Path(folder)), base), USERS[args.user], references, questions, seed,
                             args.interactions, args.every)
        finally:
            await _call(env, command, "stop-all")


async def _call(env: dict[str, str], *command: str) -> None:
    process = await asyncio.create_subprocess_exec(*command, env=env, stdout=sys.stderr)
    if await process.wait():
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")


async def _in_process(args: argparse.Namespace, settings: dict[str, Any], seed: int, base: Path,
                      references: dict[str, References], questions: list[items.Item]) -> Run:
    """Run one seed with engine, judge and trainer in this process."""
    recorder = Recorder(args.record)
    with tempfile.TemporaryDirectory(prefix="openclaw-learning-") as folder:
        trainer = TrainerConfig(**{"min_samples": AT_ONCE, **settings})
        world = await InProcess.create(Path(folder), trainer, recorder.add)
        try:
            return await run(world, USERS[args.user], references, questions, seed, args.interactions, args.every)
        finally:
            await world.stop()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.bench.learning", description=tools.bench.learning.__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--user", choices=USERS, default="plain", help="who is simulated; default: plain")
    parser.add_argument("--seeds", type=int, default=1, help="runs, one after the other; 0: only the rows to compare")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--interactions", type=int, default=36, help=f"of each; a multiple of {AT_ONCE}")
    parser.add_argument("--every", type=int, default=12, help=f"interactions between two rows; a multiple of {AT_ONCE}")
    parser.add_argument("--prompts", type=int, help="held-out questions, spread over all kinds; default: all")
    parser.add_argument("--no-greedy", dest="greedy", action="store_false", help="only at the serving temperature")
    parser.add_argument("--tuned", action="store_true", help="also fine-tune on hand-written good answers")
    parser.add_argument("--in-process", action="store_true", help="without the mesh")
    parser.add_argument("--record", type=Path, help="with --in-process: write the samples to this file")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the trainer")
    args = parser.parse_args()
    for name in ("interactions", "every"):
        if getattr(args, name) < AT_ONCE or getattr(args, name) % AT_ONCE:
            parser.error(f"--{name} {getattr(args, name)} is not allowed: a multiple of {AT_ONCE} is needed")
    if args.interactions % args.every:
        parser.error(f"--every {args.every} is not allowed: a divisor of --interactions {args.interactions} is needed")
    if args.prompts is not None and args.prompts < 1:
        parser.error(f"--prompts {args.prompts} is not allowed: at least 1 is needed")
    return args


if __name__ == "__main__":
    main()
