import type { Interceptor } from "@connectrpc/connect";
import { MeshError } from "./errors.js";

/** Metadata of calls and of response headers: the id of the mesh, and the component's name. */
export const MESH_KEY = "openclaw-mesh";
export const COMPONENT_KEY = "openclaw-component";
/** Variable with the id of the mesh, for clients without the option `mesh`. */
export const MESH_VARIABLE = "OPENCLAW_RL_MESH";

/** The mesh and the component that headers name; "" where they name none. */
export function named(headers: Headers): { mesh: string; component: string } {
  const first = (key: string): string => (headers.get(key) ?? "").slice(0, 80);
  return { mesh: first(MESH_KEY), component: first(COMPONENT_KEY) };
}

/** Headers that name a mesh and a component; "" leaves one out. */
export function identity(mesh: string, component: string): Record<string, string> {
  return { ...(mesh && { [MESH_KEY]: mesh }), ...(component && { [COMPONENT_KEY]: component }) };
}

/** Names the mesh in each call, and takes no answer of another one. One of contract 1.0 names none, and passes. */
export function identified(mesh: string, component: string): Interceptor {
  const ours = Object.entries(identity(mesh, component));
  return (next) => async (request) => {
    for (const [key, value] of ours) request.header.set(key, value);
    const held = request.stream && request.method.methodKind === "bidi_streaming";
    let decide!: (ours: boolean) => void;
    const decided = new Promise<boolean>((resolve) => (decide = resolve)); // whether what answers is of the mesh
    try {
      const response = await next(held ? { ...request, message: behind(decided, request.message) } : request);
      const there = named(response.header);
      if (there.mesh && there.mesh !== mesh) throw foreign(mesh, there.mesh, there.component);
      decide(true);
      return response;
    } finally {
      decide(false);
    }
  };
}

/** The messages, once it is sure who gets them. */
async function* behind<T>(sure: Promise<boolean>, messages: AsyncIterable<T>): AsyncGenerator<T, void> {
  if (await sure) yield* messages;
}

function foreign(expected: string, found: string, component: string): MeshError {
  return new MeshError({
    code: "FAILED_PRECONDITION",
    reason: "WRONG_MESH",
    message: `${component || "the component"} there is of the mesh ${found}, and ${expected} is expected`,
    advice: "Correct the address, or the option `mesh`; `openclaw-rl mesh id` prints the id of a mesh",
    metadata: { expected, found },
  });
}
