package org.openclaw.rl.trainer;

import io.grpc.Channel;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.stub.ClientCallStreamObserver;
import io.grpc.stub.ClientResponseObserver;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.logging.Logger;
import org.openclaw.rl.v1.PolicyServiceGrpc;
import org.openclaw.rl.v1.PolicyState;
import org.openclaw.rl.v1.SyncWeightsRequest;
import org.openclaw.rl.v1.SyncWeightsResponse;
import org.openclaw.rl.v1.TrainingEventKind;
import org.openclaw.rl.v1.WeightAbort;
import org.openclaw.rl.v1.WeightCommit;
import org.openclaw.rl.v1.WeightNeed;
import org.openclaw.rl.v1.WeightOffer;
import org.openclaw.rl.v1.WeightProgress;
import org.openclaw.rl.v1.WeightRejectReason;
import org.openclaw.rl.v1.WeightRejected;

/**
 * One SyncWeights call, until it breaks: state, offer, need, chunks within the credit, staged, commit, activated or
 * rejected. The receiver says from which byte a transfer goes on.
 */
final class WeightStream implements ClientResponseObserver<SyncWeightsRequest, SyncWeightsResponse> {
  private static final Logger LOG = Logger.getLogger(WeightStream.class.getName());
  /** Wakes the thread: there may be something to offer, or the trainer ends. */
  private static final Object WAKE = new Object();

  /** The stream is given up and opened again; the text says why. */
  static final class Again extends Exception {
    private static final long serialVersionUID = 1L;

    Again(String why) {
      super(why);
    }
  }

  /** A version on its way. */
  private static final class Transfer {
    final Versions.Version version;
    long sent = -1; // bytes; -1 before the receiver said what it lacks
    long end;
    long credit;
    boolean committed;

    Transfer(Versions.Version version) {
      this.version = version;
    }
  }

  private final String address;
  private final Versions versions;
  private final Trainer trainer;
  private final LinkedBlockingQueue<Object> events = new LinkedBlockingQueue<>(); // answers, errors, and wakes
  private volatile PolicyState state; // null before the first answer
  private volatile Transfer transfer;
  private volatile boolean closed;
  private ClientCallStreamObserver<SyncWeightsRequest> call;
  private boolean gotOn;

  WeightStream(String address, Versions versions, Trainer trainer) {
    this.address = address;
    this.versions = versions;
    this.trainer = trainer;
  }

  /** Converses until the stream breaks, or until {@code close}. */
  void run(Channel channel) throws Again, InterruptedException {
    PolicyServiceGrpc.newStub(channel).syncWeights(this);
    while (true) {
      Object event = events.take();
      if (event instanceof SyncWeightsResponse response) {
        take(response);
      } else if (event instanceof StatusRuntimeException error) {
        throw error;
      }
      if (closed && (transfer == null || !transfer.committed)) {
        goodbye();
        return;
      }
      offer();
    }
  }

  /** There may be something to offer. */
  void wake() {
    events.offer(WAKE);
  }

  /** Ends it, after a commit that is under way. */
  void close() {
    closed = true;
    wake();
  }

  /** What is left of the call. */
  void cancel(String why) {
    if (call != null) {
      call.cancel(why, null);
    }
  }

  /** The policy server has answered. */
  boolean answered() {
    return state != null;
  }

  /** It brought something forward, so that the next one may begin at once. */
  boolean gotOn() {
    return gotOn;
  }

  boolean sending(long version) {
    Transfer now = transfer;
    return now != null && now.version.number() == version;
  }

  private void take(SyncWeightsResponse response) throws Again {
    switch (response.getMessageCase()) {
      case STATE -> takeState(response.getState());
      case NEED -> takeNeed(response.getNeed());
      case PROGRESS -> takeProgress(response.getProgress());
      case STAGED -> {
        if (sending(response.getStaged().getVersion()) && !transfer.committed) {
          gotOn = true;
          transfer.committed = true;
          call.onNext(SyncWeightsRequest.newBuilder()
              .setCommit(WeightCommit.newBuilder().setVersion(response.getStaged().getVersion())).build());
        }
      }
      case ACTIVATED -> {
        if (sending(response.getActivated().getVersion())) {
          activated();
        }
      }
      case REJECTED -> {
        if (sending(response.getRejected().getVersion())) {
          takeRejection(response.getRejected());
        }
      }
      default -> LOG.fine("an answer of a newer contract was passed over");
    }
  }

