"""The folder of an exported version: its description, and the adapter in the form of peft."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.json_format import MessageToDict, ParseDict, ParseError

from openclaw_rl.runtime.json import parse_json
from openclaw_rl.v1.weights_pb2 import TensorSpec, VersionManifest
from openclaw_rl.weights.format.digest import manifest_digest, tensor_digest
from openclaw_rl.weights.format.safetensors import CorruptFile, Tensors, read_folder, specs_from_json, specs_to_json

DESCRIPTION = "openclaw_rl.json"
ADAPTER = "adapter"
_ADAPTER_FILE = "adapter_model.safetensors"
_FORMAT = 1
_PREFIX = "base_model.model."  #: of peft's names


class PortableError(Exception):
    """A version can't be exported or imported; the text says why, and what to do."""


@dataclass(frozen=True)
class Description:
    """What the folder says of the version."""

    manifest: VersionManifest  #: with the turns of its whole lineage; its parent is the base model
    tensors: list[TensorSpec]
    mesh: str  #: id of the mesh that made it
    lineage: list[int]  #: versions that it was made from, newest first, itself among them

    def write(self, folder: Path) -> None:
        """Write the description."""
        (folder / DESCRIPTION).write_text(json.dumps({
            "format": _FORMAT, "mesh": self.mesh, "lineage": self.lineage,
            "manifest": MessageToDict(self.manifest, preserving_proto_field_name=True),
            "tensors": specs_to_json(self.tensors)}, indent=1))

    @classmethod
    def read(cls, folder: Path) -> Description:
        """Read the description, and compare the weights with it, which takes about a second per GB.

        Raises:
            PortableError: it was not exported by us, by a newer release, or is damaged.
        """
        file = folder / DESCRIPTION
        try:
            data = parse_json(file.read_bytes())
            if data["format"] > _FORMAT:
                raise PortableError(f"{file} was written by a newer release of openclaw-rl; install that one")
            found = cls(ParseDict(data["manifest"], VersionManifest()), specs_from_json(data["tensors"]),
                        str(data["mesh"]), [int(number) for number in data["lineage"]])
        except FileNotFoundError:
            raise PortableError(f"{folder} has no {DESCRIPTION}: a folder is needed that `openclaw-rl versions export` "
                                "wrote") from None
        except (ValueError, TypeError, KeyError, AttributeError, ParseError, OSError) as error:
            raise PortableError(f"{file} is damaged: {error}") from None
        found._check_weights(folder)
        return found

    def _check_weights(self, folder: Path) -> None:
        try:
            tensors = Tensors(read_folder(folder))
            there = {name: (place.dtype, tuple(place.shape)) for name, place in tensors.places.items()}
            said = {spec.name: (spec.dtype, tuple(spec.shape)) for spec in self.tensors}
            if there != said or manifest_digest(self.tensors) != self.manifest.digest:
                raise PortableError(f"{folder}: model.safetensors and {DESCRIPTION} do not belong together")
            for spec in self.tensors:
                if tensor_digest(tensors[spec.name]) != spec.sha256:
                    raise PortableError(f"{folder}: tensor {spec.name} is not what was exported")
        except (CorruptFile, OSError) as error:
            raise PortableError(f"{folder}: the weights can't be read: {error}") from None


def write_adapter(checkpoint: Path, folder: Path, base_model: str) -> None:
    """Write the adapter of a checkpoint as peft's PeftModel.from_pretrained reads it.

    Args:
        checkpoint: its weights.safetensors.
        folder: is made.
        base_model: name or folder of the base model.
    """
    from safetensors.torch import load_file, save_file

    tensors = load_file(checkpoint)
    rank = next(tensor.shape[0] for name, tensor in tensors.items() if ".lora_A." in name)
    modules = sorted({name.split(".lora_")[0].rpartition(".")[2] for name in tensors})
    folder.mkdir(mode=0o700)
    save_file({_PREFIX + name.replace(".default.", "."): tensor for name, tensor in tensors.items()},
              folder / _ADAPTER_FILE, {"format": "pt"})
    (folder / "adapter_config.json").write_text(json.dumps({
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": base_model, "bias": "none",
        "r": rank, "lora_alpha": 2 * rank, "lora_dropout": 0.0, "target_modules": modules, "inference_mode": True},
        indent=2))


def read_adapter(folder: Path, checkpoint: Path) -> None:
    """Write a checkpoint's weights.safetensors from an exported adapter.

    Raises:
        OSError, ValueError: it is missing or no adapter.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file, save_file

    try:
        tensors = load_file(folder / _ADAPTER_FILE)
    except SafetensorError as error:
        raise ValueError(f"{folder / _ADAPTER_FILE}: {error}") from error
    save_file({re.sub(r"\.(lora_[AB])\.", r".\1.default.", name.removeprefix(_PREFIX)): tensor
               for name, tensor in tensors.items()}, checkpoint)
