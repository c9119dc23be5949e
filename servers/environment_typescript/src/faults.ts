/** This server's errors, after the mesh's catalogue. */
import { MeshError } from "@openclaw-rl/client";

const FULL = 13;
const OF_THE_FILE = [5, 7, 8, 10, 11, 13, 14, 26]; // BUSY, NOMEM, READONLY, IOERR, CORRUPT, FULL, CANTOPEN, NOTADB

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

/** What an error of SQLite means when the disk or the file is at fault, and not what was to be written. */
export function ofTheStore(error: unknown): MeshError | undefined {
  const { code, errcode = 0, message } = error as { code?: unknown; errcode?: number; message: string };
  const kind = errcode & 0xff;
  if (code !== "ERR_SQLITE_ERROR" || !OF_THE_FILE.includes(kind)) return undefined;
  if (kind !== FULL)
    return new MeshError({ code: "INTERNAL", reason: "STORE_UNUSABLE", message: `state.db: ${message}` });
  const full = "the disk is full; free some space, the call is then worth repeating";
  return new MeshError({ code: "RESOURCE_EXHAUSTED", reason: "DISK_FULL", message: full, retryAfter: 5 });
}
