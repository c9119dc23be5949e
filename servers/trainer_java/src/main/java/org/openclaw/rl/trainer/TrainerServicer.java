package org.openclaw.rl.trainer;

import io.grpc.stub.ServerCallStreamObserver;
import io.grpc.stub.StreamObserver;
import java.util.List;
import org.openclaw.rl.v1.FetchWeightsRequest;
import org.openclaw.rl.v1.FetchWeightsResponse;
import org.openclaw.rl.v1.GetVersionRequest;
import org.openclaw.rl.v1.GetVersionResponse;
import org.openclaw.rl.v1.ListSamplesRequest;
import org.openclaw.rl.v1.ListSamplesResponse;
import org.openclaw.rl.v1.ListVersionsRequest;
import org.openclaw.rl.v1.ListVersionsResponse;
import org.openclaw.rl.v1.PauseRequest;
import org.openclaw.rl.v1.PauseResponse;
import org.openclaw.rl.v1.PolicyVersion;
import org.openclaw.rl.v1.ResumeRequest;
import org.openclaw.rl.v1.ResumeResponse;
import org.openclaw.rl.v1.SubmitSamplesRequest;
import org.openclaw.rl.v1.SubmitSamplesResponse;
import org.openclaw.rl.v1.TrainNowRequest;
import org.openclaw.rl.v1.TrainNowResponse;
import org.openclaw.rl.v1.TrainerServiceGrpc;
import org.openclaw.rl.v1.VersionDelivery;
import org.openclaw.rl.v1.WatchTrainingRequest;
import org.openclaw.rl.v1.WatchTrainingResponse;
import org.openclaw.rl.v1.WeightOffer;

/** TrainerService: translate, call, translate back. */
final class TrainerServicer extends TrainerServiceGrpc.TrainerServiceImplBase {
  private static final int MAX_TURNS = 1_000;
  private static final int PAGE = 200;

  private final Samples samples;
  private final Versions versions;
  private final Trainer trainer;
  private final Publisher publisher;
  private final Streams streams;

  TrainerServicer(Samples samples, Versions versions, Trainer trainer, Publisher publisher, Streams streams) {
    this.samples = samples;
    this.versions = versions;
    this.trainer = trainer;
    this.publisher = publisher;
    this.streams = streams;
  }

  @Override
  public StreamObserver<SubmitSamplesRequest> submitSamples(StreamObserver<SubmitSamplesResponse> observer) {
    ServerCallStreamObserver<SubmitSamplesResponse> call = (ServerCallStreamObserver<SubmitSamplesResponse>) observer;
    call.disableAutoRequest();
    Puller puller = new Puller(call);
    Streams.Stream<SubmitSamplesResponse> stream = streams.add(observer, puller::pull);
    puller.pull();
    return new StreamObserver<>() {
      @Override
      public void onNext(SubmitSamplesRequest request) {
        try {
          stream.send(SubmitSamplesResponse.newBuilder().addAllAcks(samples.accept(request.getSamplesList())).build());
        } catch (RuntimeException error) { // nothing was kept: the sender tries again later
          stream.end(Errors.known(error));
          return;
        }
        trainer.wake();
        puller.taken();
      }

      @Override
      public void onError(Throwable error) {
        // The stream knows.
      }

      @Override
      public void onCompleted() {
        stream.complete();
      }
    };
  }

  /** Asks for the next request when the acks of those before have room on the line: a slow reader holds itself up. */
  private static final class Puller {
    private final ServerCallStreamObserver<?> call;
    private boolean asked;

    Puller(ServerCallStreamObserver<?> call) {
      this.call = call;
    }

    synchronized void taken() {
      asked = false;
      pull();
    }

    synchronized void pull() {
      if (!asked && call.isReady()) {
        asked = true;
        call.request(1);
      }
    }
  }

  @Override
  public void listSamples(ListSamplesRequest request, StreamObserver<ListSamplesResponse> observer) {
    Errors.answer(observer, () -> {
      if (request.getTurnIdsCount() > MAX_TURNS) {
        throw Errors.invalid("turn_ids", request.getTurnIdsCount() + " turns", "at most " + MAX_TURNS + " of them");
      }
      return ListSamplesResponse.newBuilder().addAllSamples(samples.statuses(request.getTurnIdsList())).build();
    });
  }

