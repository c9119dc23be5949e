"""Repairs that would rather reach the verdict than do what the tests ask for, in real sandboxes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from textwrap import dedent

import pytest

from openclaw_rl.config.environment import EnvironmentConfig
from openclaw_rl.rollouts.environments.interface import Context
from openclaw_rl.rollouts.environments.swe.actions import REPO
from openclaw_rl.rollouts.environments.swe.environment import SweEnvironment
from openclaw_rl.rollouts.environments.swe.plugin import SweType, make
from openclaw_rl.rollouts.sandboxes.factory import backend
from openclaw_rl.rollouts.tasks.task import Action, Task
from tests.support.required import left_out

HIDDEN = """
import unittest

from adding import add, scale


class Add(unittest.TestCase):
    def test_sum(self):
        self.assertEqual(add(3, 4), 7)
        self.assertEqual(add(30, 4), 34)

    def test_almost(self):
        self.assertAlmostEqual(add(0.5, 0.25), 0.75)

    def test_refused(self):
        with self.assertRaises(TypeError):
            add(None, 1)

    def test_callback(self):
        calls = []
        self.assertEqual(scale(lambda value: calls.append(value) or 2 * value, 5), 11)
        self.assertEqual(calls, [5])
"""
#: Code of the policy after which `add` and `scale` are still wrong.
WRONG = """

def add(a, b):
    return 0

def scale(function, value):
    return 0
"""
REPORT = '{"passed": ["Add.test_sum", "Add.test_almost"], "failed": {}}'
#: Calls `attack`, with the number of each process that there is.
_EVERYBODY = """
import os, signal
def everybody(attack):
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                attack(int(name))
            except OSError:
                pass
"""

CHEATS = {
    "patched assertions": """
        import unittest
        for name in dir(unittest.TestCase):
            if name.startswith("assert"):
                setattr(unittest.TestCase, name, lambda *args, **named: None)
    """,
    "a patched runner": """
        import sys, types, unittest
        unittest.TestCase.run = lambda self, result=None: result.addSuccess(self)
        unittest.TestResult.addFailure = unittest.TestResult.addError = lambda *args: None
        for name, module in list(sys.modules.items()):
            if "runner" in name or name in ("__main__", "unittest.case"):
                sys.modules[name] = types.ModuleType(name)
    """,
    "sys.exit": "import sys; sys.exit(0)",
    "sys.exit when called": """
        import sys
        def add(a, b): sys.exit(0)
        scale = add
    """,
    "os._exit": """
        import os
        def add(a, b): os._exit(0)
        scale = add
    """,
    "a report at the exit": f"""
        import atexit, os, sys
        def report():
            for fd in range(256):
                try: os.write(fd, {REPORT.encode()!r} + b"\\n")
                except OSError: pass
        atexit.register(report)
        sys.exit(0)
    """,
    "a report to every open file": f"""
        import os
        for fd in range(256):
            try: os.write(fd, {REPORT.encode()!r} + b"\\n")
            except OSError: pass
        os._exit(0)
    """,
    "the secret on the stack": f"""
        import gc, os, re, sys
        words, frame = set(), sys._getframe()
        while frame:
            words.update(v for v in [*frame.f_locals.values(), *frame.f_globals.values()] if isinstance(v, str))
            frame = frame.f_back
        words.update(v for o in gc.get_objects() if isinstance(o, dict) for v in list(o.values()) if type(v) is str)
        for word in words:
            for fd in range(12):
                try: os.write(fd, f"{{word.strip()}} {REPORT}\\n".encode(errors="replace"))
                except OSError: pass
        os._exit(0)
    """,
    "killed parents": f"{_EVERYBODY}\neverybody(lambda pid: os.kill(pid, signal.SIGKILL))",
    "interrupted parents": f"{_EVERYBODY}\neverybody(lambda pid: os.kill(pid, signal.SIGINT))",
    "stopped parents, and a report": f"""{_EVERYBODY}
def report(pid):
    os.kill(pid, signal.SIGSTOP)
    for fd in range(20):
        open(f"/proc/{{pid}}/fd/{{fd}}", "w").write({REPORT!r})
everybody(report)
everybody(lambda pid: os.kill(pid, signal.SIGKILL))
""",
    "the memory of others": f"""{_EVERYBODY}
import re
def patch(pid):
    maps = open(f"/proc/{{pid}}/maps").read()
    with open(f"/proc/{{pid}}/mem", "r+b", 0) as memory:
        for begin, end in re.findall(r"^([0-9a-f]+)-([0-9a-f]+) rw", maps, re.M):
            memory.seek(int(begin, 16))
            data = memory.read(int(end, 16) - int(begin, 16))
            for found in re.finditer(b"assertEqual|addFailure|addError", data):
                memory.seek(int(begin, 16) + found.start())
                memory.write(b"assertTrue "[:len(found[0])])
everybody(patch)
""",
    "a child that outlives all": f"""{_EVERYBODY}
import time
if os.fork() == 0:
    os.setsid()
    def report(pid):
        for fd in range(20):
            try: open(f"/proc/{{pid}}/fd/{{fd}}", "w").write({REPORT!r})
            except OSError: pass
    for _ in range(200):
        everybody(report)
        time.sleep(0.01)
    os._exit(0)
