"""Fresh files against committed ones."""
import filecmp
from collections.abc import Iterable
from pathlib import Path


def differing(fresh: Path, committed: Path, patterns: Iterable[str]) -> list[str]:
    """Names (with folders, relative) of files that are not the same in both.

    Args:
        patterns: globs that tell generated files of `committed` from others there.
    """
    names = {str(path.relative_to(root)) for root, globs in ((fresh, ["**/*"]), (committed, patterns))
             for glob in globs for path in root.glob(glob) if path.is_file()}
    return sorted(name for name in names if not (fresh / name).is_file() or not (committed / name).is_file()
                  or not filecmp.cmp(fresh / name, committed / name, shallow=False))


def write(fresh: Path, committed: Path, names: Iterable[str]) -> None:
    """Make the named files of `committed` what they are in `fresh`; those that are not there are deleted."""
    for name in names:
        if (fresh / name).exists():
            (committed / name).parent.mkdir(parents=True, exist_ok=True)
            (committed / name).write_bytes((fresh / name).read_bytes())
        else:
            (committed / name).unlink()
