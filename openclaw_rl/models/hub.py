"""Models of the Hugging Face hub, by their id such as Qwen/Qwen2.5-0.5B-Instruct.

huggingface_hub downloads them: its variables hold (HF_TOKEN, HF_ENDPOINT for a mirror, HF_HUB_OFFLINE, proxies), and an
interrupted download is resumed.
"""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from openclaw_rl.models.config import ModelConfig, ModelError

logger = logging.getLogger(__name__)

_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
_SMALL = ["*.json", "*.jinja"]  #: configuration, tokenizer, chat template
_WEIGHTS = ["*.safetensors"]
#: Of repositories that hold the weights several times: other formats, and parts for other programs.
_NOT = ["onnx/*", "original/*", "consolidated*", "*/*"]


def is_hub_id(model: str) -> bool:
    """Whether a name has the form of a hub's id, ORGANISATION/NAME, and no such folder is here."""
    return bool(_ID.fullmatch(model)) and not Path(model).exists()


def hub_folder(model: str, models: Path) -> Path:
    """Return the folder in `models` that takes a hub's model."""
    return models / model.replace("/", "--")


def download(model: str, folder: Path, report: Callable[[str, float], None]) -> None:
    """Download a model's files into `folder`, or what is missing of them; the configuration first, so that a model that
    can't be served is refused before its weights come.

    Args:
        report: called with the work and its progress, from 0 to 1.

    Raises:
        ModelError: there is no such model, it may not be read, the hub can't be reached, it does not fit on the disk,
            or it is of a family that is not served; the text says what to do.
    """
    import httpx
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError

    def fetch(patterns: list[str], **options: Any) -> Any:
        return snapshot_download(model, local_dir=folder, allow_patterns=patterns, ignore_patterns=_NOT, **options)

    token = "set HF_TOKEN to a token that may read it"
    try:
        report(f"Downloading {model}", 0.0)
        fetch(_SMALL, tqdm_class=_bar(lambda _share: None))
        ModelConfig.read(folder)
        _check_room(model, folder, fetch(_WEIGHTS, dry_run=True, tqdm_class=_bar(lambda _share: None)))
        fetch(_WEIGHTS, tqdm_class=_bar(lambda share: report(f"Downloading {model}", share)))
    except GatedRepoError:
        raise ModelError(f"model: {model} wants its terms accepted on its page, and then {token}") from None
    except RepositoryNotFoundError:
        raise ModelError(f"model: the hub has no {model}; if it is private, {token}") from None
    except LocalEntryNotFoundError as error:
        raise ModelError(f"model: {model} is not here and the hub can't be reached ({_line(error)}); HF_ENDPOINT names "
                         f"a mirror, or put the model's files into {folder}") from None
    except (httpx.HTTPError, OSError) as error:
        raise ModelError(f"model: the download of {model} broke off ({_line(error)}); the next start resumes it"
                         ) from None


def _check_room(model: str, folder: Path, files: Any) -> None:
    if not files:
        raise ModelError(f"model: {model} has no safetensors; allowed: a repository with config.json, a tokenizer and "
                         "*.safetensors (GGUF and PyTorch files are not read)")
    size = sum(file.file_size for file in files if file.will_download)
    free = shutil.disk_usage(folder).free
    if size > free:
        raise ModelError(f"model: {model} takes {size / 1e9:.1f} GB and {folder} has {free / 1e9:.1f} GB left")


def _bar(report: Callable[[float], None]) -> type[Any]:
    """A progress bar that is not drawn; of those that huggingface_hub makes, the one that counts bytes is reported."""
    from tqdm import tqdm

    class Bar(tqdm):  # type: ignore[type-arg, misc]
        def __init__(self, *args: Any, **options: Any) -> None:
            options.pop("name", None)
            super().__init__(*args, **{**options, "file": _NOWHERE, "disable": False})

        def update(self, n: float | None = 1) -> bool | None:
            drawn = super().update(n)
            if self.unit == "B" and self.total and str(self.desc).startswith("Reconstructing"):
                report(min(self.n / self.total, 1.0))
            return drawn

    return Bar


class _Nowhere:
    def write(self, _: str) -> None: ...

    def flush(self) -> None: ...


_NOWHERE = _Nowhere()


def _line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
