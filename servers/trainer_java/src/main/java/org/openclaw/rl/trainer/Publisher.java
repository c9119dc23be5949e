package org.openclaw.rl.trainer;

import io.grpc.Channel;
import io.grpc.ClientInterceptors;
import io.grpc.Metadata;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.protobuf.StatusProto;
import io.grpc.stub.ClientCallStreamObserver;
import io.grpc.stub.ClientResponseObserver;
import io.grpc.stub.MetadataUtils;
import java.time.Duration;
import java.util.UUID;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.logging.Level;
import java.util.logging.Logger;
import org.openclaw.rl.MeshException;
import org.openclaw.rl.PolicyClient;
import org.openclaw.rl.v1.GetPolicyResponse;
import org.openclaw.rl.v1.Playbook;
import org.openclaw.rl.v1.PolicyServiceGrpc;
import org.openclaw.rl.v1.PolicyState;
import org.openclaw.rl.v1.SyncWeightsRequest;
import org.openclaw.rl.v1.SyncWeightsResponse;
import org.openclaw.rl.v1.TrainingEventKind;
import org.openclaw.rl.v1.VersionManifest;
import org.openclaw.rl.v1.WeightAbort;
import org.openclaw.rl.v1.WeightCommit;
import org.openclaw.rl.v1.WeightNeed;
import org.openclaw.rl.v1.WeightOffer;
import org.openclaw.rl.v1.WeightProgress;
import org.openclaw.rl.v1.WeightRejectReason;
import org.openclaw.rl.v1.WeightRejected;

/**
 * The trainer's side of the weight stream to one policy server: brings it to the head, and follows its rollbacks. A
 * broken stream is opened again with growing pauses; the receiver says from which byte a transfer goes on.
 */
final class Publisher implements AutoCloseable {
  private static final Logger LOG = Logger.getLogger(Publisher.class.getName());
  private static final Metadata.Key<String> TRAINER =
      Metadata.Key.of("openclaw-trainer", Metadata.ASCII_STRING_MARSHALLER);
  private static final long FIRST_PAUSE_MS = 100;
  private static final long LONGEST_PAUSE_MS = 5_000;
  /** Longest time for an answer to GetPolicy. */
  private static final Duration ANSWER = Duration.ofSeconds(10);

  /** The stream is given up and opened again; the text says why. */
  private static final class Again extends Exception {
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

  private final PolicyClient policy;
  private final String address;
  private final Channel channel;
  private final Versions versions;
  private final Trainer trainer;
  private final LinkedBlockingQueue<Object> events = new LinkedBlockingQueue<>(); // answers, errors, and wakes
  private final Thread thread = new Thread(this::run, "weight stream");
  private volatile PolicyState state; // null while there is no stream
  private volatile String problem = "connecting";
  private volatile long downSince = System.nanoTime();
  private volatile boolean closed;
  private volatile Transfer transfer;
  private ClientCallStreamObserver<SyncWeightsRequest> call;
  private boolean gotOn; // this stream brought something forward

  Publisher(PolicyClient policy, Store store, Versions versions, Trainer trainer) {
    this.policy = policy;
    this.address = policy.address();
    this.versions = versions;
    this.trainer = trainer;
    if (store.get("identity").isEmpty()) {
      store.set("identity", "trainer_" + UUID.randomUUID().toString().replace("-", ""));
    }
    Metadata who = new Metadata();
    who.put(TRAINER, store.get("identity").orElseThrow());
    this.channel = ClientInterceptors.intercept(policy.channel(), MetadataUtils.newAttachHeadersInterceptor(who));
    thread.setDaemon(true);
    trainer.onVersion(this::wake);
  }

  void start() {
    thread.start();
  }

  String address() {
    return address;
  }

  /** There may be something to offer. */
  void wake() {
    events.offer(this);
  }

  boolean connected() {
    return state != null;
  }

  /** Why there is no stream; empty while there is one. */
  String problem() {
    return connected() ? "" : problem;
  }

  /** Seconds without a stream; 0 while there is one. */
  double down() {
    return connected() ? 0 : (System.nanoTime() - downSince) / 1e9;
  }

