/** One leased environment `tool_call`: what can be done in it, what was done, and whether that was right. */
import { invalid, invalidFields, type MeshError } from "@openclaw-rl/client";
import { precondition, shown } from "./faults.js";
import {
  argumentsCheck,
  asText,
  call,
  FunctionError,
  wrong,
  type Done,
  type FunctionSpec,
  type Json,
  type Task,
} from "./tasks.js";

export const TYPE = "tool_call";
const MOST_ACTION = 2 ** 20;

export const SUBMIT: Omit<FunctionSpec, "cases"> = {
  name: "submit",
  description: "Say that the goal is reached.",
  parameters: {
    type: "object",
    properties: { answer: { type: "string", description: "The answer, where the goal asks for one." } },
  },
};
export const ACTION_SCHEMA = JSON.stringify({
  type: "object",
  required: ["name", "arguments"],
  additionalProperties: false,
  properties: {
    name: { type: "string", description: "One of the functions of the task, or submit." },
    arguments: { type: "object", description: "After the function's own schema." },
  },
});
export const OBSERVATION_SCHEMA = JSON.stringify({
  type: "object",
  required: ["text"],
  properties: { text: { type: "string", description: "What the function said." } },
});

/** What a step has shown. */
export interface Stepped {
  text: string;
  done: boolean;
  error: string;
}

interface Action {
  name: string;
  arguments: { [key: string]: Json };
}

/** One leased environment. Its calls are worked out at once, so one never waits for another. */
export class Lease {
  readonly acquiredAt = Date.now();
  readonly over = new AbortController();
  task: Task | undefined;
  steps = 0;
  lastAction = "";
  /** Why it is no more; empty while it runs. */
  ended = "";
  private usedAt = Date.now();
  private wasReset = false;
  private isOver = false;
  private answer: Stepped | undefined;
  private done: Done = { calls: [], state: {}, answer: undefined };
  private lines: string[] = [];

  constructor(
    readonly id: string,
    readonly holder: string,
    readonly ttlMs: number,
  ) {}

  get expiresAt(): number {
    return this.usedAt + this.ttlMs;
  }

  /** What has been called, for a person. */
  get view(): string {
    return this.lines.join("\n") || "No function has been called.";
  }

  get tools(): Omit<FunctionSpec, "cases">[] {
    return [...(this.task?.functions ?? []), SUBMIT];
  }

  renew(): void {
    this.usedAt = Date.now();
  }

  reset(task: Task | undefined): void {
    this.task = task;
    this.steps = 0;
    this.lastAction = "";
    this.lines = [];
    this.answer = undefined;
    this.isOver = false;
    this.done = { calls: [], state: structuredClone(task?.state ?? {}), answer: undefined };
    this.wasReset = true;
  }

  /** Do an action, or tell again what the last one did. */
  step(number: number, json: string): Stepped {
    const action = parse(json);
    const text = JSON.stringify(action);
    if (!this.wasReset)
      throw precondition("NOT_RESET", `lease ${shown(this.id)} has not been reset: reset it with a task, then step`);
    if (number === this.steps && this.answer) {
      if (text === this.lastAction) return this.answer;
      throw precondition(
        "STEP_OUT_OF_ORDER",
        `step ${number} of lease ${shown(this.id)} was done with another action; the next one is ${this.steps + 1}`,
      );
    }
    if (number !== this.steps + 1) {
      throw precondition(
        "STEP_OUT_OF_ORDER",
        `step ${number} of lease ${shown(this.id)} can't be done: the next one is ${this.steps + 1}`,
      );
    }
    if (this.isOver) {
      throw precondition(
        "EPISODE_OVER",
        `the episode in lease ${shown(this.id)} was over with step ${this.steps}: evaluate it, or reset to begin another`,
      );
    }
    this.answer = this.act(action);
    this.steps = number;
    this.lastAction = text;
    this.isOver = this.answer.done;
    this.lines = [
      ...this.lines.slice(-49),
      `${action.name}(${JSON.stringify(action.arguments).slice(0, 300)})\n  ${this.answer.text.slice(0, 500)}`,
    ];
    return this.answer;
  }

  /** Run the task's check. */
  evaluate(): { outcome: number; detail: string } {
    if (!this.wasReset)
      throw precondition("NOT_RESET", `lease ${shown(this.id)} has not been reset: there is nothing to evaluate`);
    if (!this.task) return { outcome: 0, detail: "there is no task" };
    const detail = wrong(this.task, this.done);
    return detail ? { outcome: 0, detail } : { outcome: 1, detail: "everything that the check asks for is so" };
  }

  end(why: string): void {
    this.ended = why;
    this.over.abort();
  }

  private act(action: Action): Stepped {
    const tool = this.tools.find(({ name }) => name === action.name);
    if (!tool) {
      const names = this.tools.map(({ name }) => name).join(", ");
      throw bad(`name: ${shown(action.name)} is no function; there are ${names}`);
    }
    const problem = argumentsCheck(tool.parameters)(action.arguments);
    if (problem) throw bad(`${action.name}: ${problem}`);
    if (tool === SUBMIT) {
      this.done.answer = action.arguments["answer"] as string | undefined;
      return { text: "Submitted.", done: true, error: "" };
    }
    try {
      const { result, state } = call(tool as FunctionSpec, action.arguments, this.done.state);
      this.done.state = state;
      this.done.calls.push({ name: action.name, arguments: action.arguments });
      return { text: asText(result), done: false, error: "" };
    } catch (error) {
      if (!(error instanceof FunctionError)) throw error;
      const text = `Error: ${error.message}`;
      return { text, done: false, error: text };
    }
  }
}

function bad(description: string): MeshError {
  return invalidFields([{ field: "action_json", description }]);
}

function parse(json: string): Action {
  const shape = 'an object such as {"name": ..., "arguments": {...}}';
  if (Buffer.byteLength(json) > MOST_ACTION)
    throw invalid("action_json", `${json.slice(0, 40)}...`, `at most ${MOST_ACTION} bytes`);
  let value: unknown;
  try {
    value = JSON.parse(json);
  } catch (error) {
    throw invalid("action_json", json, `JSON, ${shape} (${(error as Error).message})`);
  }
  const { name, arguments: args = {}, ...more } = (value ?? {}) as Record<string, unknown>;
  const fits = typeof name === "string" && typeof args === "object" && args !== null && !Array.isArray(args);
  if (!fits || Object.keys(more).length > 0) throw invalid("action_json", value, shape);
  return { name, arguments: args as Action["arguments"] };
}
