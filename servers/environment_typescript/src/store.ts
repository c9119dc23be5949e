import { mkdirSync } from "node:fs";
import { createHash } from "node:crypto";
import { DatabaseSync } from "@photostructure/sqlite";
import { BadOptions } from "./options.js";
import type { Ack } from "@openclaw-rl/client/v1";
import { AckStatus } from "@openclaw-rl/client/v1";
import type { Outbox, OutboxEntry } from "@openclaw-rl/client";

/** Ids remembered of what was taken: a message comes again only while its sender lacks the acknowledgement. */
const KEEP_IDS = 200_000;

const SCHEMA = `
  CREATE TABLE IF NOT EXISTS inbox (seq INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, content TEXT NOT NULL);
  CREATE TABLE IF NOT EXISTS outbox (seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE,
    session TEXT NOT NULL, at REAL NOT NULL, payload BLOB NOT NULL);
  CREATE TABLE IF NOT EXISTS rejected (seq INTEGER PRIMARY KEY, id TEXT NOT NULL, session TEXT NOT NULL,
    reason TEXT NOT NULL, payload BLOB NOT NULL);
  CREATE TABLE IF NOT EXISTS sessions (id TEXT PRIMARY KEY, started REAL NOT NULL, active REAL NOT NULL,
    ended INTEGER NOT NULL DEFAULT 0);
  CREATE TABLE IF NOT EXISTS turns (seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE,
    session TEXT NOT NULL, client TEXT NOT NULL, branch TEXT NOT NULL, parent TEXT NOT NULL, class INTEGER NOT NULL,
    rule TEXT NOT NULL, version INTEGER NOT NULL, state INTEGER NOT NULL, reason TEXT NOT NULL,
    requested REAL NOT NULL, choice INTEGER NOT NULL, finished REAL NOT NULL, request TEXT NOT NULL,
    response TEXT NOT NULL, request_text TEXT NOT NULL, response_text TEXT NOT NULL, flaw TEXT NOT NULL, payload BLOB);
  CREATE INDEX IF NOT EXISTS turns_by_session ON turns (session, response);
  CREATE INDEX IF NOT EXISTS turns_by_client ON turns (client, response);
  CREATE TABLE IF NOT EXISTS awaited (session TEXT NOT NULL, response TEXT NOT NULL, turn TEXT NOT NULL,
    next_state BLOB NOT NULL, PRIMARY KEY (session, response));
  CREATE TABLE IF NOT EXISTS feedback (seq INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, turn TEXT NOT NULL,
    session TEXT NOT NULL, client TEXT NOT NULL, payload BLOB NOT NULL);
  CREATE INDEX IF NOT EXISTS feedback_by_turn ON feedback (turn);
  CREATE TABLE IF NOT EXISTS forgotten (session TEXT PRIMARY KEY, before REAL NOT NULL);
  CREATE TABLE IF NOT EXISTS counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL);
`;

/** One row of a query. */
export type Row = Record<string, string | number | Uint8Array | null>;

type Connection = InstanceType<typeof DatabaseSync>;
type Statement = ReturnType<Connection["prepare"]>;
type Value = string | number | Uint8Array | null;

/** The server's SQLite file. A transaction is on the disk when it returns. */
export class Store {
  private readonly lock: Connection;
  private readonly db: Connection;
  private readonly statements = new Map<string, Statement>();
  private taken = 0;

  constructor(folder: string) {
    mkdirSync(folder, { recursive: true, mode: 0o700 });
    // One process for one folder: a transaction that never ends keeps a second one out, and ends with this process.
    this.lock = new DatabaseSync(`${folder}/lock.db`);
    try {
      this.lock.exec("PRAGMA busy_timeout = 0; BEGIN EXCLUSIVE;");
    } catch {
      throw new BadOptions(`--data ${folder}: another process uses it; stop that, or take another folder`);
    }
    this.db = new DatabaseSync(`${folder}/state.db`);
    this.db.exec(
      "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA busy_timeout = 5000; PRAGMA secure_delete = ON;",
    );
    this.db.exec(`BEGIN IMMEDIATE; ${SCHEMA} COMMIT;`);
  }

  close(): void {
    this.statements.clear();
    this.db.close();
    this.lock.close();
  }

  /** All or nothing. */
  transaction<T>(work: () => T): T {
    this.db.exec("BEGIN IMMEDIATE");
    try {
      const result = work();
      this.db.exec("COMMIT");
      return result;
    } catch (error) {
      if (this.db.isTransaction) this.db.exec("ROLLBACK"); // a full disk has ended it already
      throw error;
    }
  }

