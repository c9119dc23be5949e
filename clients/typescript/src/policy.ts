import { create, type MessageInitShape } from "@bufbuild/protobuf";
import type { Client } from "@connectrpc/connect";
import { ChatStream, GenerateStream } from "./chat.js";
import { ComponentClient } from "./component.js";
import { MeshError } from "./errors.js";
import {
  PolicyService,
  type ActivateVersionRequestSchema,
  type ActivateVersionResponse,
  type ChatRequestSchema,
  type GetPolicyResponse,
  type PolicyState,
  type ScoreResponse,
  type WatchPolicyResponse,
} from "./gen/openclaw_rl/v1/policy_pb.js";
import {
  TurnOptionsSchema,
  type SamplingParamsSchema,
  type ToolDefinitionSchema,
} from "./gen/openclaw_rl/v1/turn_pb.js";
import { int64, messagesOf, type Conversation } from "./messages.js";
import type { CallOptions, ClientOptions } from "./options.js";
import { Watch, type WatchOptions } from "./watch.js";

/** What a turn belongs to, and what may answer it. */
export interface TurnFields {
  /** Session; without it the mesh finds it by the messages. */
  sessionId?: string;
  /** "main", "side" or a label of one's own. */
  turnType?: string;
  /** The session ends with this turn. */
  sessionDone?: boolean;
  /** Lowest policy version that may answer. */
  minVersion?: number | bigint;
  /** The only policy version that may answer. */
  exactVersion?: number | bigint;
  /** Leave no record: neither judged nor trained on. */
  noRecord?: boolean;
  /** Live requests come before it. */
  background?: boolean;
}

/** How tokens are sampled; what is unset takes the server's default. */
export type Sampling = MessageInitShape<typeof SamplingParamsSchema>;

/** Options of a chat. */
export interface ChatOptions extends CallOptions, TurnFields {
  sampling?: Sampling;
  /** Functions that the policy may call. */
  tools?: MessageInitShape<typeof ToolDefinitionSchema>[];
  /** "auto" (the default), "none", "required" or the name of the function to call. */
  toolChoice?: string;
  parallelToolCalls?: boolean;
  /** The request's own data, kept with the turn. */
  metadata?: Record<string, string>;
}

/** What somebody thinks of a turn or a session. */
export interface FeedbackFields {
  /** The turn; without it the session's last main turn. */
  turnId?: string;
  sessionId?: string;
  /** From -1 (bad) to +1 (good). */
  score?: number;
  comment?: string;
}

/** A client of the policy server: chats, tokens, versions, feedback. */
export class PolicyClient extends ComponentClient {
  /** The raw client of PolicyService, for RPCs that this class does not wrap. */
  readonly raw: Client<typeof PolicyService>;

  constructor(options: ClientOptions = {}) {
    super(options, 50051, "policy_server");
    this.raw = this.connection.client(PolicyService);
  }

  /** Ask for an answer; its pieces come as they are made. The request is sent with the first read. */
  chat(conversation: Conversation, options: ChatOptions = {}): ChatStream {
    const request: MessageInitShape<typeof ChatRequestSchema> = {
      messages: messagesOf(conversation),
      turn: turnOptions(options),
      ...(options.sampling ? { sampling: options.sampling } : {}),
      ...(options.tools ? { tools: options.tools } : {}),
      ...(options.toolChoice ? { toolChoice: options.toolChoice } : {}),
      ...(options.parallelToolCalls === undefined ? {} : { parallelToolCalls: options.parallelToolCalls }),
      ...(options.metadata ? { metadata: options.metadata } : {}),
    };
    return new ChatStream(this.connection, "PolicyService/Chat", (o) => this.raw.chat(request, o), options);
  }

  /** Continue token ids. It is recorded as a turn only when a session is given. */
  generate(promptIds: number[], options: CallOptions & TurnFields & { sampling?: Sampling } = {}): GenerateStream {
    const request = {
      promptIds,
      turn: turnOptions(options),
      ...(options.sampling ? { sampling: options.sampling } : {}),
    };
    return new GenerateStream(this.connection, "PolicyService/Generate", (o) => this.raw.generate(request, o), options);
  }

