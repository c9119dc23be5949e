"""Server reflection, v1 and v1alpha, with the comments of the contract.

grpcio-reflection serves v1alpha only, resolves no methods, and has no comments, which the generated code leaves out.
Its messages are used here; v1 has the same ones under another package.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from importlib import resources
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, text_format
from grpc_reflection.v1alpha import reflection_pb2 as pb

#: Name of the generated descriptor set in the package `openclaw_rl.v1`.
DESCRIPTOR_SET = "openclaw_rl.v1.binpb"
#: Full names of the services.
SERVICE_NAMES = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")


def add_reflection(service_names: Sequence[str], server: Any) -> None:
    """Serve reflection; `service_names` are the full names of all other services of `server`, a `grpc.aio.Server`."""
    reflection = Reflection((*service_names, *SERVICE_NAMES))
    for name in SERVICE_NAMES:
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(name, {
            "ServerReflectionInfo": grpc.stream_stream_rpc_method_handler(
                reflection.info, pb.ServerReflectionRequest.FromString,
                pb.ServerReflectionResponse.SerializeToString)})])


class Reflection:
    """The service, in both versions.

    Args:
        service_names: full names to list.
    """

    def __init__(self, service_names: Sequence[str]) -> None:
        self._names = sorted(service_names)
        self._pools = (descriptor_pool.Default(), _v1_pool())

    async def info(self, requests: AsyncIterator[pb.ServerReflectionRequest],
                   context: grpc.aio.ServicerContext) -> AsyncIterator[pb.ServerReflectionResponse]:
        """ServerReflectionInfo."""
        async for request in requests:
            response = pb.ServerReflectionResponse(valid_host=request.host, original_request=request)
            try:
                self._respond(request, response)
            except KeyError:
                response.error_response.error_code = grpc.StatusCode.NOT_FOUND.value[0]
                response.error_response.error_message = "there is no such file, symbol or extension"
            yield response

    def _respond(self, request: pb.ServerReflectionRequest, response: pb.ServerReflectionResponse) -> None:
        """Fill in the response.

        Raises:
            KeyError: what is asked for does not exist.
        """
        kind = request.WhichOneof("message_request")
        if kind == "list_services":
            for name in self._names:
                response.list_services_response.service.add(name=name)
        elif kind == "file_by_filename":
            self._add_files(response, self._find(lambda pool: pool.FindFileByName(request.file_by_filename)))
        elif kind == "file_containing_symbol":
            self._add_files(response, self._find(lambda pool: _file_of(pool, request.file_containing_symbol)))
        elif kind == "file_containing_extension":
            wanted = request.file_containing_extension
            self._add_files(response, self._find(lambda pool: pool.FindExtensionByNumber(
                pool.FindMessageTypeByName(wanted.containing_type), wanted.extension_number).file))
        elif kind == "all_extension_numbers_of_type":
            extended = request.all_extension_numbers_of_type
            numbers = self._find(lambda pool: sorted(extension.number for extension in pool.FindAllExtensions(
                pool.FindMessageTypeByName(extended))))
            response.all_extension_numbers_response.base_type_name = extended
            response.all_extension_numbers_response.extension_number.extend(numbers)
        else:
            response.error_response.error_code = grpc.StatusCode.INVALID_ARGUMENT.value[0]
            response.error_response.error_message = "the request asks for nothing that this server knows"

    def _find(self, look: Callable[[Any], Any]) -> Any:
        """Look in each pool; raises KeyError."""
        for pool in self._pools[:-1]:
            try:
                return look(pool)
            except KeyError:
                pass
        return look(self._pools[-1])

    @staticmethod
    def _add_files(response: pb.ServerReflectionResponse, file: Any) -> None:
        commented = _commented()
        for each in _with_dependencies(file, set()):
            content = commented.get(each.name) or each.serialized_pb
            response.file_descriptor_response.file_descriptor_proto.append(content)


def _file_of(pool: Any, symbol: str) -> Any:
    """The file that declares a symbol: for methods, that of their service. Raises KeyError."""
    try:
        return pool.FindFileContainingSymbol(symbol)
    except KeyError:
        service, _, method = symbol.rpartition(".")
        return pool.FindServiceByName(service).methods_by_name[method].containing_service.file


def _with_dependencies(file: Any, seen: set[str]) -> Iterator[Any]:
    """A file, then those that it imports, each once."""
    seen.add(file.name)
    yield file
    for dependency in file.dependencies:
        if dependency.name not in seen:
            yield from _with_dependencies(dependency, seen)


@functools.cache
def _commented() -> dict[str, bytes]:
    """The contract's files by name, with their comments."""
    content = resources.files("openclaw_rl.v1").joinpath(DESCRIPTOR_SET).read_bytes()
    return {file.name: file.SerializeToString() for file in descriptor_pb2.FileDescriptorSet.FromString(content).file}


@functools.cache
def _v1_pool() -> Any:
    """A pool with the file of reflection v1, made from that of v1alpha."""
    file = descriptor_pb2.FileDescriptorProto()
    pb.DESCRIPTOR.CopyToProto(file)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(text_format.Parse(text_format.MessageToString(file).replace("v1alpha", "v1"),
                               descriptor_pb2.FileDescriptorProto()))
    return pool
