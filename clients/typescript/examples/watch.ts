/** Tells each judgement and each change of versions as it happens, until Ctrl-C: `npx tsx examples/watch.ts`. */
import { JudgeClient, PolicyClient, type MeshError } from "@openclaw-rl/client";

const stopper = new AbortController();
process.once("SIGINT", () => stopper.abort());
const options = { signal: stopper.signal, onBreak: (error: MeshError) => console.warn(String(error)) };
await using policy = new PolicyClient();
await using judge = new JudgeClient();

async function versions(): Promise<void> {
  for await (const { state } of policy.watchPolicy(options)) console.log(`version ${state?.activeVersion} answers`);
}

async function judgements(): Promise<void> {
  for await (const { judgement, sessionId } of judge.watchJudgements(options)) {
    console.log(`session ${sessionId}: ${judgement?.failed ? "failed" : judgement?.score} ${judgement?.hint ?? ""}`);
  }
}

await Promise.all([versions(), judgements()]);
