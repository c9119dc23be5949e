"""Script that runs test files by unittest and reports each test.

It runs in a sandbox, as `python3 -I -B`, with only Python's own library, and imports nothing of this package. Its
arguments are the repository's folder and the test files; its stdin has a word that begins the line of the report,
`WORD {"passed": [test, ...], "failed": {test: why}}`, so that output of the tests is not mistaken for it. Malicious
code can find the word, as it can patch unittest: it runs in this process.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import unittest
from types import TracebackType
from typing import Any


class _Result(unittest.TestResult):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.bad: dict[str, str] = {}

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self.names.append(_name(test))

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        self.bad.setdefault(_name(test), _why(err[1], err[2]))

    addFailure = addError

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:
        if err is not None:
            self.addError(test, err)

    def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:
        self.bad[_name(test)] = "it passed, and should not"


def _name(test: unittest.TestCase) -> str:
    return ".".join(test.id().split(".")[-2:])


def _why(error: BaseException | None, trace: TracebackType | None) -> str:
    lines = (str(error).strip() or "no message").splitlines()
    return f"{type(error).__name__}: {lines[0]}"[:300]


def main() -> None:
    word = sys.stdin.readline().strip()
    repository, *files = sys.argv[1:]
    os.chdir(repository)
    # At the end, so that no file there shadows one of Python's library.
    sys.path.append(repository)
    result = _Result()
    for number, file in enumerate(files):
        spec = importlib.util.spec_from_file_location(f"hidden_tests_{number}", os.path.join(repository, file))
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:
            result.names.append(file)
            result.bad[file] = _why(error, None)
            continue
        unittest.defaultTestLoader.loadTestsFromModule(module).run(result)
    # A failing setup of a class or module has no test of its own.
    names = list(dict.fromkeys([*result.names, *result.bad]))
    report = {"passed": [name for name in names if name not in result.bad], "failed": result.bad}
    sys.stdout.flush()
    os.write(1, f"\n{word} {json.dumps(report)}\n".encode())
    os._exit(0)  # whatever threads the tests left running


if __name__ == "__main__":
    main()