""",
    "changed test files": """
        import os
        for folder, _, names in os.walk("/"):
            for name in names:
                if "hidden" in name or name in ("runner.py", "remote.py", "subject.py"):
                    try: open(os.path.join(folder, name), "w").write("import unittest\\n")
                    except OSError: pass
    """,
    "answers read from the tests": """
        import os, re
        found = {}
        files = [os.path.join(folder, name) for top in ("/tmp", "/work", "/dev/shm")
                 for folder, _, names in os.walk(top) for name in names]
        files += [f"/proc/{pid}/{name}" for pid in os.listdir("/proc") if pid.isdigit() and int(pid) != os.getpid()
                  for name in ("cmdline", "environ", "mem", "fd/0", "fd/3", "fd/4")]
        for name in files:
            try: text = open(name, errors="replace").read(1 << 20)
            except OSError: continue
            found.update(re.findall(r"assert(?:Almost)?Equal\\(add\\((.*)\\), (.*)\\)", text))
        def add(a, b): return eval(found[f"{a}, {b}"])
    """,
    "variables": f"""
        import os, sys
        os.environ.update(PYTHONPATH="{REPO}", PYTHONSTARTUP="{REPO}/sitecustomize.py", PYTHONINSPECT="1",
                          PYTHONOPTIMIZE="2", LD_PRELOAD="{REPO}/x.so")
        sys.flags = sys.path[:] = []
    """,
    "equal to anything": """
        class Yes:
            def __eq__(self, other): return True
            def __ne__(self, other): return False
            def __hash__(self): return 7
            def __sub__(self, other): return 0
            __rsub__ = __abs__ = __round__ = __float__ = lambda self, *args: 0.0
            def __bool__(self): return True
        def add(a, b):
            if a is None: raise TypeError
            return Yes()
    """,
    "a number equal to anything": """
        class Yes(float):
            def __eq__(self, other): return True
            def __ne__(self, other): return False
            __hash__ = float.__hash__
            def __sub__(self, other): return 0.0
            __rsub__ = lambda self, other: 0.0
        def add(a, b):
            if a is None: raise TypeError
            return Yes(99)
    """,
    "a class that lies about itself": """
        class Yes:
            __class__ = int
            def __eq__(self, other): return True
            def __getattribute__(self, name): return lambda *args: True
        def add(a, b): return Yes()
    """,
    "skipped tests": """
        import unittest
        def add(a, b): raise unittest.SkipTest("not today")
        def scale(function, value): raise unittest.SkipTest("not today")
    """,
    "skipped modules": "import unittest\nraise unittest.SkipTest('not today')",
    "an interrupt": """
        def add(a, b): raise KeyboardInterrupt
        scale = add
    """,
    "through the callback": """
        def add(a, b): return 0
        def scale(function, value):
            import gc
            peer = function._Remote__peer
            for target in (function, peer):
                for path in ("__globals__", "__self__", "__closure__", "__code__"):
                    try:
                        found = getattr(target, path)
                        found["unittest"].TestCase.assertEqual = print
                    except Exception: pass
            peer.ask("call", exec, ("import unittest; unittest.TestCase.run = print",), ())
    """,
    "a false answer beside the true one": """
        import os, json
        def add(a, b):
            for fd in range(3, 20):
                try: os.write(fd, b'["ok", true, [], []]\\n' * 3)
                except OSError: pass
            return 0
    """,
    "other files": "",
}
#: Written beside the code by the cheat "other files".
BESIDE = {name: "import unittest\nunittest.TestCase.run = lambda *args: None\nraise SystemExit(0)\n"
          for name in ("conftest.py", "sitecustomize.py", "usercustomize.py", "unittest.py", "json.py", "ctypes.py",
                       "remote.py", "runner.py", "unittest/__init__.py", "test_hidden/__init__.py")}


@pytest.fixture(scope="module")
def kind(tmp_path_factory: pytest.TempPathFactory) -> SweType:
    folder = tmp_path_factory.mktemp("swe")
    config = EnvironmentConfig(count=2, backend="bubblewrap", disk="8MB")
    return make(config, Context("swe", folder, backend(config, folder)))


@pytest.fixture
async def swe(kind: SweType) -> AsyncIterator[SweEnvironment]:
    if rejection := await kind.validate():
        left_out(rejection.message)
    environment = await kind.make()
    await environment.reset(Task("t", "swe", "Repair it.", setup={"files": {"adding.py": WRONG}},
                                 check={"hidden": {"test_hidden.py": HIDDEN}}), None)
    yield environment
    await environment.close()


async def write(swe: SweEnvironment, path: str, content: str) -> None:
    result = await swe.step(Action("write", {"path": path, "content": content}), 20)
    assert not result.error, result.error


@pytest.mark.parametrize("name", CHEATS)
async def test_a_cheat_passes_no_test_that_asks_for_a_value(swe: SweEnvironment, name: str) -> None:
    cheat = dedent(CHEATS[name])
    # The wrong functions are there before, so that a cheat that does nothing is no missing function.
    await write(swe, "adding.py", dedent(WRONG) + "\n" + cheat)
    for path, text in BESIDE.items() if name == "other files" else ():
        await write(swe, path, text)
    outcome = await swe.evaluate()
    # Raising a TypeError where one is due is what is asked for.
    assert outcome.value <= 0.25, outcome
    assert outcome.detail


async def test_what_is_asked_for_passes(swe: SweEnvironment) -> None:
    await write(swe, "adding.py", "def add(a, b):\n    return a + b\n\n\n"
                                  "def scale(function, value):\n    return function(value) + 1\n")
    outcome = await swe.evaluate()
    assert outcome.value == 1, outcome
