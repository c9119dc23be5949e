"""What is generated: where it is committed, and how it is made."""
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tools.generation.pinned import environment

ROOT = Path(__file__).resolve().parents[2]
PROTOS = ROOT / "protos"
#: In the package, whose reflection serves it.
DESCRIPTOR_SET = "openclaw_rl.v1.binpb"
GO, TYPESCRIPT, RUST = (ROOT / "clients" / name for name in ("go", "typescript", "rust"))


class Missing(Exception):
    """A tool chain that isn't there; the text says how to get it."""


@dataclass(frozen=True)
class Target:
    """One thing that is generated.

    Attributes:
        folder: where it is committed.
        patterns: globs of the files of that folder that are generated.
        make: writes them into an empty folder.
    """

    folder: Path
    patterns: tuple[str, ...]
    make: Callable[[Path], None]


def run(*command: str | Path, env: Mapping[str, str] | None = None, cwd: Path = ROOT) -> None:
    """Run a generator.

    Raises:
        SystemExit: it failed; with what it said.
    """
    done = subprocess.run(command, cwd=cwd, env={**os.environ, **(env or {})}, capture_output=True, text=True,
                          check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stdout}{done.stderr}")


def need(program: str, what: str) -> None:
    """Check that a program is there.

    Raises:
        Missing: it isn't.
    """
    if shutil.which(program) is None:
        raise Missing(f"{program} is missing: install {what}")


def buf_generate(out: Path, plugins: list[dict[str, object]]) -> None:
    """Run plugins on the contract's files; google/* is in a package of each language."""
    template = {"version": "v2", "plugins": [{"out": str(out), **plugin} for plugin in plugins]}
    run(environment() / "buf", "generate", "protos", "--path", "protos/openclaw_rl", "--template", json.dumps(template))


def python(out: Path) -> None:
    bin_dir = environment()
    run(bin_dir / "python", "-m", "grpc_tools.protoc", f"-I{PROTOS}", f"-I{PROTOS / 'third_party'}",
        f"--python_out={out}", f"--grpc_python_out={out}", f"--mypy_out={out}", f"--mypy_grpc_out={out}",
        *sorted(PROTOS.glob("openclaw_rl/v1/*.proto")), env={"PATH": f"{bin_dir}:{os.environ['PATH']}"})
    package = out / "openclaw_rl/v1"
    for file in package.iterdir():
        file.rename(out / file.name)
    package.rmdir()
    package.parent.rmdir()
    (out / "__init__.py").write_text(
        '"""Generated from protos/openclaw_rl/v1 by tools/generate (grpcio-tools 1.81.1). Do not edit."""\n')


def go(out: Path) -> None:
    need("go", "Go 1.25 or newer")
    buf_generate(out, [{"local": ["go", "-C", str(GO), "tool", plugin],
                        "opt": ["module=github.com/openclaw-rl/openclaw-rl/clients/go/gen"]}
                       for plugin in ("protoc-gen-go", "protoc-gen-go-grpc")])


def typescript(out: Path) -> None:
    need("npm", "Node.js 20 or newer")
    if not (TYPESCRIPT / "node_modules/.bin/protoc-gen-es").exists():
        run("npm", "ci", cwd=TYPESCRIPT)
    with tempfile.TemporaryDirectory() as tmp:
        # Its own template has the options; its `out`, src/gen, lies below -o.
        for protos in (PROTOS, TYPESCRIPT / "protos"):
            run(environment() / "buf", "generate", protos, "--template", "buf.gen.yaml", "-o", tmp, cwd=TYPESCRIPT)
        shutil.copytree(Path(tmp) / "src/gen", out, dirs_exist_ok=True)


def rust(out: Path) -> None:
    need("cargo", "Rust 1.88 or newer (rustup.rs)")
    run("cargo", "run", "--quiet", "--locked", "--manifest-path", RUST / "generate/Cargo.toml", "--", out)


def descriptors(out: Path) -> None:
    run(environment() / "buf", "build", "protos", "--path", "protos/openclaw_rl", "--as-file-descriptor-set", "-o",
        out / DESCRIPTOR_SET)


def reference(out: Path) -> None:
    descriptors(out)
    run(environment() / "python", "-m", "generation.reference", out / DESCRIPTOR_SET, out,
        env={"PYTHONPATH": f"{ROOT / 'tools'}:{ROOT}"})
    (out / DESCRIPTOR_SET).unlink()


TARGETS = {
    "python": Target(ROOT / "openclaw_rl/v1", ("*.py", "*.pyi"), python),
    "go": Target(GO / "gen", ("**/*.go",), go),
    "typescript": Target(TYPESCRIPT / "src/gen", ("**/*.ts",), typescript),
    "rust": Target(RUST / "src/gen", ("**/*",), rust),
    "descriptors": Target(ROOT / "openclaw_rl/v1", ("*.binpb",), descriptors),
    "reference": Target(PROTOS / "reference", ("*.md",), reference),
}