  /** Overwrite what was deleted also in the write-ahead log. */
  checkpoint(): void {
    this.db.exec("PRAGMA wal_checkpoint(TRUNCATE)");
  }

  all(sql: string, ...values: Value[]): Row[] {
    return this.statement(sql).all(...values) as Row[];
  }

  get(sql: string, ...values: Value[]): Row | undefined {
    return this.statement(sql).all(...values)[0] as Row | undefined;
  }

  /** Gives the number of rows that it changed. */
  run(sql: string, ...values: Value[]): number {
    return this.statement(sql).run(...values).changes as number;
  }

  /** Remember a message's id, in the caller's transaction: "new", "known", or "forged" with another content. */
  accept(id: string, content: Uint8Array): "new" | "known" | "forged" {
    const digest = createHash("sha256").update(content).digest("base64");
    if (this.run("INSERT OR IGNORE INTO inbox (id, content) VALUES (?, ?)", id, digest) === 0) {
      return this.get("SELECT content FROM inbox WHERE id = ?", id)?.["content"] === digest ? "known" : "forged";
    }
    if (++this.taken % 1000 === 0)
      this.run("DELETE FROM inbox WHERE seq <= (SELECT max(seq) FROM inbox) - ?", KEEP_IDS);
    return "new";
  }

  count(name: string, more = 1): void {
    const sql = "INSERT INTO counters VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = value + excluded.value";
    this.run(sql, name, more);
  }

  counters(): Record<string, bigint> {
    return Object.fromEntries(
      this.all("SELECT * FROM counters").map((row) => [row["name"], BigInt(row["value"] as number)]),
    );
  }

  private statement(sql: string): Statement {
    let statement = this.statements.get(sql);
    if (!statement) this.statements.set(sql, (statement = this.db.prepare(sql)));
    return statement;
  }
}

/** Transitions on their way to the judge, on disk. */
export class DiskOutbox implements Outbox {
  private listener: (() => void) | undefined;

  /** @param onRejected told, within the transaction, of what the judge refused. */
  constructor(
    private readonly store: Store,
    private readonly onRejected: (id: string, reason: string) => void,
  ) {}

  get size(): number {
    return this.figures().messages;
  }

  /** Messages that wait, their bytes, and when the oldest was put in (milliseconds since 1970; 0 when there is none). */
  figures(): { messages: number; bytes: number; oldest: number } {
    const sql =
      "SELECT count(*) AS n, coalesce(sum(length(payload)), 0) AS bytes, coalesce(min(at), 0) AS oldest FROM outbox";
    const row = this.store.get(sql)!;
    return { messages: row["n"] as number, bytes: row["bytes"] as number, oldest: row["oldest"] as number };
  }

  /** In the caller's transaction; `wake` when that is over. */
  put(id: string, session: string, payload: Uint8Array): void {
    const sql = "INSERT OR IGNORE INTO outbox (id, session, at, payload) VALUES (?, ?, ?, ?)";
    this.store.run(sql, id, session, Date.now(), payload);
  }

  wake(): void {
    this.listener?.();
  }

  window(after: number, limit: number, maxBytes: number): OutboxEntry[] {
    const rows = this.store.all("SELECT seq, id, payload FROM outbox WHERE seq > ? ORDER BY seq LIMIT ?", after, limit);
    let bytes = 0;
    const found: OutboxEntry[] = [];
    for (const row of rows) {
      const payload = row["payload"] as Uint8Array;
      bytes += payload.length;
      if (found.length > 0 && bytes > maxBytes) break;
      found.push({ seq: row["seq"] as number, id: row["id"] as string, payload });
    }
    return found;
  }

  settle(acks: Pick<Ack, "id" | "status" | "reason">[]): string[] {
    return this.store.transaction(() =>
      acks.flatMap(({ id, status, reason }) => {
        if (status === AckStatus.UNSPECIFIED) return [];
        if (status === AckStatus.REJECTED) {
          const keep =
            "INSERT INTO rejected (id, session, reason, payload) SELECT id, session, ?, payload FROM outbox WHERE id = ?";
          if (this.store.run(keep, reason, id) > 0) this.onRejected(id, reason);
        }
        return this.store.run("DELETE FROM outbox WHERE id = ?", id) > 0 ? [id] : [];
      }),
    );
  }

  listen(listener: (() => void) | undefined): void {
    this.listener = listener;
  }
}
