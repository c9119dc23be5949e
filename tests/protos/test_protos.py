"""The contracts are linted, formatted, compatible with main's, and what was generated of them is fresh."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.protos.generators import ROOT, bin_folder
from tests.support.required import left_out
from tools.generation import files, targets

#: Those whose tool chains take their time.
SLOW = {"go", "typescript", "rust"}
NAMES = [pytest.param(name, marks=[pytest.mark.slow, pytest.mark.timeout(600)] if name in SLOW else [])
         for name in targets.TARGETS]


@pytest.fixture(scope="module")
def generators() -> Path:
    """Folder of buf and protoc, made by tools/generate on first use."""
    return bin_folder()


def run(*command: str | Path) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_what_is_generated_is_fresh(generators: Path, tmp_path: Path, name: str) -> None:
    target = targets.TARGETS[name]
    try:
        target.make(tmp_path)
    except targets.Missing as why:
        left_out(str(why))
    stale = files.differing(tmp_path, target.folder, target.patterns)
    assert not stale, f"run tools/generate: {', '.join(stale)}"


def test_check_names_what_is_stale_and_writes_nothing(generators: Path, tmp_path: Path) -> None:
    """With a committed file that is not as it should be, one that should not be there, and one that is missing."""
    fresh, committed = tmp_path / "fresh", tmp_path / "committed"
    for folder, names in ((fresh, {"a.py": "1", "sub/b.py": "1"}),
                          (committed, {"a.py": "2", "c.py": "", "mine.md": ""})):
        for name, text in names.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
    stale = files.differing(fresh, committed, ("**/*.py",))
    assert stale == ["a.py", "c.py", "sub/b.py"]
    files.write(fresh, committed, stale)
    assert {str(path.relative_to(committed)) for path in committed.rglob("*.*")} == {"a.py", "sub/b.py", "mine.md"}
    assert not files.differing(fresh, committed, ("**/*.py",))


def test_unknown_targets_are_refused() -> None:
    done = subprocess.run([ROOT / "tools/generate", "--only", "cobol"], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "cobol is not one of python, go" in done.stderr


def test_a_missing_tool_chain_is_told(generators: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for name, program in (("go", "go"), ("typescript", "npm"), ("rust", "cargo")):
        with pytest.raises(targets.Missing, match=f"{program} is missing: install"):
            targets.TARGETS[name].make(tmp_path)


def test_lint(generators: Path) -> None:
    run(generators / "buf", "lint", "protos")


def test_format(generators: Path) -> None:
    run(generators / "buf", "format", "--diff", "--exit-code", "protos")


def test_nothing_breaks_main(generators: Path) -> None:
    for ref in ("refs/remotes/origin/main", "refs/heads/main"):
        known = subprocess.run(["git", "rev-parse", "--verify", "--quiet", f"{ref}:protos/buf.yaml"], cwd=ROOT,
                               capture_output=True, check=False)
        if known.returncode == 0:
            run(generators / "buf", "breaking", "protos", "--against", f".git#ref={ref},subdir=protos")
            return
    left_out("git knows no main branch to compare the contracts with")
