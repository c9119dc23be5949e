/** grpc.reflection.v1 out of the generated descriptors, so that grpcurl works without proto files. */
import { toBinary, type DescFile, type DescService, type MessageInitShape } from "@bufbuild/protobuf";
import { FileDescriptorProtoSchema } from "@bufbuild/protobuf/wkt";
import type { ServiceImpl } from "@connectrpc/connect";
import { ServerReflection, type ServerReflectionResponseSchema } from "@openclaw-rl/client/grpc";

type Answer = NonNullable<MessageInitShape<typeof ServerReflectionResponseSchema>["messageResponse"]>;

const NOT_FOUND: Answer = {
  case: "errorResponse",
  value: { errorCode: 5, errorMessage: "there is no such name here" },
};

/** @param services that are told; their files and all that these import are given out. */
export function reflection(services: DescService[]): Partial<ServiceImpl<typeof ServerReflection>> {
  const files = new Map<string, DescFile>(); // by path
  const symbols = new Map<string, DescFile>(); // by full name
  const learn = (file: DescFile): void => {
    if (files.has(file.proto.name)) return;
    files.set(file.proto.name, file);
    const nested = (message: DescFile["messages"][number]): void => {
      for (const one of [message, ...message.nestedEnums]) symbols.set(one.typeName, file);
      message.nestedMessages.forEach(nested);
    };
    file.messages.forEach(nested);
    for (const { typeName } of [...file.enums, ...file.services]) symbols.set(typeName, file);
    file.services.forEach(({ typeName, methods }) =>
      methods.forEach(({ name }) => symbols.set(`${typeName}.${name}`, file)),
    );
    file.dependencies.forEach(learn);
  };
  services.forEach(({ file }) => learn(file));

  const told = (file: DescFile | undefined): Answer => {
    if (!file) return NOT_FOUND;
    const needed = new Set<DescFile>(); // with all imports, so that one answer is enough
    const collect = (one: DescFile): void => {
      if (needed.has(one)) return;
      needed.add(one);
      one.dependencies.forEach(collect);
    };
    collect(file);
    const fileDescriptorProto = [...needed].map(({ proto }) => toBinary(FileDescriptorProtoSchema, proto));
    return { case: "fileDescriptorResponse", value: { fileDescriptorProto } };
  };

  return {
    serverReflectionInfo: async function* (requests) {
      for await (const originalRequest of requests) {
        const { case: kind, value } = originalRequest.messageRequest;
        let messageResponse = NOT_FOUND;
        if (kind === "listServices") {
          messageResponse = {
            case: "listServicesResponse",
            value: { service: services.map(({ typeName }) => ({ name: typeName })) },
          };
        } else if (kind === "fileByFilename") messageResponse = told(files.get(value));
        else if (kind === "fileContainingSymbol") messageResponse = told(symbols.get(value));
        yield { validHost: originalRequest.host, originalRequest, messageResponse };
      }
    },
  };
}
