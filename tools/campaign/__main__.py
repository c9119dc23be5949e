"""The command: python tools/campaign {kills,harms,hostile,fill} [options]."""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tools.campaign.talk import Talk

_ROOT = Path(__file__).resolve().parents[2]


def main(argv: list[str] | None = None) -> int:
    """Returns 0 when nothing is lost, doubled or wrong, 1 when something is, 2 when it could not run."""
    from tools.campaign.harms import KINDS
    from tools.chaos.plan import KINDS as FAULTS

    parser = argparse.ArgumentParser(
        prog="python tools/campaign", formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Attack a mesh of its own, and print how often what was lost, doubled or wrong.",
        epilog="examples:\n  python tools/campaign kills                     each failpoint once, some 4 minutes\n"
               "  python tools/campaign kills --rounds 8 --kills 120   the long run: 200 kills\n"
               "  python tools/campaign harms                     disks, memory and damage, as root\n"
               "  python tools/campaign harms --only 'little memory' --only 'damage while up'\n"
               "  python tools/campaign hostile                   10,000 HTTP requests, 5,000 gRPC messages\n"
               "  python tools/campaign fill --size 250           forgetting on stores of 250 MB")
    parser.add_argument("--seed", type=int, help="the same seed does the same; default: a new one")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="run in this new folder, and keep its files")
    commands = parser.add_subparsers(dest="command", required=True)
    kills = commands.add_parser("kills", help="kill processes at failpoints and elsewhere")
    kills.add_argument("--rounds", type=int, default=1, help="kills at each failpoint (default %(default)s)")
    kills.add_argument("--kills", type=int, default=0, help="further kills, with other faults (default %(default)s)")
    kills.add_argument("--faults", default=",".join(FAULTS), help="kinds of the further ones (default %(default)s)")
    harms = commands.add_parser("harms", help="full, slow and read-only disks, little memory, damaged files")
    harms.add_argument("--only", action="append", metavar="KIND", choices=KINDS,
                       help=f"of {', '.join(KINDS)} (default: all)")
    for command in (kills, harms):
        command.add_argument("--tiny", action="store_true",
                             help="with a tiny model, of which more versions are made, in place of the embedded one")
    hostile = commands.add_parser("hostile", help="send generated requests")
    hostile.add_argument("--requests", type=int, default=10_000, help="HTTP requests (default %(default)s)")
    hostile.add_argument("--messages", type=int, default=5_000, help="gRPC messages (default %(default)s)")
    hostile.add_argument("--slow", type=int, default=200, help="connections to hold on to, with compressed bombs "
                         "before; 0: neither (default %(default)s)")
    filled = commands.add_parser("fill", help="forget sessions on large stores, and watch the event loops")
    filled.add_argument("--size", type=int, default=250, help="MB of each store (default %(default)s)")
    filled.add_argument("--forget", type=int, default=12, help="sessions to forget (default %(default)s)")
    filled.add_argument("--kills", type=int, default=4, help="of components meanwhile (default %(default)s)")
    args = parser.parse_args(argv)
    seed = random.randrange(10**6) if args.seed is None else args.seed
    folder = (args.keep or Path(tempfile.mkdtemp(prefix=f"campaign-{seed}-"))).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    print(f"seed {seed}, in {folder}", flush=True)
    began = time.monotonic()
    try:
        failed = _COMMANDS[args.command](args, seed, folder)
    except (RuntimeError, OSError) as error:
        print(f"campaign: {error}\nthe files are in {folder}", file=sys.stderr)
        return 2
    print(f"{'FAILED' if failed else 'OK'} after {time.monotonic() - began:.0f} s", flush=True)
    if not failed and args.keep is None:
        shutil.rmtree(folder, ignore_errors=True)
    return int(failed)


def _kills(args: argparse.Namespace, seed: int, folder: Path) -> bool:
    from tools.campaign.kills import Campaign, Options

    return _talk(Campaign(Options(folder, seed, args.rounds, args.kills, faults=tuple(args.faults.split(",")),
                                  model=_model(args, folder))))


def _harms(args: argparse.Namespace, seed: int, folder: Path) -> bool:
    from tools.campaign.harms import KINDS, Harms, Options

    kinds, model, failed = args.only or KINDS, _model(args, folder), False
    # A damaged store takes away what was answered before, so that is judged first, in a mesh of its own.
    for name in ("other", "damage while down", "damage while up"):
        some = tuple(kind for kind in kinds if (kind if kind.startswith("damage") else "other") == name)
        if some:
            failed |= _talk(Harms(Options(folder / name.replace(" ", "-"), seed, some, model=model)))
    return failed


def _model(args: argparse.Namespace, folder: Path) -> Path | None:
    from tests.mesh.in_process import tiny_model

    return tiny_model(folder / "model") if args.tiny else None


def _talk(talk: Talk) -> bool:
    outcome = talk.once()
    print("\n".join([outcome.table.text(), *(f"note: {note}" for note in outcome.notes)]))
    return outcome.table.failed


def _hostile(args: argparse.Namespace, seed: int, folder: Path) -> bool:
    from tests.mesh.in_process import quick_config, tiny_model
    from tools.campaign.hostile import attack

    config = quick_config(tiny_model(folder / "model"), {"prm_judge": {"judge": "rules"}})
    table = asyncio.run(attack(folder / "home", config, seed, args.requests, args.messages, args.slow))
    print(table.text())
    return table.failed


def _fill(args: argparse.Namespace, seed: int, folder: Path) -> bool:
    from tests.mesh.fake_api import FakeApi
    from tests.mesh.mesh import Mesh, make_home, running
    from tools.campaign.fill import fill, forget_all

    api = FakeApi()
    # Nothing is trained, so that samples wait with all that they hold.
    home = make_home(folder / "home", folder, {
        "policy_server": {"model": "gpt-4o-mini", "port": 0, "grpc_port": 0}, "env_server": {"port": 0},
        "prm_judge": {"port": 0, "judge": "rules"},
        "trainer": {"port": 0, "min_samples": 100_000, "update_interval": 36_000}})
    try:
        with running(Mesh(home, {"OPENAI_API_KEY": "sk-campaign", "OPENAI_BASE_URL": api.url})) as mesh:
            def say(text: str) -> None:
                print(f"  {text}", flush=True)

            sessions = fill(mesh.url, home, args.size * 10**6, say)
            table = forget_all(home, random.Random(seed).sample(sessions, min(args.forget, len(sessions))),
                               args.kills, say)
    finally:
        api.close()
    print(table.text())
    return table.failed


_COMMANDS = {"kills": _kills, "harms": _harms, "hostile": _hostile, "fill": _fill}

if __name__ == "__main__":
    if str(_ROOT) not in sys.path:  # started as a folder: that folder is the first entry, and not a package then
        sys.path[0] = str(_ROOT)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sys.exit(main())
