"""Check of a repository by tests, in a fresh sandbox that the policy never entered."""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from openclaw_rl.rollouts.environments.interface import Outcome
from openclaw_rl.rollouts.environments.plain_text import ending
from openclaw_rl.rollouts.environments.swe.actions import REPO
from openclaw_rl.rollouts.environments.swe.task import Check
from openclaw_rl.rollouts.sandboxes.interface import Backend, Sandbox, SandboxError, Spec
from openclaw_rl.runtime.json import parse_json

#: Bytes of a repository without .git.
MOST_REPOSITORY = 16 << 20
_SECONDS = 60.0
_MOST_OUTPUT = 1 << 20
#: What runs the hidden tests, and its folder in the sandbox.
_RUNNER = [Path(__file__).parent / name for name in ("runner.py", "subject.py", "remote.py")]
_RUNNER_THERE = "/tmp/runner"


async def judge(sandbox: Sandbox, check: Check, backend: Backend, spec: Spec) -> Outcome:
    """Copy the repository from the policy's sandbox into a new one, put the hidden files over it, and run the tests.

    Returns:
        1 if all tests pass, else the share that does, if known; `detail` names those that fail.

    Raises:
        SandboxError: the policy's sandbox is gone, or no other one can be made.
    """
    packed = await sandbox.run(["sh", "-c", "tar -cf - --exclude=./.git -C \"$1\" . 2>/dev/null", "pack", REPO],
                               folder="/", seconds=_SECONDS, most=MOST_REPOSITORY)
    if packed.truncated:
        return Outcome(0.0, f"the repository has more than {MOST_REPOSITORY >> 20} MiB")
    if packed.code not in (0, 1):  # 1: a file changed while it was read
        return Outcome(0.0, f"the repository in {REPO} can't be read: it is gone, or has files that may not be read")
    fresh = await backend.make(spec)
    try:
        # A test that is in no file can't be read by the code that it tests.
        laid = check.hidden if check.tests else {
            path: text for path, text in check.hidden.items() if path not in check.modules}
        if problem := await _lay(fresh, packed.output, check.hidden, laid):
            return Outcome(0.0, problem)
        return await (_by_shell(fresh, check.tests) if check.tests else _by_unittest(fresh, check))
    except SandboxError as error:
        return Outcome(0.0, f"the tests broke their sandbox: {error}")
    finally:
        await fresh.close()


def pack(files: Mapping[str, str]) -> bytes:
    """Pack files as a tar."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for path, text in files.items():
            data = text.encode()
            info = tarfile.TarInfo(path)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return made.getvalue()


async def _lay(fresh: Sandbox, repository: bytes, gone: Iterable[str], laid: Mapping[str, str]) -> str:
    """Copy a repository without the files `gone`, and put `laid` over it; returns what went wrong."""
    finished = await fresh.run(["sh", "-c", "mkdir -p \"$1\" && tar -xf - -C \"$1\" 2>&1", "lay", REPO], folder="/",
                           stdin=repository, seconds=_SECONDS)
    if finished.code != 0:
        return f"the repository can't be copied: {ending(finished.output)}"
    finished = await fresh.run(["sh", "-c", "rm -rf -- \"$@\" && tar -xf - 2>&1", "lay", *gone], folder=REPO,
                               stdin=pack(laid), seconds=_SECONDS)
    return "" if finished.code == 0 else f"the hidden tests can't be put into the repository: {ending(finished.output)}"


async def _by_unittest(fresh: Sandbox, check: Check) -> Outcome:
    runner = pack({file.name: file.read_text() for file in _RUNNER})
    await fresh.run(["sh", "-c", f"mkdir {_RUNNER_THERE} && tar -xf - -C {_RUNNER_THERE}"], stdin=runner, folder="/",
                    seconds=_SECONDS)
    task = {"repository": REPO, "tests": {path: check.hidden[path] for path in check.modules},
            "helpers": {path: text for path, text in check.hidden.items()
                        if path.endswith(".py") and path not in check.modules}}
    finished = await fresh.run(["python3", "-I", "-B", f"{_RUNNER_THERE}/runner.py"],
                               stdin=json.dumps(task).encode() + b"\n", folder="/", seconds=_SECONDS,
                               most=_MOST_OUTPUT)
    try:
        report = parse_json(finished.output)
        passed, failed = list(report["passed"]), dict(report["failed"])
    except (ValueError, KeyError, TypeError):
        return Outcome(0.0, f"the tests were not done in {_SECONDS:g} s" if finished.timed_out else
                       "the tests ended without a report: "
                       f"{ending(finished.output) or f'exit code {finished.code}'}")
    total = len(passed) + len(failed)
    if total == 0:
        return Outcome(0.0, "there is no test in the hidden files")
    if not failed:
        return Outcome(1.0, f"all {total} tests pass")
    which = "; ".join(f"{name}: {why}" for name, why in failed.items())
    return Outcome(len(passed) / total, f"{len(failed)} of {total} tests fail: {which}"[:2000])


async def _by_shell(fresh: Sandbox, tests: str) -> Outcome:
    finished = await fresh.run(["bash", "-c", tests], folder=REPO, seconds=_SECONDS, most=_MOST_OUTPUT)
    if finished.code == 0:
        return Outcome(1.0, "the tests pass")
    if finished.timed_out:
        return Outcome(0.0, f"the tests were not done in {_SECONDS:g} s")
    text = finished.output.decode("utf-8", "replace")
    return Outcome(part(text), f"the tests ended with {finished.code}: {ending(finished.output)}")


def part(text: str) -> float:
    """The share of passed tests, from the last line of unittest or pytest; 0 if unknown, never 1."""
    ran = re.findall(r"^Ran (\d+) tests? in ", text, re.M)
    if ran:
        told = re.findall(r"^FAILED \((.*)\)$", text, re.M)
        total = int(ran[-1])
        bad = sum(map(int, re.findall(r"(?:failures|errors)=(\d+)", told[-1]))) if told else total
    else:
        told = re.findall(r"^.*\b\d+ (?:passed|failed|errors?)\b.*$", text, re.M)
        pairs = re.findall(r"(\d+) (passed|failed|error)", told[-1] if told else "")
        counts = {word: int(number) for number, word in pairs}
        total = sum(counts.values())
        bad = total - counts.get("passed", 0)
    return min(max(total - bad, 0) / total, 0.99) if total else 0.0
