import type { MessageInitShape } from "@bufbuild/protobuf";
import type { Client } from "@connectrpc/connect";
import { ComponentClient } from "./component.js";
import { JudgeService, type WatchJudgementsResponse } from "./gen/openclaw_rl/v1/judge_pb.js";
import type { Judgement, TransitionSchema } from "./gen/openclaw_rl/v1/turn_pb.js";
import type { CallOptions, ClientOptions } from "./options.js";
import { Watch, type WatchOptions } from "./watch.js";

/** A client of the judge. */
export class JudgeClient extends ComponentClient {
  /** The raw client of JudgeService, for RPCs that this class does not wrap. */
  readonly raw: Client<typeof JudgeService>;

  constructor(options: ClientOptions = {}) {
    super(options, 50053, "prm_judge");
    this.raw = this.connection.client(JudgeService);
  }

  /** Judge one transition now, without keeping it; its turn needs messages and response only. */
  async judge(transition: MessageInitShape<typeof TransitionSchema>, options: CallOptions = {}): Promise<Judgement> {
    const answer = await this.connection.unary("JudgeService/Judge", options, (o) => this.raw.judge({ transition }, o));
    return answer.judgement!;
  }

  /** Each judgement as it is made, of one session or of all. */
  watchJudgements(options: WatchOptions & { sessionId?: string } = {}): Watch<WatchJudgementsResponse> {
    const { sessionId = "", ...rest } = options;
    return new Watch(
      this.connection,
      "JudgeService/WatchJudgements",
      (o) => this.raw.watchJudgements({ sessionId }, o),
      rest,
    );
  }

  /** Judgements of given turns (at most 1000), in the order asked for; those not judged are left out. */
  async judgements(turnIds: string[], options: CallOptions = {}): Promise<Judgement[]> {
    const answer = await this.connection.unary("JudgeService/ListJudgements", options, (o) =>
      this.raw.listJudgements({ turnIds }, o),
    );
    return answer.judgements;
  }
}
