/** This server's errors, after the mesh's catalogue. */
import { MeshError } from "@openclaw-rl/client";

export const shown = (id: string): string => JSON.stringify(id.length <= 80 ? id : `${id.slice(0, 77)}...`);

export function notFound(what: string, id: string, hint: string): MeshError {
  return new MeshError({ code: "NOT_FOUND", message: `there is no ${what} ${shown(id)}; ${hint}`, metadata: { id } });
}

export function unavailable(message: string, retryAfter = 1): MeshError {
  return new MeshError({ code: "UNAVAILABLE", message, retryAfter });
}

export function exhausted(message: string, retryAfter = 1): MeshError {
  return new MeshError({ code: "RESOURCE_EXHAUSTED", message, retryAfter });
}

export function precondition(reason: string, message: string): MeshError {
  return new MeshError({ code: "FAILED_PRECONDITION", reason, message });
}

export function unimplemented(what: string): MeshError {
  return new MeshError({ code: "UNIMPLEMENTED", message: `${what} is not done by this environment server` });
}