  boolean sending(long version) {
    Transfer now = transfer;
    return now != null && now.version.number() == version;
  }

  private void run() {
    long pause = FIRST_PAUSE_MS;
    while (!closed) {
      gotOn = false;
      events.clear();
      String why;
      try {
        converse();
        why = "ended";
      } catch (Again again) {
        why = again.getMessage();
      } catch (StatusRuntimeException error) {
        com.google.rpc.Status rich = StatusProto.fromThrowable(error);
        why = rich == null || rich.getMessage().isEmpty() ? error.getStatus().toString() : rich.getMessage();
        gotOn = gotOn && error.getStatus().getCode() != Status.Code.ABORTED; // somebody else took over: no chase
      } catch (MeshException error) {
        why = error.getMessage();
      } catch (RuntimeException error) {
        LOG.log(Level.SEVERE, "the weight stream failed", error);
        why = String.valueOf(error.getMessage());
      } catch (InterruptedException interrupted) {
        return;
      }
      if (state != null) {
        downSince = System.nanoTime();
      }
      state = null;
      transfer = null;
      if (!why.equals(problem) && !closed) { // once, not with each attempt of a long outage
        LOG.info("no weight stream to " + address + ", trying again: " + why);
      }
      problem = why;
      if (call != null) {
        call.cancel(closed ? "the trainer is stopping" : why, null);
      }
      pause = gotOn ? FIRST_PAUSE_MS : Math.min(LONGEST_PAUSE_MS, pause * 2);
      rest(pause);
    }
  }

  private void rest(long milliseconds) {
    long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(milliseconds);
    try {
      while (!closed && System.nanoTime() < end) {
        events.poll(end - System.nanoTime(), TimeUnit.NANOSECONDS);
      }
    } catch (InterruptedException interrupted) {
      closed = true;
    }
  }

  private void converse() throws Again, InterruptedException {
    learnModel();
    PolicyServiceGrpc.newStub(channel).syncWeights(new Answers());
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

  /** Version 0 is the policy server's: its model's id and the digest of the empty playbook come from there. */
  private void learnModel() throws Again {
    GetPolicyResponse there = policy.withDeadline(ANSWER).policy();
    if (there.getState().getVocabSize() > 0) {
      throw new Again("the policy server at " + address + " serves " + there.getState().getModel() + ", a model with "
          + "weights; this trainer makes playbooks, which are for API models");
    }
    VersionManifest base = there.getManifestsList().stream().filter(manifest -> manifest.getVersion() == 0).findFirst()
        .orElse(VersionManifest.newBuilder().setModelId(there.getState().getModelId()).setAlgorithm("base")
            .setDigest(Playbooks.digest(Playbooks.dump(Playbook.getDefaultInstance()))).setTotalBytes(2).build());
    if (!versions.base(base)) {
      throw new Again("the policy server at " + address + " serves " + there.getState().getModel() + ", and the versions "
          + "in this trainer's folder are of another model: start the trainer with another --data");
    }
    trainer.wake();
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
      problem = "";
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

  /** Ends the stream; a commit under way is waited for. */
  @Override
  public void close() {
    closed = true;
    wake();
    try {
      thread.join(5_000);
    } catch (InterruptedException interrupted) {
      Thread.currentThread().interrupt();
    }
  }

  /** Puts what comes where the stream's own thread takes it. */
  private final class Answers implements ClientResponseObserver<SyncWeightsRequest, SyncWeightsResponse> {
    private ClientCallStreamObserver<SyncWeightsRequest> mine;

    @Override
    public void beforeStart(ClientCallStreamObserver<SyncWeightsRequest> stream) {
      mine = stream;
      call = stream;
    }

    private void put(Object event) {
      if (call == mine) { // else it is of a stream that was given up
        events.offer(event);
      }
    }

    @Override
    public void onNext(SyncWeightsResponse response) {
      put(response);
    }

    @Override
    public void onError(Throwable error) {
      put(error instanceof StatusRuntimeException known ? known : Status.fromThrowable(error).asRuntimeException());
    }

    @Override
    public void onCompleted() {
      put(Status.UNAVAILABLE.withDescription("the policy server closed the stream").asRuntimeException());
    }
  }
}