  /** Log-probabilities of given tokens: entry i is that of token i + 1 behind tokens 0 to i. */
  async score(tokenIds: number[], options: CallOptions & { version?: number | bigint } = {}): Promise<ScoreResponse> {
    const { version, ...rest } = options;
    const request = { tokenIds, ...(version === undefined ? {} : { version: int64("version", version) }) };
    return this.connection.unary("PolicyService/Score", rest, (o) => this.raw.score(request, o));
  }

  /** Say what one thinks of a turn or a session; gives the feedback's id. */
  async feedback(feedback: FeedbackFields, options: CallOptions = {}): Promise<string> {
    const answer = await this.connection.unary("PolicyService/SubmitFeedback", options, (o) =>
      this.raw.submitFeedback({ feedback }, o),
    );
    return answer.feedbackId;
  }

  /** The active version, those that can be activated, and their manifests. */
  async policy(options: CallOptions = {}): Promise<GetPolicyResponse> {
    return this.connection.unary("PolicyService/GetPolicy", options, (o) => this.raw.getPolicy({}, o));
  }

  /** The state at once, and again at each change of versions. */
  watchPolicy(options: WatchOptions = {}): Watch<WatchPolicyResponse> {
    return new Watch(this.connection, "PolicyService/WatchPolicy", (o) => this.raw.watchPolicy({}, o), options);
  }

  /** Make a kept version the active one. `pin` true: and stay with it; false: lift the pin. */
  async activate(
    version: number | bigint,
    options: CallOptions & { reason?: string; pin?: boolean } = {},
  ): Promise<ActivateVersionResponse> {
    return this.activation({ ...options, version });
  }

  /** Stay with a version (the active one when none is given), whatever the trainer offers. */
  async pin(version?: number | bigint, options: CallOptions & { reason?: string } = {}): Promise<PolicyState> {
    return (await this.activation({ ...options, ...(version === undefined ? {} : { version }), pin: true })).state!;
  }

  /** Lift the pin. */
  async unpin(options: CallOptions & { reason?: string } = {}): Promise<PolicyState> {
    return (await this.activation({ ...options, pin: false })).state!;
  }

  /** Go back to a kept version; without one, to the newest below the active one. Gives the state after it. */
  async rollback(version?: number | bigint, options: CallOptions & { reason?: string } = {}): Promise<PolicyState> {
    let target = version;
    if (target === undefined) {
      const state = (await this.policy(options)).state!;
      target = state.keptVersions.filter((kept) => kept < state.activeVersion).at(-1);
      if (target === undefined) {
        throw new MeshError({
          code: "FAILED_PRECONDITION",
          reason: "VERSION_UNKNOWN",
          message: `no version before ${state.activeVersion} is kept there`,
          address: this.address,
          method: "PolicyService/ActivateVersion",
        });
      }
    }
    return (await this.activate(target, options)).state!;
  }

  private activation(
    options: CallOptions & { version?: number | bigint; reason?: string; pin?: boolean },
  ): Promise<ActivateVersionResponse> {
    const { version, reason, pin, ...rest } = options;
    const request: MessageInitShape<typeof ActivateVersionRequestSchema> = {
      reason: reason ?? "",
      ...(version === undefined ? {} : { version: int64("version", version) }),
      ...(pin === undefined ? {} : { pin }),
    };
    return this.connection.unary("PolicyService/ActivateVersion", rest, (o) => this.raw.activateVersion(request, o));
  }
}

/** The contract's form of what a turn belongs to. */
export function turnOptions(fields: TurnFields): MessageInitShape<typeof TurnOptionsSchema> {
  const { minVersion, exactVersion } = fields;
  return create(TurnOptionsSchema, {
    sessionId: fields.sessionId ?? "",
    turnType: fields.turnType ?? "",
    sessionDone: fields.sessionDone ?? false,
    noRecord: fields.noRecord ?? false,
    background: fields.background ?? false,
    ...(minVersion === undefined ? {} : { minVersion: int64("minVersion", minVersion) }),
    ...(exactVersion === undefined ? {} : { exactVersion: int64("exactVersion", exactVersion) }),
  });
}
