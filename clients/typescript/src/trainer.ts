import type { Client } from "@connectrpc/connect";
import { ComponentClient } from "./component.js";
import {
  TrainerService,
  type PolicyVersion,
  type SampleStatus,
  type TrainNowResponse,
  type WatchTrainingResponse,
} from "./gen/openclaw_rl/v1/trainer_pb.js";
import { int64 } from "./messages.js";
import type { CallOptions, ClientOptions } from "./options.js";
import { Watch, type WatchOptions } from "./watch.js";

/** A client of the trainer. */
export class TrainerClient extends ComponentClient {
  /** The raw client of TrainerService, for RPCs that this class does not wrap. */
  readonly raw: Client<typeof TrainerService>;

  constructor(options: ClientOptions = {}) {
    super(options, 50054, "trainer");
    this.raw = this.connection.client(TrainerService);
  }

  /** One version, with what is known of its delivery. */
  async version(version: number | bigint, options: CallOptions = {}): Promise<PolicyVersion> {
    const request = { version: int64("version", version) };
    const answer = await this.connection.unary("TrainerService/GetVersion", options, (o) =>
      this.raw.getVersion(request, o),
    );
    return answer.version!;
  }

  /** Versions, newest first, page after page as they are read. */
  async *versions(options: CallOptions = {}): AsyncGenerator<PolicyVersion, void> {
    for (let before: bigint | undefined; ;) {
      const request = before === undefined ? {} : { before };
      const page = await this.connection.unary("TrainerService/ListVersions", options, (o) =>
        this.raw.listVersions(request, o),
      );
      yield* [...page.versions].reverse();
      before = page.versions[0]?.manifest?.version;
      if (!page.more || before === undefined) return;
    }
  }

  /** Each training step, publication and skip as it happens. */
  watchTraining(options: WatchOptions = {}): Watch<WatchTrainingResponse> {
    return new Watch(this.connection, "TrainerService/WatchTraining", (o) => this.raw.watchTraining({}, o), options);
  }

  /** Train now on what there is. */
  trainNow(options: CallOptions = {}): Promise<TrainNowResponse> {
    return this.connection.unary("TrainerService/TrainNow", options, (o) => this.raw.trainNow({}, o));
  }

  /** Start no further step until resumed. */
  async pause(reason = "", options: CallOptions = {}): Promise<void> {
    await this.connection.unary("TrainerService/Pause", options, (o) => this.raw.pause({ reason }, o));
  }

  /** End a pause. */
  async resume(options: CallOptions = {}): Promise<void> {
    await this.connection.unary("TrainerService/Resume", options, (o) => this.raw.resume({}, o));
  }

  /** What became of the samples of given turns (at most 1000); without any, all that are pending. */
  async samples(turnIds: string[] = [], options: CallOptions = {}): Promise<SampleStatus[]> {
    const answer = await this.connection.unary("TrainerService/ListSamples", options, (o) =>
      this.raw.listSamples({ turnIds }, o),
    );
    return answer.samples;
  }
}
