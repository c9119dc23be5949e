/** A streamed chat of two turns in one session, with feedback on the first: `npx tsx examples/chat.ts [HOST:PORT]`. */
import { assistant, MeshError, PolicyClient, user } from "@openclaw-rl/client";

const address = process.argv[2] ?? "127.0.0.1:50051";
await using policy = new PolicyClient({ address });

try {
  const { status, warnings } = await policy.check();
  console.log(`policy server ${status.packageVersion}, version ${status.policyVersion ?? 0}`);
  for (const warning of warnings) console.warn(warning);

  const messages = [user("Name a colour.")];
  const first = policy.chat(messages, { turnType: "main", sampling: { maxTokens: 32 } });
  let answer = "";
  for await (const { content } of first) {
    process.stdout.write(content);
    answer += content;
  }
  console.log(`\n  turn ${first.turnId} of session ${first.sessionId}, version ${first.policyVersion}`);

  messages.push(assistant(answer), user("Another one, please."));
  const second = policy.chat(messages, {
    sessionId: first.sessionId,
    turnType: "main",
    sessionDone: true,
    sampling: { maxTokens: 32 },
  });
  for await (const { content } of second) process.stdout.write(content);
  console.log(`\n  turn ${second.turnId}: ${second.end?.completionTokens} tokens`);

  console.log("feedback", await policy.feedback({ turnId: first.turnId, score: 1, comment: "good" }));
} catch (error) {
  if (!(error instanceof MeshError)) throw error;
  console.error(String(error)); // what is wrong, and what to do
  process.exitCode = 1;
}
