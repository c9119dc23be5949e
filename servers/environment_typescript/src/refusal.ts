import type { PolicyEvent } from "@openclaw-rl/client/v1";

const LONGEST_ID = 256;

/** Why an event can't be taken in this mesh ("" for any); empty when it can. */
export function refusal({ event }: PolicyEvent, id: string, mesh: string): string {
  if (event.case === undefined) return "the message has none of turn, feedback, session_end and session_active";
  const kind = { turn: "turn", feedback: "feedback", sessionEnd: "session_end", sessionActive: "session_active" }[
    event.case
  ];
  if (!id) return `the ${kind} has no id`;
  const { sessionId } = event.value;
  const bad = badId(`the ${kind}'s id`, id) || (sessionId && badId(`${kind}.session_id`, sessionId));
  if (bad) return bad;
  if (event.case === "turn" && mesh && event.value.meshId && event.value.meshId !== mesh)
    return `turn.mesh_id: the turn is of the mesh ${event.value.meshId.slice(0, 80)}, and this is ${mesh}`;
  if (!sessionId && (event.case === "sessionEnd" || event.case === "sessionActive"))
    return `${kind}.session_id is empty`;
  if (event.case !== "feedback") return "";
  const { turnId, score } = event.value;
  if (!turnId && !sessionId)
    return "feedback.turn_id and feedback.session_id are empty: one of them must say what is meant";
  if (score !== undefined && !(score >= -1 && score <= 1)) return `feedback.score is ${score}: must be from -1 to +1`;
  return "";
}

function badId(field: string, id: string): string {
  if ([...id].length > LONGEST_ID) return `${field}: ${[...id].length} characters; it must have 1 to ${LONGEST_ID}`;
  return /\p{Cc}/u.test(id) ? `${field}: ${JSON.stringify(id.slice(0, 40))} has control characters` : "";
}
