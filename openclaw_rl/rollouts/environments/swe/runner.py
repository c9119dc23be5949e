"""Runs hidden tests by unittest, apart from the code that they test, and reports each test.

It runs in a sandbox, as `python3 -I -B`, with only Python's own library, and imports nothing of this package but
`remote.py`, which lies beside it. Its stdin is a line of JSON, `{"repository": folder, "tests": {path: text},
"helpers": {path: text}}`; its stdout is the report, `{"passed": [test, ...], "failed": {test: why}}`, and nothing
else.

The code under test runs in another process (`subject.py`); what a test imports from the repository are stand-ins for
what is there. That process has the same user, but the kernel lets it neither read nor write the memory or the open
files of this one (PR_SET_DUMPABLE), and the tests' text is in no file. If it ends this one, there is no report.
"""

from __future__ import annotations

import ctypes
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import signal
import subprocess
import sys
import types
import unittest
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from openclaw_rl.rollouts.environments.swe.remote import Peer, Remote, RemoteModule
else:
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    from remote import Peer, Remote, RemoteModule

    del sys.path[0]

_SET_DUMPABLE = 4
#: Objects of these kinds lead to everything in this process; they can be called, if anything.
_CLOSED = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.FrameType,
           types.TracebackType, types.CodeType, types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType,
           unittest.TestCase, unittest.TestSuite, unittest.TestResult, unittest.TestLoader)


class _Handed:
    """What the code under test may do with objects that a test hands to it.

    Args:
        modules: the names of the test modules, whose classes are the tests' own.
    """

    def __init__(self, modules: frozenset[str]) -> None:
        self._modules = modules

    def copied(self, value: Any) -> bool:
        return type(value).__module__ not in self._modules

    def validate(self, operation: str, target: Any, arguments: list[Any]) -> str:
        if operation in ("import", "public"):
            return "tests are not imported"
        if operation not in ("get", "set", "del"):
            return ""
        name = arguments[0]
        if not isinstance(name, str) or (name.startswith("_") and name not in ("__name__", "__doc__")):
            return f"{name!r} is private to the tests"
        if isinstance(target, _CLOSED) and not name.startswith("__"):
            return f"attributes of a {type(target).__name__} of the tests are out of reach"
        if operation != "get" and self.copied(target) and not isinstance(target, types.SimpleNamespace):
            return f"attributes of a {type(target).__name__} of the tests can't be changed"
        return ""


class _Memory(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Imports hidden files, from their texts."""

    def __init__(self, repository: str, files: Mapping[str, str]) -> None:
        self._repository = repository
        self._files = {_module(path): (path, text) for path, text in files.items()}
        self.modules = frozenset(self._files)

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None
                  ) -> importlib.machinery.ModuleSpec | None:
        if name not in self._files:
            return None
        file = self._files[name][0]
        return importlib.util.spec_from_loader(name, self, origin=os.path.join(self._repository, file),
                                               is_package=file.endswith("__init__.py"))

    def load(self, path: str) -> types.ModuleType:
        """Import a test file, whose name need be no module's and whose folders no packages."""
        name = _module(path)
        if name in sys.modules:  # another test has imported it
            return sys.modules[name]
        spec = self.find_spec(name, None)
        assert spec is not None and spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        return module

    def get_source(self, fullname: str) -> str:
        return self._files[fullname][1]

    def exec_module(self, module: types.ModuleType) -> None:
        assert module.__spec__ is not None
        module.__file__ = module.__spec__.origin
        super().exec_module(module)


class _Elsewhere(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports everything else from the process of the code under test."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None
                  ) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] in sys.stdlib_module_names:
            return None  # one of another platform, which Python's library tries
        return importlib.util.spec_from_loader(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = RemoteModule(spec.name)
        module._peer, module._remote = self._peer, self._peer.module(spec.name)
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        pass


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

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        if _name(test) in self.names:
            self.names.remove(_name(test))

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:
        if err is not None:
            self.addError(test, err)

    def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:
        self.bad[_name(test)] = "it passed, and should not"


def _name(test: unittest.TestCase) -> str:
    return ".".join(test.id().split(".")[-2:])


def _why(error: BaseException | None, trace: TracebackType | None) -> str:
    try:
        lines = (str(error).strip() or "no message").splitlines()
    except Exception:
        lines = ["no message"]
    return f"{type(error).__name__}: {lines[0]}"[:300]


def _module(path: str) -> str:
    name = path.removesuffix(".py").removesuffix("/__init__")
    return name.replace("/", ".")


def _refuse_self_judgement() -> None:
    """`assertAlmostEqual` subtracts, and an object of the code under test could say that the difference is 0."""
    def guarded(original: Any) -> Any:
        def compare(self: unittest.TestCase, first: Any, second: Any, *args: Any, **named: Any) -> None:
            if isinstance(first, Remote) or isinstance(second, Remote):
                raise self.failureException("an object of the code under test is compared with a number")
            original(self, first, second, *args, **named)

        return compare

    for name in ("assertAlmostEqual", "assertNotAlmostEqual"):
        setattr(unittest.TestCase, name, guarded(getattr(unittest.TestCase, name)))


def _start(repository: str, access: _Handed) -> Peer:
    here = os.path.dirname(os.path.abspath(__file__))
    process = subprocess.Popen([sys.executable, "-I", "-B", os.path.join(here, "subject.py"), repository],
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                               start_new_session=True)
    assert process.stdin is not None and process.stdout is not None
    return Peer(process.stdout, process.stdin, access)  # type: ignore[arg-type]


def run(repository: str, tests: Mapping[str, str], helpers: Mapping[str, str]) -> dict[str, Any]:
    """Run the tests; returns the report."""
    result = _Result()
    _refuse_self_judgement()
    memory = _Memory(repository, {**helpers, **tests})
    sys.meta_path.insert(0, memory)
    sys.meta_path.append(_Elsewhere(_start(repository, _Handed(memory.modules))))
    for path in tests:
        try:
            module = memory.load(path)
        except BaseException as error:
            result.names.append(path)
            result.bad[path] = _why(error, None)
            continue
        unittest.defaultTestLoader.loadTestsFromModule(module).run(result)
    # A failing setup of a class or module has no test of its own.
    names = list(dict.fromkeys([*result.names, *result.bad]))
    return {"passed": [name for name in names if name not in result.bad], "failed": result.bad}


def main() -> None:
    """Run what stdin says, and write the report to stdout."""
    if ctypes.CDLL(None).prctl(_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        raise OSError("PR_SET_DUMPABLE failed")
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    task = json.loads(sys.stdin.readline())
    report = os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nothing, descriptor)
    os.chdir(task["repository"])
    with os.fdopen(report, "w") as stream:
        json.dump(run(task["repository"], task["tests"], task["helpers"]), stream)
    os._exit(0)  # whatever threads the tests left running


if __name__ == "__main__":
    main()
