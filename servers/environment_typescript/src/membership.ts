/** The mesh that this server belongs to, and the refusal of those of another one. */
import { identity, MESH_KEY, MeshError, named } from "@openclaw-rl/client";

const REMEMBERED_MS = 60_000; // a foreign neighbour and a foreign caller try again every few seconds

export class Membership {
  /** What is told with each answer. */
  readonly headers: Record<string, string>;
  /** Calls of other meshes that were refused. */
  refused = 0;
  private met: { what: string; at: number } | undefined;
  private caller: { what: string; at: number } | undefined;
  private loggedAt = -Infinity;

  /** @param id of the mesh; "" when it was given none. */
  constructor(
    readonly id: string,
    private readonly name: string,
  ) {
    this.headers = id ? identity(id, name) : {};
  }

  /**
   * Refuse a caller of another mesh, and a ring stream that names none where no certificate does.
   *
   * @throws MeshError WRONG_MESH or WRONG_ROLE.
   */
  admit(method: string, headers: Headers, certified: boolean): void {
    const { mesh, component } = named(headers);
    const ring = method === "RecordTurns";
    if (!this.id) {
      if (!ring || certified) return;
      const how = "start it with --mesh or the variable OPENCLAW_RL_MESH (`openclaw-rl mesh id` prints the id)";
      throw this.wrong(mesh, `this environment server was given no mesh, so it takes no turns: ${how}`);
    }
    if (mesh && mesh !== this.id) {
      const caller = component || "a client";
      this.refuse(
        `${caller} of the mesh ${mesh} calls here and is refused: correct the address of ${this.name} in its ` +
          "configuration, or stop it",
      );
      throw this.wrong(
        mesh,
        `${caller} of the mesh ${mesh} calls ${this.name} of the mesh ${this.id}: correct its address of ` +
          `${this.name}; \`openclaw-rl status\` tells the addresses of a mesh. Nothing was taken`,
      );
    }
    if (!ring) return;
    if (!mesh && !certified) {
      throw this.wrong(
        "",
        `RecordTurns is for components of the mesh ${this.id}, and the caller names none: send the metadata ` +
          `${MESH_KEY}: ${this.id} (grpcurl -H), or set OPENCLAW_RL_MESH`,
      );
    }
    if (component && component !== "policy_server") {
      const message = `RecordTurns is for policy_server; the caller says it is ${component}`;
      const metadata = { role: component };
      throw new MeshError({ code: "PERMISSION_DENIED", reason: "WRONG_ROLE", message, metadata });
    }
  }

  /** Take in what ended a stream of ours. */
  note(error: MeshError): void {
    if (error.reason === "WRONG_MESH") this.meet(String(error));
  }

  /** The alarm `wrong_mesh`; "" when there is none. */
  get trouble(): string {
    return this.met && Date.now() - this.met.at < REMEMBERED_MS ? this.met.what : "";
  }

  /** A remark about foreign callers of the last minute, "" without any. It is no alarm: nothing is wrong here. */
  get refusals(): string {
    return this.caller && Date.now() - this.caller.at < REMEMBERED_MS ? this.caller.what : "";
  }

  private refuse(what: string): void {
    const at = Date.now();
    this.refused++;
    this.caller = { what, at };
    if (at - this.loggedAt < REMEMBERED_MS) return;
    this.loggedAt = at;
    console.warn(`${what} (${this.refused} calls of other meshes refused)`);
  }

  private meet(what: string): void {
    this.met = { what, at: Date.now() };
  }

  private wrong(found: string, message: string): MeshError {
    const metadata = { expected: this.id, found };
    return new MeshError({ code: "FAILED_PRECONDITION", reason: "WRONG_MESH", message, metadata });
  }
}
