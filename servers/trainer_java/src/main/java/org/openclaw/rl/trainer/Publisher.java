package org.openclaw.rl.trainer;

import io.grpc.Channel;
import io.grpc.ClientInterceptors;
import io.grpc.Metadata;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.protobuf.StatusProto;
import io.grpc.stub.MetadataUtils;
import java.time.Duration;
import java.util.UUID;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.logging.Level;
import java.util.logging.Logger;
import org.openclaw.rl.MeshException;
import org.openclaw.rl.PolicyClient;
import org.openclaw.rl.v1.GetPolicyResponse;
import org.openclaw.rl.v1.Playbook;
import org.openclaw.rl.v1.VersionManifest;

/**
 * Keeps a weight stream to one policy server open: brings it to the head, and follows its rollbacks. A broken stream is
 * opened again with growing pauses.
 */
final class Publisher implements AutoCloseable {
  private static final Logger LOG = Logger.getLogger(Publisher.class.getName());
  private static final Metadata.Key<String> TRAINER =
      Metadata.Key.of("openclaw-trainer", Metadata.ASCII_STRING_MARSHALLER);
  private static final long FIRST_PAUSE_MS = 100;
  private static final long LONGEST_PAUSE_MS = 5_000;
  /** Longest time for an answer to GetPolicy. */
  private static final Duration ANSWER = Duration.ofSeconds(10);

  private final PolicyClient policy;
  private final Channel channel;
  private final Versions versions;
  private final Trainer trainer;
  private final Membership membership;
  private final Thread thread = new Thread(this::run, "weight stream");
  private final CountDownLatch closed = new CountDownLatch(1);
  private volatile WeightStream stream;
  private volatile String problem = "connecting";
  private volatile long downSince = System.nanoTime();

  Publisher(PolicyClient policy, Store store, Versions versions, Trainer trainer, Membership membership) {
    this.policy = policy;
    this.membership = membership;
    this.versions = versions;
    this.trainer = trainer;
    this.stream = new WeightStream(address(), versions, trainer);
    if (store.get("identity").isEmpty()) {
      store.set("identity", "trainer_" + UUID.randomUUID().toString().replace("-", ""));
    }
    Metadata who = new Metadata();
    who.put(TRAINER, store.get("identity").orElseThrow());
    this.channel = ClientInterceptors.intercept(policy.channel(), MetadataUtils.newAttachHeadersInterceptor(who));
    thread.setDaemon(true);
    trainer.onVersion(() -> stream.wake());
  }

  void start() {
    thread.start();
  }

  /** HOST:PORT of the policy server. */
  String address() {
    return policy.address();
  }

  boolean connected() {
    return stream.answered();
  }

  /** Why there is no stream; empty while there is one. */
  String problem() {
    return connected() ? "" : problem;
  }

  /** Seconds without a stream; 0 while there is one. */
  double down() {
    return connected() ? 0 : (System.nanoTime() - downSince) / 1e9;
  }

  /** The version is on its way. */
  boolean sending(long version) {
    return stream.sending(version);
  }

  private void run() {
    long pause = FIRST_PAUSE_MS;
    try {
      while (closed.getCount() > 0) {
        WeightStream one = stream;
        boolean quickly = false;
        String why = "ended";
        try {
          learnModel();
          one.run(channel);
        } catch (WeightStream.Again error) {
          why = error.getMessage();
        } catch (MeshException error) {
          why = error.getMessage();
          if (error.reason().equals(Membership.WRONG_MESH)) {
            membership.meet(why);
          }
        } catch (StatusRuntimeException error) {
          com.google.rpc.Status rich = StatusProto.fromThrowable(error);
          membership.note(rich);
          why = rich == null || rich.getMessage().isEmpty() ? error.getStatus().toString() : rich.getMessage();
          quickly = error.getStatus().getCode() != Status.Code.ABORTED; // then somebody else took over: no chase
        } catch (RuntimeException error) {
          LOG.log(Level.SEVERE, "the weight stream failed", error);
          why = String.valueOf(error.getMessage());
        }
        one.cancel(why);
        if (one.answered()) {
          downSince = System.nanoTime();
          problem = "";
        }
        stream = new WeightStream(address(), versions, trainer);
        if (!why.equals(problem) && closed.getCount() > 0) { // once, not with each attempt of a long outage
          LOG.info("no weight stream to " + address() + ", trying again: " + why);
        }
        problem = why;
        pause = quickly && one.gotOn() ? FIRST_PAUSE_MS : Math.min(LONGEST_PAUSE_MS, pause * 2);
        closed.await(pause, TimeUnit.MILLISECONDS);
      }
    } catch (InterruptedException interrupted) {
      Thread.currentThread().interrupt();
    }
  }

  /** Version 0 is the policy server's: its model's id and the digest of the empty playbook come from there. */
  private void learnModel() throws WeightStream.Again {
    GetPolicyResponse there = policy.withDeadline(ANSWER).policy();
    if (there.getState().getVocabSize() > 0) {
      throw new WeightStream.Again("the policy server at " + address() + " serves " + there.getState().getModel() + ", a model with "
          + "weights; this trainer makes playbooks, which are for API models");
    }
    VersionManifest base = there.getManifestsList().stream().filter(manifest -> manifest.getVersion() == 0).findFirst()
        .orElse(VersionManifest.newBuilder().setModelId(there.getState().getModelId()).setAlgorithm("base")
            .setDigest(Playbooks.digest(Playbooks.dump(Playbook.getDefaultInstance()))).setTotalBytes(2).build());
    if (!versions.base(base)) {
      throw new WeightStream.Again("the policy server at " + address() + " serves " + there.getState().getModel() + ", and the versions "
          + "in this trainer's folder are of another model: start the trainer with another --data");
    }
    trainer.wake();
  }

  /** Ends the stream; a commit under way is waited for. */
  @Override
  public void close() {
    closed.countDown();
    stream.close();
    try {
      thread.join(5_000);
    } catch (InterruptedException interrupted) {
      Thread.currentThread().interrupt();
    }
  }
}
