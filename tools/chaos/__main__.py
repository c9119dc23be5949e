"""The command: python tools/chaos [options]."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]


def main(argv: list[str] | None = None) -> int:
    """Returns 0 when all promises were kept, 1 when one was not, 2 when it could not run."""
    from tools.chaos.plan import KINDS, make_plan
    from tools.chaos.run import Options, Run, write_json

    parser = argparse.ArgumentParser(
        prog="python tools/chaos", formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Break the real mesh under load, by a seed, and check from its stores that nothing was lost.",
        epilog="examples:\n  python tools/chaos --kills 8                     3 to 5 minutes\n"
               "  python tools/chaos --seed 7 --kills 200          the long run\n"
               "  python tools/chaos --seed 7 --kills 30 --faults kill,damage --keep /tmp/look\n"
               "  python tools/chaos --seed 7 --kills 200 --plan   only prints what would be broken when\n"
               "exit code: 0 all promises kept, 1 one was not (the files are kept), 2 it could not run")
    parser.add_argument("--seed", type=int, help="the same seed breaks the same in the same order; default: a new one")
    parser.add_argument("--kills", type=int, default=20, help="processes to kill in all (default %(default)s)")
    parser.add_argument("--minutes", type=float, help="break nothing more after so many minutes")
    parser.add_argument("--faults", default=",".join(KINDS), help="kinds of faults, of %(default)s")
    parser.add_argument("--users", type=int, default=6, help="users who talk at once (default %(default)s)")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="run in this new folder, and keep all its files")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report there too")
    parser.add_argument("--plan", action="store_true", help="print the plan and end")
    args = parser.parse_args(argv)
    seed = random.randrange(10**6) if args.seed is None else args.seed
    faults = [kind.strip() for kind in args.faults.split(",") if kind.strip()]
    try:
        if args.kills < 1 or args.users < 1:
            raise ValueError("--kills and --users must be at least 1")
        plan = make_plan(seed, args.kills, faults)
        if args.keep and args.keep.exists() and any(args.keep.iterdir()):
            raise ValueError(f"--keep {args.keep}: is not empty; name a new folder")
    except (ValueError, OSError) as error:
        print(f"chaos: {error}", file=sys.stderr)
        return 2
    if args.plan:
        print("\n".join(f"{action.number:4} +{action.gap:<5} {action}" for action in plan))
        return 0
    folder = args.keep or Path(tempfile.mkdtemp(prefix=f"chaos-{seed}-"))
    print(f"seed {seed}: {args.kills} kills, {len(plan)} faults in all", flush=True)
    run = Run(Options(folder.absolute(), seed, args.kills, faults, args.minutes, args.users))
    keep = True
    try:
        report = run.run()
        keep = bool(report.violations) or args.keep is not None
        print("\n" + report.text())
        report.facts["finished"] = time.strftime("%F %T")
        for file in [args.json] * bool(args.json) + [folder / "report.json"]:
            write_json(report, file)
        return 1 if report.violations else 0
    except KeyboardInterrupt:
        print("chaos: interrupted; the mesh was stopped", file=sys.stderr)
        return 130
    except (RuntimeError, OSError) as error:
        print(f"chaos: {error}\nthe files are in {folder}", file=sys.stderr)
        return 2
    finally:
        run.close(keep)


if __name__ == "__main__":
    if str(_ROOT) not in sys.path:  # started as a folder: that folder is the first entry, and not a package then
        sys.path[0] = str(_ROOT)
    sys.exit(main())
