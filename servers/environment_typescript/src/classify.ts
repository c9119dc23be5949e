import { TurnClass, type Turn } from "@openclaw-rl/client/v1";
import { textOf } from "./conversation.js";

/** A turn's class, and the rule that decided it, for a person. */
export interface Classified {
  turnClass: TurnClass;
  rule: string;
}

/** What agent frameworks ask for themselves, and what of it shows that: never trained on. Make it your own. */
const AUXILIARY = [
  /\b(?:generate|write|suggest|create|provide)\b[^.\n]{0,60}\btitle\b[^.\n]{0,60}\b(?:conversation|chat|session|thread)\b/i,
  /\bsummari[sz]e\b[^.\n]{0,40}\b(?:conversation|chat|session|messages) (?:so far|above|below|history)\b/i,
  /(?:为|给)[^。\n]{0,10}(?:对话|会话|聊天)[^。\n]{0,10}(?:标题|命名)/,
];
const RAW_DOORS = ["completions", "grpc.generate"];
const SEARCHED = 20_000; // characters of a message that the patterns look at

/** The class of a turn: by what the client says, else by pattern, else by inference. */
export function classify(turn: Turn): Classified {
  const declared = turn.declaredType.trim().toLowerCase();
  if (declared === "main" && !turn.episode) return { turnClass: TurnClass.MAIN, rule: "declared type main" };
  if (declared === "side") return { turnClass: TurnClass.SIDE, rule: "declared type side" };
  if (turn.episode) {
    // This server runs no episodes, so nobody knows what it was played for.
    const rule = `says that it is of episode ${JSON.stringify(turn.episode.episodeId.slice(0, 80))}, which is not here`;
    return { turnClass: TurnClass.UNKNOWN, rule };
  }
  if (RAW_DOORS.includes(turn.api)) return { turnClass: TurnClass.UNKNOWN, rule: `${turn.api} has no conversation` };
  const last = turn.messages.at(-1);
  if (!last) return { turnClass: TurnClass.UNKNOWN, rule: "there are no messages" };
  const pattern = AUXILIARY.find((one) => one.test(textOf(last).slice(0, SEARCHED)));
  if (pattern)
    return { turnClass: TurnClass.SIDE, rule: `auxiliary pattern ${pattern.source.slice(0, 40)} in the last message` };
  if (last.role === "user" || last.role === "tool") {
    return { turnClass: TurnClass.MAIN, rule: `the last message is of role ${last.role}` };
  }
  return { turnClass: TurnClass.UNKNOWN, rule: `the last message is of role ${last.role || "none"}` };
}
