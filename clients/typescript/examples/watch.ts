/** Tells judgements and changes of versions as they happen, until Ctrl-C: `npx tsx examples/watch.ts [POLICY [JUDGE]]`. */
import { JudgeClient, PolicyClient, type MeshError } from "@openclaw-rl/client";

const stopper = new AbortController();
process.once("SIGINT", () => stopper.abort());
const options = { signal: stopper.signal, onBreak: (error: MeshError) => console.warn(String(error)) };
await using policy = new PolicyClient({ address: process.argv[2] });
await using judge = new JudgeClient({ address: process.argv[3] });

async function versions(): Promise<void> {
  for await (const { state } of policy.watchPolicy(options)) console.log(`version ${state?.activeVersion} answers`);
}

async function judgements(): Promise<void> {
  for await (const { judgement, sessionId } of judge.watchJudgements(options)) {
    console.log(`session ${sessionId}: ${judgement?.failed ? "failed" : judgement?.score} ${judgement?.hint ?? ""}`);
  }
}

await Promise.all([versions(), judgements()]);
