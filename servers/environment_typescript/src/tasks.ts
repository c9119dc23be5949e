/** Tasks of the environment `tool_call`, out of a JSON file: functions to call, and what they say and change. */
import { readFileSync } from "node:fs";
import { Ajv, type ErrorObject, type ValidateFunction } from "ajv";

/** Any JSON value. */
export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };
type JsonObject = { [key: string]: Json };

interface Case {
  /** Places and what they must be; `{missing: true}` for none. The first case whose `when` holds is taken. */
  when?: JsonObject;
  change?: ({ set: string; to: Json } | { append: string; value: Json })[];
  return?: Json;
  error?: string;
}

export interface FunctionSpec {
  name: string;
  description: string;
  parameters: JsonObject;
  cases: Case[];
}

export interface Task {
  id: string;
  goal: string;
  split: "train" | "held_out";
  tags: string[];
  max_steps: number;
  state: JsonObject;
  functions: FunctionSpec[];
  /** What must be so in the end: calls with at least these arguments, functions never called, places, the answer. */
  check: { calls?: { name: string; arguments?: JsonObject }[]; never?: string[]; state?: JsonObject; answer?: string };
}

const object = { type: "object" };
const strings = { type: "array", items: { type: "string" } };
const change = {
  oneOf: [
    {
      ...object,
      additionalProperties: false,
      required: ["set", "to"],
      properties: { set: { type: "string" }, to: {} },
    },
    {
      ...object,
      additionalProperties: false,
      required: ["append", "value"],
      properties: { append: { type: "string" }, value: {} },
    },
  ],
};
const TASKS = {
  type: "array",
  items: {
    ...object,
    additionalProperties: false,
    required: ["id", "goal", "functions", "check"],
    properties: {
      id: { type: "string", pattern: "^[A-Za-z0-9._-]{1,100}$" },
      goal: { type: "string", minLength: 1 },
      split: { enum: ["train", "held_out"], default: "train" },
      tags: { ...strings, default: [] },
      max_steps: { type: "integer", minimum: 0, default: 0 },
      state: { ...object, default: {} },
      functions: {
        type: "array",
        minItems: 1,
        items: {
          ...object,
          additionalProperties: false,
          required: ["name", "description", "cases"],
          properties: {
            name: { type: "string", pattern: "^(?!submit$)[A-Za-z_][A-Za-z0-9_-]{0,63}$" },
            description: { type: "string", minLength: 1 },
            parameters: { ...object, default: { type: "object", properties: {} } },
            cases: {
              type: "array",
              minItems: 1,
              items: {
                ...object,
                additionalProperties: false,
                properties: {
                  when: object,
                  change: { type: "array", items: change },
                  return: {},
                  error: { type: "string" },
                },
              },
            },
          },
        },
      },
      check: {
        ...object,
        additionalProperties: false,
        minProperties: 1,
        properties: {
          calls: { type: "array", items: { ...object, required: ["name"] } },
          never: strings,
          state: object,
          answer: { type: "string" },
        },
      },
    },
  },
};

/** A file of tasks that can't be used; names the place and what is wrong there. */
export class BadTasks extends Error {}

/** The tasks of a file, by id. */
export function readTasks(file: string): Map<string, Task> {
  const ajv = new Ajv({ useDefaults: true, strict: false });
  let read: unknown;
  try {
    read = JSON.parse(readFileSync(file, "utf8"));
  } catch (error) {
    throw new BadTasks(`${file}: ${(error as Error).message}`);
  }
  const valid = ajv.compile(TASKS);
  if (!valid(read)) throw new BadTasks(`${file}${words(valid.errors?.[0])}`);
  const tasks = new Map<string, Task>();
  for (const task of (read as Task[]).sort((a, b) => (a.id < b.id ? -1 : 1))) {
    if (tasks.has(task.id)) throw new BadTasks(`${file}: the task ${task.id} is there twice`);
    for (const { name, parameters } of task.functions) {
      if (!ajv.validateSchema(parameters)) {
        throw new BadTasks(`${file}: task ${task.id}, function ${name}, parameters: ${ajv.errorsText()}`);
      }
    }
    tasks.set(task.id, task);
  }
  return tasks;
}

/** A check of arguments against a function's schema; unknown arguments are refused unless it says otherwise. */
export function argumentsCheck(parameters: JsonObject): (value: unknown) => string {
  const validate: ValidateFunction = new Ajv({ strict: false }).compile({ additionalProperties: false, ...parameters });
  return (value) => (validate(value) ? "" : `arguments${words(validate.errors?.[0])}`);
}

/** What a function says instead of a result; nothing changed. */
export class FunctionError extends Error {}