  @Override
  public void getVersion(GetVersionRequest request, StreamObserver<GetVersionResponse> observer) {
    Errors.answer(observer, () -> GetVersionResponse.newBuilder().setVersion(translate(versions
        .find(request.getVersion()).orElseThrow(() -> unknown(request.getVersion())))).build());
  }

  @Override
  public void listVersions(ListVersionsRequest request, StreamObserver<ListVersionsResponse> observer) {
    Errors.answer(observer, () -> {
      List<Versions.Version> found =
          versions.page(request.hasBefore() ? request.getBefore() : Long.MAX_VALUE, PAGE + 1);
      boolean more = found.size() > PAGE;
      return ListVersionsResponse.newBuilder().setMore(more)
          .addAllVersions(found.stream().skip(more ? 1 : 0).map(this::translate).toList()).build();
    });
  }

  @Override
  public void watchTraining(WatchTrainingRequest request, StreamObserver<WatchTrainingResponse> observer) {
    trainer.watch(streams.add(observer, () -> {}));
  }

  @Override
  public void trainNow(TrainNowRequest request, StreamObserver<TrainNowResponse> observer) {
    Errors.answer(observer, trainer::trainNow);
  }

  @Override
  public void pause(PauseRequest request, StreamObserver<PauseResponse> observer) {
    Errors.answer(observer, () -> {
      trainer.pause(request.getReason());
      return PauseResponse.getDefaultInstance();
    });
  }

  @Override
  public void resume(ResumeRequest request, StreamObserver<ResumeResponse> observer) {
    Errors.answer(observer, () -> {
      trainer.resume();
      return ResumeResponse.getDefaultInstance();
    });
  }

  @Override
  public void fetchWeights(FetchWeightsRequest request, StreamObserver<FetchWeightsResponse> observer) {
    try {
      long number = request.hasVersion() ? request.getVersion() : versions.head();
      Versions.Version version = versions.find(number).filter(v -> v.playbook() != null)
          .orElseThrow(() -> unknown(number));
      if (request.hasBaseVersion() && versions.find(request.getBaseVersion()).isEmpty()) {
        throw Errors.of(io.grpc.Status.Code.FAILED_PRECONDITION, "VERSION_UNKNOWN", "base_version "
            + request.getBaseVersion() + " is not here; without a base_version the playbook is sent whole");
      }
      List<String> names = request.getTensorsList();
      if (!names.isEmpty() && !names.equals(List.of(Playbooks.TENSOR))) {
        throw Errors.invalid("tensors[0]", names.get(0), "the name of a tensor of the version, once: playbook");
      }
      byte[] data = version.playbook();
      if (request.getFromByte() < 0 || request.getFromByte() > data.length) {
        throw Errors.invalid("from_byte", request.getFromByte(), "between 0 and " + data.length);
      }
      observer.onNext(FetchWeightsResponse.newBuilder().setOffer(WeightOffer.newBuilder()
          .setManifest(version.manifest()).addTensors(Playbooks.spec(data))).build());
      int from = (int) request.getFromByte();
      if (from < data.length) { // a playbook fits into one chunk
        observer.onNext(FetchWeightsResponse.newBuilder()
            .setChunk(Playbooks.chunk(number, data, from, data.length - from)).build());
      }
      observer.onCompleted();
    } catch (RuntimeException error) {
      observer.onError(Errors.known(error));
    }
  }

  private static io.grpc.StatusRuntimeException unknown(long version) {
    return Errors.notFound("version", String.valueOf(version), "ListVersions tells those there are");
  }

  private PolicyVersion translate(Versions.Version version) {
    boolean active = versions.active() == version.number();
    String detail = active ? "" : publisher.sending(version.number()) ? "being sent"
        : !version.detail().isEmpty() ? version.detail()
        : version.activatedAt() > 0 || version.number() == 0 ? "another one is active"
        : publisher.connected() ? "not active" : "the policy server can't be reached: " + publisher.problem();
    VersionDelivery.Builder delivery =
        VersionDelivery.newBuilder().setAddress(publisher.address()).setActive(active).setDetail(detail);
    PolicyVersion.Builder answer = PolicyVersion.newBuilder().setManifest(version.manifest()).setActive(active)
        .setDetail(detail).setKept(version.playbook() != null);
    if (version.activatedAt() > 0) {
      delivery.setActivatedAt(Samples.timestamp(version.activatedAt()));
      answer.setActivatedAt(delivery.getActivatedAt());
    }
    samples.live(version.number()).ifPresent(answer::setLive);
    return answer.addDeliveries(delivery).build();
  }
}
