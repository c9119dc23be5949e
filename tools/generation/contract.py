"""The contract as its descriptors tell it, with the comments of its .proto files."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from google.protobuf import descriptor_pb2 as pb

PACKAGE = "openclaw_rl.v1"
# Numbers of fields in descriptor.proto: a comment is filed under the path of the element that it stands before.
_PACKAGE, _MESSAGE, _ENUM, _SERVICE, _FIELD = 2, 4, 5, 6, 2


@dataclass(frozen=True)
class Value:
    """A field of a message, or a value of an enum."""

    name: str
    type: str  #: scalar's name, or full name of a message or enum; empty for an enum's value
    label: str  #: "", "optional", "repeated", "map" or "one of NAME"
    number: int
    comment: str
    key: str = ""  #: a map's type of keys


@dataclass(frozen=True)
class Type:
    """A message or an enum."""

    name: str  #: full
    kind: str  #: "message" or "enum"
    file: str  #: base name, such as "policy.proto"
    comment: str
    values: list[Value]


@dataclass(frozen=True)
class Rpc:
    name: str
    comment: str
    request: str  #: full name
    response: str
    streams: tuple[bool, bool]  #: of requests, of responses


@dataclass(frozen=True)
class Service:
    name: str
    file: str
    comment: str
    rpcs: list[Rpc]


class Contract:
    """All of it. `types` by full name, `services` in the files' order."""

    def __init__(self, descriptors: bytes) -> None:
        self.types: dict[str, Type] = {}
        self.services: list[Service] = []
        self.comment = ""  #: of the package
        for file in pb.FileDescriptorSet.FromString(descriptors).file:
            if file.package == PACKAGE:
                self._read(file)

    @classmethod
    def load(cls, path: Path) -> Contract:
        return cls(path.read_bytes())

    def requests_and_responses(self) -> set[str]:
        """Full names of the messages that belong to one RPC each."""
        return {name for service in self.services for rpc in service.rpcs for name in (rpc.request, rpc.response)}

    def _read(self, file: pb.FileDescriptorProto) -> None:
        comments = {tuple(place.path): _text(place.leading_comments) for place in file.source_code_info.location}
        name = Path(file.name).name
        self.comment = self.comment or comments.get((_PACKAGE,), "")
        for i, message in enumerate(file.message_type):
            path = (_MESSAGE, i)
            fields = list(_fields(message, comments, path))
            self._add(Type(f"{PACKAGE}.{message.name}", "message", name, comments.get(path, ""), fields))
        for i, enum in enumerate(file.enum_type):
            path = (_ENUM, i)
            values = [Value(value.name, "", "", value.number, comments.get((*path, _FIELD, k), ""))
                      for k, value in enumerate(enum.value)]
            self._add(Type(f"{PACKAGE}.{enum.name}", "enum", name, comments.get(path, ""), values))
        for i, service in enumerate(file.service):
            path = (_SERVICE, i)
            self.services.append(Service(service.name, name, comments.get(path, ""), [
                Rpc(method.name, comments.get((*path, _FIELD, k), ""), method.input_type[1:], method.output_type[1:],
                    (method.client_streaming, method.server_streaming)) for k, method in enumerate(service.method)]))

    def _add(self, type: Type) -> None:
        self.types[type.name] = type


def _fields(message: pb.DescriptorProto, comments: dict[tuple[int, ...], str],
            path: tuple[int, ...]) -> Iterator[Value]:
    entries = {f"{PACKAGE}.{message.name}.{nested.name}": nested for nested in message.nested_type
               if nested.options.map_entry}
    for k, field in enumerate(message.field):
        comment = comments.get((*path, _FIELD, k), "")
        entry = entries.get(field.type_name[1:])
        if entry is not None:
            yield Value(field.name, _type(entry.field[1]), "map", field.number, comment, _type(entry.field[0]))
            continue
        label = ""
        if field.label == pb.FieldDescriptorProto.LABEL_REPEATED:
            label = "repeated"
        elif field.proto3_optional:
            label = "optional"
        elif field.HasField("oneof_index"):
            label = f"one of {message.oneof_decl[field.oneof_index].name}"
        yield Value(field.name, _type(field), label, field.number, comment)


def _type(field: pb.FieldDescriptorProto) -> str:
    return field.type_name[1:] or pb.FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()


def _text(comment: str) -> str:
    """A comment's paragraphs, each one line, with an empty line between two."""
    paragraphs = "\n".join(line.strip() for line in comment.strip().splitlines()).split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
