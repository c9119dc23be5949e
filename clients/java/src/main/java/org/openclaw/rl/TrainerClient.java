package org.openclaw.rl;

import java.util.List;
import org.openclaw.rl.v1.FetchWeightsRequest;
import org.openclaw.rl.v1.FetchWeightsResponse;
import org.openclaw.rl.v1.GetVersionRequest;
import org.openclaw.rl.v1.ListSamplesRequest;
import org.openclaw.rl.v1.ListVersionsRequest;
import org.openclaw.rl.v1.ListVersionsResponse;
import org.openclaw.rl.v1.PauseRequest;
import org.openclaw.rl.v1.PolicyVersion;
import org.openclaw.rl.v1.ResumeRequest;
import org.openclaw.rl.v1.Sample;
import org.openclaw.rl.v1.SampleStatus;
import org.openclaw.rl.v1.SubmitSamplesRequest;
import org.openclaw.rl.v1.SubmitSamplesResponse;
import org.openclaw.rl.v1.TrainNowRequest;
import org.openclaw.rl.v1.TrainNowResponse;
import org.openclaw.rl.v1.TrainerServiceGrpc;
import org.openclaw.rl.v1.WatchTrainingRequest;
import org.openclaw.rl.v1.WatchTrainingResponse;

/** The trainer: fates of samples, and versions. */
public final class TrainerClient extends Component<TrainerClient> {
  private static final int PORT = 50054;

  private TrainerClient(Connection connection) {
    super(connection, "trainer");
  }

  /** A client with these options; it connects with its first call. */
  public static TrainerClient open(Options options) {
    return new TrainerClient(connect(options, PORT, "trainer"));
  }

  @Override
  TrainerClient over(Connection other) {
    return new TrainerClient(other);
  }

  /** The fates of turns' samples; of all pending ones when no turn is given. At most 1000 turns. */
  public List<SampleStatus> samples(List<String> turnIds) {
    return connection
        .unary(TrainerServiceGrpc.getListSamplesMethod(), ListSamplesRequest.newBuilder().addAllTurnIds(turnIds).build())
        .getSamplesList();
  }

  /** One version. */
  public PolicyVersion version(long version) {
    return connection
        .unary(TrainerServiceGrpc.getGetVersionMethod(), GetVersionRequest.newBuilder().setVersion(version).build())
        .getVersion();
  }

  /** The newest versions, ascending, and whether there are older ones. */
  public ListVersionsResponse versions() {
    return connection.unary(TrainerServiceGrpc.getListVersionsMethod(), ListVersionsRequest.getDefaultInstance());
  }

  /** The newest versions below a number. */
  public ListVersionsResponse versionsBefore(long before) {
    return connection.unary(
        TrainerServiceGrpc.getListVersionsMethod(), ListVersionsRequest.newBuilder().setBefore(before).build());
  }

  /** Each step, publication and skip as it happens. */
  public Responses<WatchTrainingResponse> watch() {
    return connection.watch(TrainerServiceGrpc.getWatchTrainingMethod(), WatchTrainingRequest.getDefaultInstance());
  }

  /** Trains now on what there is. */
  public TrainNowResponse trainNow() {
    return connection.unary(TrainerServiceGrpc.getTrainNowMethod(), TrainNowRequest.getDefaultInstance());
  }

  /** Starts no further step until resumed. */
  public void pause(String reason) {
    connection.unary(TrainerServiceGrpc.getPauseMethod(), PauseRequest.newBuilder().setReason(reason).build());
  }

  /** Ends a pause. */
  public void resume() {
    connection.unary(TrainerServiceGrpc.getResumeMethod(), ResumeRequest.getDefaultInstance());
  }

  /** A version's tensors: one offer, then chunks. */
  public Responses<FetchWeightsResponse> fetchWeights(FetchWeightsRequest request) {
    return connection.stream(TrainerServiceGrpc.getFetchWeightsMethod(), request);
  }

  /** The judge's stream of samples, for one of your own make. */
  public Delivery<Sample> deliver(Delivery.Settings settings, Outbox<Sample> outbox) {
    return new Delivery<>(settings, outbox, new Ring<>(connection, TrainerServiceGrpc.getSubmitSamplesMethod(),
        batch -> SubmitSamplesRequest.newBuilder().addAllSamples(batch).build(), SubmitSamplesResponse::getAcksList));
  }
}
