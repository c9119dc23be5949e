// node typescript.mjs ADDRESS SECONDS CALLERS STREAMS: see ../clients.py.
import { PolicyClient, user } from "../../../clients/typescript/dist/index.js";

const [address, seconds, callers, streams] = process.argv.slice(2).map((text, i) => (i ? Number(text) : text));
const policy = new PolicyClient({ address });

/** Does work in so many loops until the time is over; tells how much of it was done and how long it took. */
async function during(time, workers, work) {
  const began = performance.now();
  const passed = () => (performance.now() - began) / 1000;
  let done = 0;
  const loop = async () => {
    while (passed() < time) {
      const more = await work(); // not `done += await`, which reads `done` before it waits
      done += more;
    }
  };
  await Promise.all(Array.from({ length: workers }, loop));
  return [done, passed()];
}

const ids = new Array(16).fill(0);
const call = async () => (await policy.score(ids), 1);
const chat = async () => {
  let deltas = 0;
  for await (const _ of policy.chat([user("hi")])) deltas++;
  return deltas;
};
await during(1, callers, call);
await during(1, streams, chat);
const [calls, callSeconds] = await during(seconds, callers, call);
const [deltas, deltaSeconds] = await during(seconds, streams, chat);
console.log(JSON.stringify({ calls, call_seconds: callSeconds, deltas, delta_seconds: deltaSeconds }));
await policy.close();
