/** Digests by which a conversation is recognised when the client sends it back. */
import { createHash } from "node:crypto";
import type { ChatMessage, Turn } from "@openclaw-rl/client/v1";

const REASONING = /^\s*<(think|thinking|reasoning)>[\s\S]*?<\/\1>/;

/** What stands for the API key that a client (`Turn.client`) has shown; empty when it has shown none. */
export function keyOf(client: string): string {
  return client.includes(":") ? client.slice(0, client.indexOf(":")) : "";
}

export function isInstruction({ role }: ChatMessage): boolean {
  return role === "system" || role === "developer";
}

/** A message's text: its content, and its text parts, one a line. */
export function textOf(message: ChatMessage): string {
  const parts = message.parts.flatMap(({ part }) => (part.case === "text" && part.value ? [part.value] : []));
  return [message.content, ...parts].filter(Boolean).join("\n");
}

/** The messages for a person to read. */
export function asText(messages: ChatMessage[]): string {
  return messages
    .flatMap((message) => [textOf(message), ...message.toolCalls.map((call) => `${call.name}(${call.argumentsJson})`)])
    .filter(Boolean)
    .join("\n");
}

/** The digests of a turn by which it finds what it continues, and is found by what continues it. */
export interface Outline {
  /** Of each prefix of the request's messages. */
  digests: string[];
  /** Positions of the assistant messages, the last one first. */
  responses: number[];
  /** Of the whole request: a retry has the same. */
  request: string;
  /** Of the conversation up to and with the response. */
  response: string;
}

/** White space, ids and the order of keys in arguments don't count: clients print anew what they got. */
export function outline(turn: Turn): Outline {
  const messages = [...turn.messages, ...(turn.response ? [turn.response] : [])];
  const digests: string[] = [];
  let digest = keyOf(turn.client); // users whose agents name their sessions alike never continue one another
  for (const message of messages) {
    if (!isInstruction(message)) digest = hash(digest, canonical(message));
    digests.push(digest);
  }
  const response = turn.response ? digests.pop()! : hash(digest, "");
  const instructions = turn.messages.filter(isInstruction).map((m) => squeeze(textOf(m)).replace(/\d+/g, "0"));
  const responses = turn.messages.flatMap(({ role }, i) => (role === "assistant" ? [i] : [])).reverse();
  const tools = turn.tools.map(({ name }) => name);
  return { digests, responses, response, request: hash(digests.at(-1) ?? "", JSON.stringify([instructions, tools])) };
}

/**
 * The tool results and user messages behind the response at `position`, up to the next response: the next state. Left
 * out are instructions, and what was asked in an exchange whose response is one of `sides`: it is no answer to ours.
 * Empty when nobody has said anything.
 */
export function messagesBehind(
  messages: ChatMessage[],
  position: number,
  digests: string[] = [],
  sides: Set<string> = new Set(),
): ChatMessage[] {
  const found: ChatMessage[] = [];
  for (let i = position + 1; i < messages.length; i++) {
    const message = messages[i]!;
    if (message.role === "assistant") {
      if (sides.has(digests[i]!)) found.length = 0;
      else if (found.length > 0) break;
    } else if (!isInstruction(message)) {
      found.push(message);
    }
  }
  return found;
}

function canonical(message: ChatMessage): string {
  const role = message.role || "assistant"; // a response may leave it out
  const text = role === "assistant" ? textOf(message).replace(REASONING, "") : textOf(message);
  const images = message.parts.flatMap(({ part }) => (part.case === "imageUrl" ? [part.value] : []));
  const calls = message.toolCalls.map(({ name, argumentsJson }) => [name, sorted(argumentsJson)]);
  return JSON.stringify([role, squeeze(text), images, calls]);
}

function squeeze(text: string): string {
  return text.replace(/\s+/g, "");
}

function sorted(json: string): string {
  const order = (value: unknown): unknown => {
    if (Array.isArray(value)) return value.map(order);
    if (typeof value !== "object" || value === null) return value;
    return Object.fromEntries(
      Object.entries(value)
        .sort(([a], [b]) => (a < b ? -1 : 1))
        .map(([k, v]) => [k, order(v)]),
    );
  };
  try {
    return JSON.stringify(order(JSON.parse(json || "{}")));
  } catch {
    return squeeze(json);
  }
}

function hash(before: string, text: string): string {
  return createHash("sha256").update(`${before}\n${text}`).digest("base64").slice(0, 24);
}
