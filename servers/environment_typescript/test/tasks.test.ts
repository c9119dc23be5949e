import assert from "node:assert/strict";
import { writeFileSync } from "node:fs";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { BadOptions, readOptions } from "../src/options.js";
import { argumentsCheck, BadTasks, call, FunctionError, readTasks, wrong, type Task } from "../src/tasks.js";
import { folder } from "./helpers.js";

const FILE = fileURLToPath(new URL("../tasks.json", import.meta.url));

/** What does each task. */
const SOLUTIONS: Record<string, [string, Record<string, string | number>][]> = {
  "heating-down": [["set_heating", { room: "office", degrees: 18 }]],
  "library-renew": [["renew_loan", { title: "Dune", days: 14 }]],
  "no-such-function": [["submit", { answer: "It is unknown." }]],
  "ticket-assign": [
    ["set_priority", { ticket: "T-8", priority: "high" }],
    ["assign", { ticket: "T-8", team: "billing" }],
  ],
  "train-platform": [
    ["find_train", { city: "Basel" }],
    ["submit", { answer: "platform 7b" }],
  ],
};

function play(task: Task, actions: [string, Record<string, string | number>][]): string {
  const done = {
    calls: [] as { name: string; arguments: Record<string, string | number> }[],
    state: task.state,
    answer: undefined as string | undefined,
  };
  for (const [name, args] of actions) {
    if (name === "submit") {
      done.answer = String(args["answer"]);
      continue;
    }
    const spec = task.functions.find((one) => one.name === name)!;
    assert.equal(argumentsCheck(spec.parameters)(args), "");
    done.state = call(spec, args, done.state).state;
    done.calls.push({ name, arguments: args });
  }
  return wrong(task, done);
}

test("each task can be done, and is not done before", () => {
  const tasks = readTasks(FILE);
  assert.deepEqual([...tasks.keys()], Object.keys(SOLUTIONS).sort());
  for (const [id, solution] of Object.entries(SOLUTIONS)) {
    const task = tasks.get(id)!;
    const before = JSON.stringify(task.state);
    assert.notEqual(play(task, []), "", id);
    assert.equal(play(task, solution), "", id);
    assert.equal(JSON.stringify(task.state), before, `${id}: the task itself was changed`);
  }
});

test("a function says what is wrong, and then nothing has changed", () => {
  const [renew] = readTasks(FILE).get("library-renew")!.functions;
  const { state } = readTasks(FILE).get("library-renew")!;
  assert.throws(
    () => call(renew!, { title: "Ulysses", days: 3 }, state),
    new FunctionError("No book Ulysses is on loan."),
  );
  const check = argumentsCheck(renew!.parameters);
  assert.match(check({ title: "Dune", days: 99 }), /days: must be <= 28/);
  assert.match(check({ title: "Dune" }), /must have required property 'days'/);
  assert.match(check({ title: "Dune", days: 1, colour: "red" }), /"colour"/);
});

test("a file of tasks that can't be used is refused with the place", () => {
  const file = `${folder()}/tasks.json`;
  const task = {
    id: "a",
    goal: "g",
    functions: [{ name: "f", description: "d", cases: [{ return: "x" }] }],
    check: { answer: "x" },
  };
  for (const [content, said] of [
    ["[", /JSON/],
    [JSON.stringify([{ ...task, goal: undefined }]), /\/0: must have required property 'goal'/],
    [JSON.stringify([{ ...task, colour: 1 }]), /"colour"/],
    [JSON.stringify([task, task]), /the task a is there twice/],
    [
      JSON.stringify([{ ...task, functions: [{ ...task.functions[0], parameters: { type: "nothing" } }] }]),
      /function f, parameters/,
    ],
    [JSON.stringify([{ ...task, functions: [{ ...task.functions[0], name: "submit" }] }]), /\/functions\/0\/name/],
  ] as const) {
    writeFileSync(file, content);
    assert.throws(
      () => readTasks(file),
      (error) => error instanceof BadTasks && said.test(error.message),
      content,
    );
  }
});

test("options name what is wrong and what is allowed", () => {
  assert.equal(readOptions(["--help"]), undefined);
  assert.equal(readOptions(["--listen", "[::1]:0"])?.host, "::1");
  for (const [args, said] of [
    [["--listen", "nowhere"], /--listen nowhere: must be HOST:PORT/],
    [["--listen", "0.0.0.0:1"], /without --certs anybody on the network/],
    [["--judge", "127.0.0.1:0"], /--judge 127.0.0.1:0: the port must be 1 to 65535/],
    [["--capacity", "0"], /--capacity 0: must be a whole number from 1/],
    [["--certs", "/nowhere"], /ca.crt is not there; `openclaw-rl init` makes it/],
    [["--colour", "red"], /colour/],
  ] as const) {
    assert.throws(
      () => readOptions([...args]),
      (error) => error instanceof BadOptions && said.test(error.message),
    );
  }
});