  private void takeState(PolicyState now) {
    if (state == null) {
      LOG.info("weight stream to " + address + ": version " + now.getActiveVersion() + " is active there");
    }
    state = now;
    versions.follow(now).ifPresent(base -> trainer.tell(TrainingEventKind.TRAINING_EVENT_KIND_ROLLED_BACK, base,
        "an operator changed the version; training goes on from version " + base));
    trainer.wake();
  }

  private void offer() {
    if (state == null) {
      return;
    }
    if (transfer != null) {
      if (transfer.committed || versions.find(transfer.version.number()).filter(v -> !v.refused()).isPresent()) {
        return;
      }
      call.onNext(SyncWeightsRequest.newBuilder().setAbort(WeightAbort.newBuilder()
          .setVersion(transfer.version.number()).setReason("it was taken back")).build());
      transfer = null;
    }
    if (state.getPinned()) {
      return; // the next state says when the pin is lifted
    }
    versions.due(state).ifPresent(version -> {
      transfer = new Transfer(version);
      call.onNext(SyncWeightsRequest.newBuilder().setOffer(WeightOffer.newBuilder().setManifest(version.manifest())
          .addTensors(Playbooks.spec(version.playbook()))).build());
    });
  }

  private void takeNeed(WeightNeed need) throws Again {
    if (!sending(need.getVersion())) {
      return;
    }
    transfer.credit += need.getCreditBytes();
    if (transfer.sent < 0) {
      boolean wanted = need.getTensorsList().contains(Playbooks.TENSOR);
      transfer.end = wanted ? transfer.version.playbook().length : 0;
      if (need.getTensorsCount() > (wanted ? 1 : 0) || need.getFromByte() < 0 || need.getFromByte() > transfer.end) {
        throw new Again("the policy server asks for byte " + need.getFromByte() + " of " + need.getTensorsList()
            + ", which was not offered");
      }
      transfer.sent = need.getFromByte();
    }
    send();
  }

  private void takeProgress(WeightProgress progress) {
    if (sending(progress.getVersion())) {
      gotOn = true;
      transfer.credit += progress.getCreditBytes();
      send();
    }
  }

  private void send() {
    while (transfer.sent >= 0 && transfer.sent < transfer.end && transfer.credit > 0) {
      int size = (int) Math.min(Playbooks.CHUNK, Math.min(transfer.credit, transfer.end - transfer.sent));
      call.onNext(SyncWeightsRequest.newBuilder().setChunk(Playbooks.chunk(
          transfer.version.number(), transfer.version.playbook(), (int) transfer.sent, size)).build());
      transfer.sent += size;
      transfer.credit -= size;
    }
  }

  private void activated() {
    Versions.Version version = transfer.version;
    transfer = null;
    gotOn = true;
    state = state.toBuilder().setActiveVersion(version.number()).setActiveDigest(version.manifest().getDigest())
        .setHighestVersion(Math.max(state.getHighestVersion(), version.number())).build();
    versions.activated(version.number(), Samples.now());
    trainer.tell(TrainingEventKind.TRAINING_EVENT_KIND_VERSION_ACTIVATED, version.number(),
        "version " + version.number() + " is active");
  }

  private void takeRejection(WeightRejected rejected) throws Again {
    if (rejected.getReason() == WeightRejectReason.WEIGHT_REJECT_REASON_ALREADY_ACTIVE) {
      activated(); // what told of it was lost on the way
    } else if (rejected.getReason() == WeightRejectReason.WEIGHT_REJECT_REASON_PINNED && state.getPinned()) {
      transfer = null;
    } else if (rejected.getRetryable()) {
      throw new Again("version " + rejected.getVersion() + " was not taken: " + rejected.getMessage());
    } else {
      transfer = null;
      versions.refused(rejected.getVersion(), "rejected: " + rejected.getMessage());
      trainer.tell(TrainingEventKind.TRAINING_EVENT_KIND_VERSION_REJECTED, rejected.getVersion(), rejected.getMessage());
    }
  }

  private void goodbye() {
    if (transfer != null) {
      call.onNext(SyncWeightsRequest.newBuilder().setAbort(WeightAbort.newBuilder()
          .setVersion(transfer.version.number()).setReason("the trainer is stopping")).build());
    }
    call.onCompleted();
  }

  @Override
  public void beforeStart(ClientCallStreamObserver<SyncWeightsRequest> stream) {
    call = stream;
  }

  @Override
  public void onNext(SyncWeightsResponse response) {
    events.offer(response);
  }

  @Override
  public void onError(Throwable error) {
    events.offer(error instanceof StatusRuntimeException known ? known : Status.fromThrowable(error).asRuntimeException());
  }

  @Override
  public void onCompleted() {
    events.offer(Status.UNAVAILABLE.withDescription("the policy server closed the stream").asRuntimeException());
  }
}
