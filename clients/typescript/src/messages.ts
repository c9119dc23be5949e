import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { timestampDate, type Duration, type Timestamp } from "@bufbuild/protobuf/wkt";
import { invalid } from "./errors.js";
import { ChatMessageSchema, type ChatMessage } from "./gen/openclaw_rl/v1/turn_pb.js";

const LONGEST_SECONDS = 315_576_000_000; // of google.protobuf.Duration

/** A conversation: a text is a user's message. */
export type Conversation = string | MessageInitShape<typeof ChatMessageSchema>[];

/** A user's message. */
export function user(content: string): ChatMessage {
  return create(ChatMessageSchema, { role: "user", content });
}

/** A system message. */
export function system(content: string): ChatMessage {
  return create(ChatMessageSchema, { role: "system", content });
}

/** A message of the assistant. */
export function assistant(content: string): ChatMessage {
  return create(ChatMessageSchema, { role: "assistant", content });
}

/** A tool's result. */
export function toolResult(toolCallId: string, content: string): ChatMessage {
  return create(ChatMessageSchema, { role: "tool", toolCallId, content });
}

/** The messages of a conversation. */
export function messagesOf(conversation: Conversation): ChatMessage[] {
  if (typeof conversation === "string") return [user(conversation)];
  return conversation.map((message) => create(ChatMessageSchema, message));
}

/** A protobuf duration of so many seconds. */
export function duration(seconds: number, field = "seconds"): Duration {
  if (!(Math.abs(seconds) <= LONGEST_SECONDS)) {
    throw invalid(field, String(seconds), `a number of seconds up to ${LONGEST_SECONDS}`);
  }
  const whole = Math.floor(seconds);
  const nanos = Math.round((seconds - whole) * 1e9);
  return { $typeName: "google.protobuf.Duration", seconds: BigInt(whole), nanos };
}

/** A protobuf time as a Date; undefined when it is unset. */
export function date(time: Timestamp | undefined): Date | undefined {
  return time === undefined ? undefined : timestampDate(time);
}

/** An integer of the contract. */
export function int64(field: string, value: number | bigint): bigint {
  if (typeof value === "number" && !Number.isSafeInteger(value)) throw invalid(field, String(value), "a whole number");
  return BigInt(value);
}
