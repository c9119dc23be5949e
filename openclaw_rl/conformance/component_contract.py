"""Checks of the server's reflection against the committed contract."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import grpc
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FileDescriptor
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    ServiceDescriptorProto,
)
from grpc_reflection.v1alpha import reflection_pb2

from openclaw_rl.conformance.context import COMPONENT, Context, listed
from openclaw_rl.conformance.frame import check
from openclaw_rl.conformance.services import PACKAGE
from openclaw_rl.rpc.channel import with_true_status

#: The two versions of reflection; their messages are the same on the wire.
_VERSIONS = ("v1", "v1alpha")
_WHERE = "design, Contracts: all four serve server reflection, so that grpcurl works without proto files"


@check("component.reflection", "Reflection lists the service, ComponentService and grpc.health.v1.Health.",
       where=_WHERE)
async def reflection(kit: Context) -> None:
    answer = (await _ask(kit, [reflection_pb2.ServerReflectionRequest(list_services="")]))[0]
    names = {service.name for service in answer.list_services_response.service}
    missing = [name for name in (kit.service.full_name, COMPONENT.full_name, "grpc.health.v1.Health")
               if name not in names]
    kit.expect(not missing, f"not listed: {', '.join(missing)}; listed: {listed(sorted(names))}")


@check("component.reflection.contract", "Services, messages and enums in reflection match the contract; a newer "
                                        "contract may only add to them.", where="protos/openclaw_rl/v1",
       after=["component.reflection"])
async def contract(kit: Context) -> None:
    files = await _files(kit)
    messages = {name: found for file in files.values() for name, found in _messages(file)}
    enums = {name: found for file in files.values() for name, found in _enums(file)}
    services = {f"{file.package}.{service.name}": service for file in files.values() for service in file.service}
    older = _older((await kit.status()).contract_version)
    wrong = [text for descriptor in (kit.service.descriptor, COMPONENT)
             for text in _service(descriptor, services.get(descriptor.full_name), older)]
    for file in {kit.service.file.name: kit.service.file, COMPONENT.file.name: COMPONENT.file}.values():
        for message in _all_messages(file):
            if message.full_name in messages:  # an older one may lack it
                wrong += _message(message, messages[message.full_name], older)
        for enum in file.enum_types_by_name.values():
            if enum.full_name in enums:
                wrong += _enum(enum, enums[enum.full_name], older)
    kit.expect(not wrong, listed(wrong, 4))


def _service(ours: object, theirs: ServiceDescriptorProto | None, older: bool) -> Iterator[str]:
    if theirs is None:
        yield f"{ours.full_name} is not described"  # type: ignore[attr-defined]
        return
    there = {method.name: method for method in theirs.method}
    for method in ours.methods:  # type: ignore[attr-defined]
        name = f"{theirs.name}.{method.name}"
        found = there.get(method.name)
        if found is None:
            if not older:
                yield f"{name} is missing"
            continue
        for what, one, other in (("input", f".{method.input_type.full_name}", found.input_type),
                                 ("output", f".{method.output_type.full_name}", found.output_type),
                                 ("client_streaming", method.client_streaming, found.client_streaming),
                                 ("server_streaming", method.server_streaming, found.server_streaming)):
            if one != other:
                yield f"{name} has {what} {other}, not {one}"


def _message(ours: Descriptor, theirs: DescriptorProto, older: bool) -> Iterator[str]:
    there = {field.number: field for field in theirs.field}
    wanted = DescriptorProto()
    ours.CopyToProto(wanted)
    for field in wanted.field:
        found = there.get(field.number)
        if found is None:
            if not older:
                yield f"{ours.full_name} lacks field {field.number} ({field.name})"
        elif _shape(found) != _shape(field):
            yield f"{ours.full_name} field {field.number} is {_shown(found)}, not {_shown(field)}"


def _enum(ours: EnumDescriptor, theirs: EnumDescriptorProto, older: bool) -> Iterator[str]:
    there = {value.number: value.name for value in theirs.value}
    for value in ours.values:
        found = there.get(value.number)
        if found is None:
            if not older:
                yield f"{ours.full_name} lacks value {value.number} ({value.name})"
        elif found != value.name:
            yield f"{ours.full_name} value {value.number} is {found}, not {value.name}"


def _shape(field: FieldDescriptorProto) -> tuple[str, int, int, str, bool]:
    return field.name, field.type, field.label, field.type_name, field.proto3_optional


def _shown(field: FieldDescriptorProto) -> str:
    kind = field.type_name.lstrip(".") or FieldDescriptorProto.Type.Name(field.type)[5:].lower()
    label = "repeated " if field.label == FieldDescriptorProto.LABEL_REPEATED else ""
    return f"{label}{kind} {field.name}"


def _older(version: str) -> bool:
    """Whether the server was built with an older minor version of the contract than this kit."""
    from openclaw_rl.rpc.contract import CONTRACT_VERSION

    minor = (version or "1.0").partition(".")[2]
    return minor.isdecimal() and int(minor) < int(CONTRACT_VERSION.partition(".")[2])


async def _ask(kit: Context, requests: list[reflection_pb2.ServerReflectionRequest]
               ) -> list[reflection_pb2.ServerReflectionResponse]:
    """Skips the check where there is no reflection."""
    async def each() -> AsyncIterator[reflection_pb2.ServerReflectionRequest]:
        for request in requests:
            yield request

    for version in _VERSIONS:
        call = with_true_status(kit.channel.stream_stream(
            f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
            request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString)(each(), timeout=kit.deadline))
        try:
            return [answer async for answer in call]
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
                raise
    kit.skip("there is no reflection, which not every language has")


async def _files(kit: Context) -> dict[str, FileDescriptorProto]:
    """Descriptions of all files of the package that the services need, by name."""
    files: dict[str, FileDescriptorProto] = {}
    asked: set[str] = set()
    requests = [reflection_pb2.ServerReflectionRequest(file_containing_symbol=name)
                for name in (kit.service.full_name, COMPONENT.full_name)]
    while requests:
        for answer in await _ask(kit, requests):
            for raw in answer.file_descriptor_response.file_descriptor_proto:
                file = FileDescriptorProto.FromString(raw)
                files[file.name] = file
        wanted = {name for file in files.values() for name in file.dependency
                  if name.startswith(PACKAGE.replace(".", "/"))} - files.keys() - asked
        asked |= wanted
        requests = [reflection_pb2.ServerReflectionRequest(file_by_filename=name) for name in sorted(wanted)]
    return files


def _messages(file: FileDescriptorProto) -> Iterator[tuple[str, DescriptorProto]]:
    for message in file.message_type:
        yield f"{file.package}.{message.name}", message


def _enums(file: FileDescriptorProto) -> Iterator[tuple[str, EnumDescriptorProto]]:
    for enum in file.enum_type:
        yield f"{file.package}.{enum.name}", enum


def _all_messages(file: FileDescriptor) -> Iterator[Descriptor]:
    """Those of a file and of the package's files that it imports."""
    for one in (file, *(other for other in file.dependencies if other.package == PACKAGE)):
        yield from one.message_types_by_name.values()
