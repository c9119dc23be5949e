"""Nothing of the package makes objects, or code, of bytes from the network or from a file that others could write."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import openclaw_rl

PACKAGE = Path(openclaw_rl.__file__).parent
SERVERS = PACKAGE.parent / "servers"

#: What makes objects of bytes in a way that can run code in them: a full name, or all of a module's names.
DANGEROUS = {
    "pickle.load", "pickle.loads", "pickle.Unpickler", "_pickle", "cPickle", "dill", "cloudpickle", "joblib.load",
    "marshal.load", "marshal.loads", "shelve", "torch.load", "torch.distributed.checkpoint",
    "megatron.core.dist_checkpointing",
    "torch.serialization.load", "numpy.load", "pandas.read_pickle",
    "yaml.load", "yaml.load_all", "yaml.full_load", "yaml.unsafe_load", "yaml.unsafe_load_all", "yaml.UnsafeLoader",
    "multiprocessing.connection", "multiprocessing.managers", "logging.config.listen", "jsonpickle",
    "torch.distributed.broadcast_object_list", "torch.distributed.all_gather_object",
    "torch.distributed.gather_object", "torch.distributed.scatter_object_list",
    "torch.distributed.send_object_list", "torch.distributed.recv_object_list",
    "eval", "exec", "builtins.eval", "builtins.exec",
}
#: Where it is all right, and why. A name stands for all that are in it.
ALLOWED = {
    ("config/load.py", "yaml.load"): "with a loader of our own, which is a SafeLoader",
    ("training/backends/megatron/metadata.py", "pickle.Unpickler"): "it takes the format's own classes only",
    ("training/backends/megatron/metadata.py", "torch.distributed.checkpoint.filesystem"): "to put that in front of it",
    ("training/backends/megatron/dist.py", "torch.distributed.checkpoint.api.CheckpointException"):
        "the class of an error",
    ("training/backends/megatron/dist.py", "megatron.core.dist_checkpointing"):
        "only checkpoints of this trainer's own, whose digests were compared before",
    ("reward/judges/classifier/network.py", "numpy.load"): "with allow_pickle=False, of a file of the package",
}


def names(tree: ast.AST) -> dict[str, str]:
    """What each imported name stands for."""
    known = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                known[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0])
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            known |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return known


def dotted(node: ast.AST, known: dict[str, str]) -> str:
    """The full name of an expression such as np.load, "" for another one."""
    if isinstance(node, ast.Name):
        return known.get(node.id, node.id)
    if isinstance(node, ast.Attribute) and (of := dotted(node.value, known)):
        return f"{of}.{node.attr}"
    return ""


def found(source: str) -> set[str]:
    """The dangerous names that a module uses."""
    tree = ast.parse(source)
    known = names(tree)
    used = {dotted(node, known) for node in ast.walk(tree) if isinstance(node, ast.Name | ast.Attribute)}
    used |= {full for full in known.values()}
    return {name for name in used for bad in DANGEROUS if name == bad or name.startswith(f"{bad}.")}


def modules() -> Iterator[tuple[str, Path]]:
    for root in (PACKAGE, SERVERS):
        for file in sorted(root.rglob("*.py")):
            yield str(file.relative_to(root)), file


def test_the_package_unpickles_nothing() -> None:
    bad = {(where, name) for where, file in modules() for name in found(file.read_text())}
    used = {(where, name): [(w, n) for w, n in ALLOWED if where == w and f"{name}.".startswith(f"{n}.")]
            for where, name in bad}
    assert [use for use, allowed in used.items() if not allowed] == [], "say in ALLOWED why, or do without"
    assert {one for allowed in used.values() for one in allowed} == set(ALLOWED), "an exception that nobody needs"


@pytest.mark.parametrize("source", [
    "import torch\ntorch.load(f)", "import numpy as np\nnp.load(f, allow_pickle=True)", "from pickle import loads",
    "import pickle as p\np.Unpickler(f).load()", "def f():\n    from torch import load as g\n    g(x)", "eval(x)",
    "import torch.distributed as dist\ndist.all_gather_object(a, b)", "import shelve", "import cloudpickle\n",
    "import yaml\nyaml.unsafe_load(x)", "import yaml\nyaml.load(x)"])
def test_it_would_be_found(source: str) -> None:
    assert found(source)


def test_what_is_harmless_is_not() -> None:
    assert not found("import json, yaml, pickle\njson.loads(x); yaml.safe_load(x); pickle.dumps(x); model.eval()")
