"""Hidden tests whose code under test is in another process: what crosses, and what does not."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from openclaw_rl.rollouts.environments.swe import runner

RUNNER = Path(runner.__file__)
CODE = '''
import asyncio, collections, contextlib, dataclasses, decimal, enum, json

class Color(enum.Enum):
    RED = 1

class Level(enum.IntEnum):
    LOW = 3

Point = collections.namedtuple("Point", "x y")

class Broken(ValueError):
    def __init__(self, message, names):
        super().__init__(message)
        self.names = names

@dataclasses.dataclass(order=True)
class Money:
    amount: int
    def __add__(self, other):
        return Money(self.amount + other.amount)

class Basket:
    """A basket."""
    limit = 3
    def __init__(self, items=()):
        self.items = list(items)
        self.entries = []
    def add(self, item):
        entry = [item, True]
        self.entries.append(entry)
        return entry
    def cancel(self, entry):
        found = any(entry is other for other in self.entries)
        entry[1] = False
        return found
    def __len__(self):
        return len(self.items)
    def __contains__(self, item):
        return item in self.items
    def __iter__(self):
        return iter(self.items)
    def __getitem__(self, at):
        return self.items[at]
    def __enter__(self):
        return self
    def __exit__(self, kind, value, trace):
        self.error = kind and kind.__name__
        return kind is KeyError

def sort_in_place(values):
    values.sort()
    return values

def fill(table, nested):
    table["new"] = [1]
    nested[0].append(2)

def counted(text, seen=collections.Counter()):
    seen.update(text)
    return seen

def count(text):
    return collections.Counter(text)

def fail(names):
    raise Broken("no way", names)

def parse(text):
    return json.loads(text)

def apply(function, *values, **named):
    return [function(value, **named) for value in values]

def visit(visitor):
    visitor.seen = visitor.seen + 1
    return visitor.name.upper() + str(visitor.twice(4))

def squares():
    n = 0
    while True:
        yield n * n
        n += 1

async def later(value):
    await asyncio.sleep(0)
    return value

def helper():
    return "real"

def uses_helper():
    return helper()

def speak():
    print("hello")
    print(helper(), end="")

def same(value):
    return value
'''
TEST = '''
import asyncio, collections, contextlib, datetime, decimal, fractions, io, itertools, json, pathlib, subprocess, sys
import tempfile, unittest
from unittest import mock

import code_under
from code_under import *
from package.inner import VALUE

class Visitor:
    name = "v"
    def __init__(self):
        self.seen = 0
    def twice(self, n):
        return 2 * n

class Counted(list):
    looks = 0
    def __getitem__(self, at):
        self.looks += 1
        return super().__getitem__(at)

class T(unittest.TestCase):
    def test_values(self):
        for value in (1, 2 ** 200, -1.5, float("inf"), "\\ud800", b"\\0", (1, (2,)), {1, 2}, frozenset("a"), None, 2j,
                      range(3), decimal.Decimal("1.10"), fractions.Fraction(1, 3), datetime.date(2026, 1, 2),
                      datetime.datetime(2026, 1, 2, 3, tzinfo=datetime.timezone.utc), pathlib.Path("a/b"), ...,
                      {"a": [1, {"b": ()}]}, bytearray(b"x"), datetime.timedelta(1), slice(1, 2)):
            self.assertEqual(same(value), value)
            self.assertIs(type(same(value)), type(value))
        self.assertIs(same(int), int)

    def test_containers_keep_their_identity(self):
        values = [3, 1, 2]
        self.assertIs(sort_in_place(values), values)
        self.assertEqual(values, [1, 2, 3])
        table, nested = {}, [[1]]
        inner = nested[0]
        fill(table, nested)
        self.assertEqual((table, nested), ({"new": [1]}, [[1, 2]]))
        self.assertIs(nested[0], inner)
        loop = []
        loop.append(loop)
        self.assertIs(same(loop)[0], loop)

    def test_what_was_given_out_comes_back(self):
        basket = Basket()
        entry = basket.add("a")
        self.assertEqual(entry, ["a", True])
        self.assertTrue(basket.cancel(entry))
        self.assertEqual(entry, ["a", False])
        self.assertFalse(basket.cancel(["a", True]))

    def test_objects(self):
        basket = Basket([1, 2])
        self.assertIsInstance(basket, Basket)
        self.assertEqual(len(basket), 2)
        self.assertIn(2, basket)
        self.assertNotIn(5, basket)
        self.assertEqual(list(basket), [1, 2])
        self.assertEqual([*map(str, basket)], ["1", "2"])
        self.assertEqual(basket[1], 2)
        self.assertEqual(basket.items, [1, 2])
        basket.items = [7]
        self.assertEqual(basket[0], 7)
        self.assertEqual(Basket.limit, 3)
        self.assertFalse(hasattr(basket, "nothing"))
        with self.assertRaises(IndexError):
            basket[5]
        self.assertEqual(Money(3) + Money(4), Money(7))
        self.assertNotEqual(Money(3), Money(4))
        self.assertLess(Money(3), Money(4))
        self.assertEqual(sorted([Money(2), Money(1)])[0].amount, 1)
        self.assertEqual(str(Money(3)), "Money(amount=3)")
        self.assertIs(Color.RED, Color(1))
        self.assertEqual(Color.RED.name, "RED")
        self.assertEqual(Level.LOW, 3)
        self.assertEqual(Level.LOW.name, "LOW")
        self.assertEqual(Point(1, 2), (1, 2))
        self.assertEqual(Point(1, 2).y, 2)
        self.assertEqual(count("aab"), {"a": 2, "b": 1})
        self.assertEqual(counted("a"), {"a": 1})
        self.assertEqual(counted("a"), {"a": 2})
        self.assertEqual({Money.__name__: 1}, {"Money": 1})

    def test_exceptions(self):
        with self.assertRaisesRegex(Broken, "^no way$") as caught:
            fail(["a"])
        self.assertEqual(caught.exception.names, ["a"])
        self.assertIsInstance(caught.exception, ValueError)
        with self.assertRaises(ValueError):
            fail([])
        with self.assertRaises(json.JSONDecodeError):
            parse("{")
        with self.assertRaises(ZeroDivisionError):
            apply(lambda value: 1 // value, 0)
        with Basket() as basket:
            raise KeyError("x")
        self.assertEqual(basket.error, "KeyError")

    def test_callbacks(self):
        self.assertEqual(apply(lambda value, by: value * by, 1, 2, by=3), [3, 6])
        self.assertEqual(apply(len, "a", "bc"), [1, 2])
        visitor = Visitor()
        self.assertEqual(visit(visitor), "V8")
        self.assertEqual(visitor.seen, 1)
        self.assertIs(same(visitor), visitor)
        values = Counted([5, 6])
        self.assertEqual(apply(values.__getitem__, 0, 1), [5, 6])
        self.assertEqual(values.looks, 2)
        double = mock.Mock(return_value=4)
        self.assertEqual(apply(double, 1), [4])
        double.assert_called_once_with(1)

    def test_generators_and_coroutines(self):
        self.assertEqual(list(itertools.islice(squares(), 4)), [0, 1, 4, 9])
        self.assertEqual(asyncio.run(later(5)) if asyncio.iscoroutine(later(5)) else self.wait(later(5)), 5)

    def wait(self, what):
        async def waited():
            return await what
        return asyncio.run(waited())

    def test_patches_of_the_code(self):
        with mock.patch("code_under.helper", lambda: "fake"):
            self.assertEqual(uses_helper(), "fake")
        self.assertEqual(uses_helper(), "real")
        with mock.patch.object(code_under, "helper", return_value="other"):
            self.assertEqual(uses_helper(), "other")

    def test_output(self):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            speak()
        self.assertEqual(out.getvalue(), "hello\\nreal")

    def test_files_and_programs(self):
        with tempfile.NamedTemporaryFile("w+") as file:
            file.write("[1]")
            file.flush()
            self.assertEqual(code_under.json.load(open(file.name)), [1])
        done = subprocess.run([sys.executable, "-c", "import code_under; print(code_under.helper())"],
                              capture_output=True, text=True)
        self.assertEqual(done.stdout, "real\\n")

    def test_packages(self):
        from helpers.more import HELP
        self.assertEqual((VALUE, HELP), (41, 42))

    @unittest.skip("not here")
    def test_skipped(self):
        pass
'''
FILES = {"code_under.py": CODE, "package/__init__.py": "", "package/inner.py": "VALUE = 41\n"}


def run(folder: Path, files: dict[str, str], tests: dict[str, str], helpers: dict[str, str] | None = None) -> Any:
    """The report on these tests, run outside a sandbox."""
    for name, text in {**files, **(helpers or {})}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(textwrap.dedent(text))
    task = {"repository": str(folder), "tests": tests, "helpers": helpers or {}}
    done = subprocess.run([sys.executable, "-I", "-B", str(RUNNER)], input=json.dumps(task) + "\n", text=True,
                          capture_output=True, timeout=100, check=False)
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def test_ordinary_tests_run_as_if_the_code_were_there(tmp_path: Path) -> None:
    report = run(tmp_path, FILES, {"tests/test_it.py": TEST}, {"helpers/more.py": "HELP = 42\n"})
    assert not report["failed"], report
    assert len(report["passed"]) == TEST.count("def test_") - 1


#: What code that was handed something of a test's may not do with it: an expression of `given` that has to fail.
REFUSED = ["given.function.__globals__", "given.function.__code__", "given.function.__self__", "given._secret",
           "given.method.__func__", "given._Remote__peer.ask('get', given, '__init__')",
           "given.case.assertEqual", "setattr(given.case, 'assertEqual', print)", "given.module.sys",
           "given.generator.gi_frame", "setattr(given.function, 'x', 1)", "given.kind.mro",
           "given.function._Remote__peer.ask('get', given.function, '__globals__')",
           "given.function._Remote__peer.ask('call', eval, ('1',), ())",
           "given.function._Remote__peer.ask('import', 'os')"]


@pytest.mark.parametrize("expression", REFUSED)
def test_code_gets_no_further_than_what_it_was_handed(tmp_path: Path, expression: str) -> None:
    test = '''
import sys, unittest
import code_under
class Given:
    _secret = 1
    module = sys
    def method(self):
        return 1
class T(unittest.TestCase):
    def test(self):
        given = Given()
        given.function, given.case, given.generator, given.kind = lambda: 1, self, (i for i in ()), Given
        self.assertEqual(given.function(), 1)
        code_under.attack(given)
        self.assertEqual(1, 2)
'''
    code = f"def attack(given):\n    assert given.function() == given.method() == 1\n    return {expression}\n"
    report = run(tmp_path, {"code_under.py": code}, {"test_it.py": test})
    why = report["failed"]["T.test"]
    assert why.split(":")[0] in ("PermissionError", "AttributeError", "TypeError"), why


@pytest.mark.parametrize("message", [
    b"x\n", b"[]\n", b'["ok"]\n', b'["ok", ["r", -99], [], []]\n', b'["ok", ["v", "nothing", []], [], []]\n',
    b'["ok", ["g", "eval"], [], []]\n', b'["raise", 1, [], []]\n', b'["ok", ["l", 1, 5], [], []]\n', b"[" * 100_000,
    b'["ok", 1, [], [["out", 1, 2]]]\n', b'["ok", ' + b"[" * 50_000 + b"]" * 50_000 + b", [], []]\n", b"\xff\n"])
def test_nonsense_on_the_channel_fails_the_tests(tmp_path: Path, message: bytes) -> None:
    code = f"""
    import os
    def add(a, b):
        for fd in range(3, 30):
            try:
                os.write(fd, {message!r})
            except OSError:
                pass
        os._exit(0)
    """
    test = "import unittest, code_under\nclass T(unittest.TestCase):\n    def test(self):\n" \
           "        self.assertEqual(code_under.add(1, 2), 3)\n"
    report = run(tmp_path, {"code_under.py": code}, {"test_it.py": test})
    assert list(report["failed"]) == ["T.test"]
