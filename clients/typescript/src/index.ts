/** A client of an OpenClaw-RL mesh. The contract's own messages are in "@openclaw-rl/client/v1". */
export { ChatStream, GenerateStream } from "./chat.js";
export { ComponentClient, type CheckReport } from "./component.js";
export { Connection, type Role } from "./connection.js";
export { EnvironmentClient, type AcquireOptions } from "./environment.js";
export {
  ERROR_DOMAIN,
  invalid,
  invalidFields,
  MeshError,
  type MeshErrorInit,
  type StatusCode,
  type Violation,
} from "./errors.js";
export { Interaction, type InteractOptions } from "./interaction.js";
export { JudgeClient } from "./judge.js";
export { Lease, type Action } from "./lease.js";
export { COMPONENT_KEY, identity, MESH_KEY, MESH_VARIABLE, named } from "./mesh.js";
export { assistant, date, duration, system, toolResult, user, type Conversation } from "./messages.js";
export { tlsFromFolder, type CallOptions, type ClientOptions, type TlsOptions } from "./options.js";
export { eventId, MemoryOutbox, type Outbox, type OutboxEntry } from "./outbox.js";
export { PolicyClient, type ChatOptions, type FeedbackFields, type Sampling, type TurnFields } from "./policy.js";
export {
  RingSender,
  samplesOutbox,
  sendSamples,
  sendTransitions,
  sendTurns,
  transitionsOutbox,
  turnsOutbox,
  type RingOptions,
} from "./ring.js";
export { CallStream } from "./stream.js";
export { TrainerClient } from "./trainer.js";
export { CONTRACT_VERSION, MAX_MESSAGE_BYTES } from "./version.js";
export { Watch, type WatchOptions } from "./watch.js";