/** Call a function: gives its result, and the state afterwards. The state that is given stays as it is. */
export function call(spec: FunctionSpec, args: JsonObject, state: JsonObject): { result: Json; state: JsonObject } {
  for (const { when = {}, change: changes = [], error, return: result = "Done." } of spec.cases) {
    if (!Object.entries(when).every(([place, wanted]) => holds(wanted, lookUp(place, args, state), args, state)))
      continue;
    if (error !== undefined) throw new FunctionError(asText(fill(error, args, state)));
    const after = structuredClone(state);
    for (const one of changes) {
      if ("set" in one) put(one.set, fill(one.to, args, after), args, after);
      else {
        const list = lookUp(one.append, args, after);
        if (!Array.isArray(list)) throw new FunctionError(`${spec.name} failed: ${one.append} is no list`);
        list.push(fill(one.value, args, after));
      }
    }
    return { result: fill(result, args, after), state: after };
  }
  throw new FunctionError(`${spec.name} knows nothing about ${JSON.stringify(args)}`);
}

/** What was done in an episode. */
export interface Done {
  calls: { name: string; arguments: JsonObject }[];
  state: JsonObject;
  answer: string | undefined;
}

/** The first thing that is not as a task's check wants it; empty when all is. */
export function wrong({ check }: Task, { calls, state, answer }: Done): string {
  for (const name of check.never ?? []) {
    if (calls.some((one) => one.name === name)) return `${name} was called, which must not be`;
  }
  for (const { name, arguments: wanted = {} } of check.calls ?? []) {
    const found = calls.some(
      (one) => one.name === name && Object.entries(wanted).every(([k, v]) => same(v, one.arguments[k])),
    );
    if (!found) return `${name} was not called with ${JSON.stringify(wanted)}`;
  }
  for (const [place, wanted] of Object.entries(check.state ?? {})) {
    const value = lookUp(place, {}, state);
    if (!same(wanted, value))
      return `${place} is ${JSON.stringify(value) ?? "not there"}, not ${JSON.stringify(wanted)}`;
  }
  if (check.answer === undefined) return "";
  if (answer === undefined) return "no answer was submitted";
  return answer.toLowerCase().includes(check.answer.toLowerCase())
    ? ""
    : `the answer does not have ${JSON.stringify(check.answer)}`;
}

/** The value at a place such as `orders.$id.status`, where `$id` is the argument `id`; undefined when there is none. */
function lookUp(place: string, args: JsonObject, state: JsonObject): Json | undefined {
  const [first, ...rest] = place.split(".");
  const begin = first!.startsWith("$") ? member(args, first!.slice(1)) : member(state, first!);
  return rest.reduce<Json | undefined>((value, key) => member(value, named(key, args)), begin);
}

function member(value: Json | undefined, key: string): Json | undefined {
  if (typeof value !== "object" || value === null || !Object.hasOwn(value, key)) return undefined;
  return (value as JsonObject)[key];
}

function named(key: string, args: JsonObject): string {
  return key.startsWith("$") ? asText(member(args, key.slice(1)) ?? "") : key;
}

function put(place: string, value: Json, args: JsonObject, state: JsonObject): void {
  const keys = place.split(".").map((key) => named(key, args));
  const last = keys.pop()!;
  const holder = keys.reduce<Json | undefined>((at, key) => member(at, key), state);
  if (typeof holder !== "object" || holder === null || Array.isArray(holder))
    throw new FunctionError(`there is no ${keys.join(".")}`);
  Object.defineProperty(holder, last, { value, writable: true, enumerable: true, configurable: true });
}

/** A value with the places in braces filled in; a text that is nothing else is the value there, of its own type. */
function fill(value: Json, args: JsonObject, state: JsonObject): Json {
  const at = (place: string): Json => {
    const found = lookUp(place, args, state);
    if (found === undefined) throw new FunctionError(`there is no ${asText(named(place.split(".").at(-1)!, args))}`);
    return found;
  };
  if (typeof value === "string") {
    const whole = /^\{([$\w.-]+)\}$/.exec(value);
    return whole
      ? structuredClone(at(whole[1]!))
      : value.replace(/\{([$\w.-]+)\}/g, (_, place: string) => asText(at(place)));
  }
  if (Array.isArray(value)) return value.map((one) => fill(one, args, state));
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([key, one]) => [key, fill(one, args, state)]));
}

function holds(wanted: Json, value: Json | undefined, args: JsonObject, state: JsonObject): boolean {
  const missing = member(wanted, "missing");
  if (typeof missing === "boolean") return missing === (value === undefined);
  return same(fill(wanted, args, state), value);
}

function same(one: Json | undefined, other: Json | undefined): boolean {
  return one !== undefined && other !== undefined && JSON.stringify(one) === JSON.stringify(other);
}

/** A value for a model to read: texts as they are, others as JSON. */
export function asText(value: Json): string {
  return typeof value === "string" ? value : JSON.stringify(value);
}

function words(error: ErrorObject | undefined): string {
  const more =
    error?.keyword === "additionalProperties" ? ` (${JSON.stringify(error.params["additionalProperty"])})` : "";
  const allowed = error?.keyword === "enum" ? ` ${JSON.stringify(error.params["allowedValues"])}` : "";
  return `${error?.instancePath ?? ""}: ${error?.message ?? "is not allowed"}${more}${allowed}`;
}
