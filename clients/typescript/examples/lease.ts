/** Leases a tool_call environment, calls one function and submits: `npx tsx examples/lease.ts [HOST:PORT]`. */
import { EnvironmentClient } from "@openclaw-rl/client";

await using environment = new EnvironmentClient({ address: process.argv[2] ?? "127.0.0.1:50052" });
const [task] = await environment.tasks("tool_call");
if (!task) throw new Error("the environment server has no tasks");

// Renewed by itself while this runs, and given back at the end of the block, whatever happens.
await using lease = await environment.acquire("tool_call", { waitSeconds: 30, holder: "example" });
const { goal, tools } = await lease.reset(task.taskId, { seed: 1 });
console.log(`${task.taskId}: ${goal}\nfunctions: ${tools.map(({ name }) => name).join(", ")}`);

const { done } = await lease.step({ name: "submit" });
const { outcome, detail } = await lease.evaluate();
console.log(`done ${done}, outcome ${outcome}: ${detail}`);
