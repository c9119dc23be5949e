package org.openclaw.rl.trainer;

import io.grpc.Context;
import io.grpc.Contexts;
import io.grpc.Metadata;
import io.grpc.Server;
import io.grpc.ServerInterceptors;
import io.grpc.Status;
import io.grpc.netty.shaded.io.grpc.netty.NettyServerBuilder;
import io.grpc.stub.StreamObserver;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.zip.CRC32C;
import org.openclaw.rl.v1.GetPolicyRequest;
import org.openclaw.rl.v1.GetPolicyResponse;
import org.openclaw.rl.v1.Playbook;
import org.openclaw.rl.v1.PolicyServiceGrpc;
import org.openclaw.rl.v1.PolicyState;
import org.openclaw.rl.v1.SyncWeightsRequest;
import org.openclaw.rl.v1.SyncWeightsResponse;
import org.openclaw.rl.v1.VersionManifest;
import org.openclaw.rl.v1.WeightNeed;
import org.openclaw.rl.v1.WeightOffer;
import org.openclaw.rl.v1.WeightRejectReason;

/** A policy server with an API model, as far as versions go. */
final class FakePolicy extends PolicyServiceGrpc.PolicyServiceImplBase implements AutoCloseable {
  private static final Context.Key<String> TRAINER = Context.key("trainer");

  private static final int CREDIT = 50;
  /** What a trainer may not do. */
  final List<String> faults = Collections.synchronizedList(new ArrayList<>());
  final List<WeightOffer> offers = Collections.synchronizedList(new ArrayList<>());
  final List<String> trainers = Collections.synchronizedList(new ArrayList<>());
  volatile Playbook active = Playbook.getDefaultInstance();
  volatile WeightRejectReason refuse; // the next offer
  volatile boolean refuseForGood = true;
  volatile boolean breakAfterFirstChunk;
  volatile boolean dropActivated;
  volatile boolean hasItAlready; // all tensors of the next offer
  volatile boolean asksForAnother; // tensor, once
  volatile boolean neverAnswersOffers;
  volatile String mesh = ""; // that it says to be of
  final List<Long> aborts = Collections.synchronizedList(new ArrayList<>());
  private final Server server;
  private PolicyState state = PolicyState.newBuilder().setModel("api").setModelId("api-id").setEngine("openai")
      .addKeptVersions(0).setAcceptsWeights(true).setActiveDigest(digest()).build();
  private ByteArrayOutputStream part = new ByteArrayOutputStream();
  private StreamObserver<SyncWeightsResponse> stream;

  FakePolicy() throws IOException {
    server = NettyServerBuilder.forAddress(new InetSocketAddress("127.0.0.1", 0)).addService(
        ServerInterceptors.intercept(bindService(), new io.grpc.ServerInterceptor() {
          @Override
          public <Q, A> io.grpc.ServerCall.Listener<Q> interceptCall(
              io.grpc.ServerCall<Q, A> call, Metadata headers, io.grpc.ServerCallHandler<Q, A> next) {
            String who = headers.get(Metadata.Key.of("openclaw-trainer", Metadata.ASCII_STRING_MARSHALLER));
            return Contexts.interceptCall(
                Context.current().withValue(TRAINER, who == null ? "" : who),
                new io.grpc.ForwardingServerCall.SimpleForwardingServerCall<Q, A>(call) {
                  @Override
                  public void sendHeaders(Metadata answer) {
                    new org.openclaw.rl.Mesh(mesh, "policy_server").into(answer);
                    super.sendHeaders(answer);
                  }
                }, headers, next);
          }
        })).build().start();
  }

  private static String digest() {
    return Playbooks.digest(Playbooks.dump(Playbook.getDefaultInstance()));
  }

  String address() {
    return "127.0.0.1:" + server.getPort();
  }

  synchronized PolicyState state() {
    return state;
  }

  /** Breaks the stream. */
  synchronized void cut() {
    stream.onError(Status.UNAVAILABLE.withDescription("the line broke").asRuntimeException());
  }

  /** What an operator does. */
  synchronized void change(java.util.function.UnaryOperator<PolicyState.Builder> how) {
    state = how.apply(state.toBuilder()).build();
    stream.onNext(SyncWeightsResponse.newBuilder().setState(state).build());
  }

  @Override
  public synchronized void getPolicy(GetPolicyRequest request, StreamObserver<GetPolicyResponse> observer) {
    observer.onNext(GetPolicyResponse.newBuilder().setState(state).addManifests(VersionManifest.newBuilder()
        .setModelId("api-id").setAlgorithm("base").setDigest(digest()).setTotalBytes(2)).build());
    observer.onCompleted();
  }

  @Override
  public synchronized StreamObserver<SyncWeightsRequest> syncWeights(StreamObserver<SyncWeightsResponse> observer) {
    trainers.add(TRAINER.get());
    stream = observer;
    observer.onNext(SyncWeightsResponse.newBuilder().setState(state).build());
    return new StreamObserver<>() {
      private WeightOffer offer;

      @Override
      public void onNext(SyncWeightsRequest request) {
        synchronized (FakePolicy.this) {
          take(request);
        }
      }

      private void take(SyncWeightsRequest request) {
        SyncWeightsResponse.Builder answer = SyncWeightsResponse.newBuilder();
        switch (request.getMessageCase()) {
          case OFFER -> {
            offer = request.getOffer();
            offers.add(offer);
            long version = offer.getManifest().getVersion();
            if (state.getPinned()) {
              faults.add("an offer while a version is pinned");
              answer.getRejectedBuilder().setVersion(version)
                  .setReason(WeightRejectReason.WEIGHT_REJECT_REASON_PINNED).setRetryable(true);
            } else if (refuse != null) {
              answer.getRejectedBuilder().setVersion(version).setReason(refuse).setMessage("refused by the test")
                  .setRetryable(!refuseForGood);
              refuse = null;
            } else if (neverAnswersOffers) {
              return;
            } else if (hasItAlready) {
              observer.onNext(answer.setNeed(WeightNeed.newBuilder().setVersion(version).setCreditBytes(CREDIT)).build());
              answer.getStagedBuilder().setVersion(version);
            } else if (asksForAnother) {
              asksForAnother = false;
              answer.setNeed(WeightNeed.newBuilder().setVersion(version).addTensors("another").setCreditBytes(CREDIT));
            } else {
              answer.setNeed(WeightNeed.newBuilder().setVersion(version).addTensors("playbook")
                  .setFromByte(part.size()).setCreditBytes(CREDIT));
            }
          }
          case CHUNK -> {
            byte[] data = request.getChunk().getData().toByteArray();
            if (hasItAlready) {
              faults.add("a chunk of a tensor that is there");
            }
            CRC32C crc = new CRC32C();
            crc.update(data);
            if (request.getChunk().getOffset() != part.size() || data.length > CREDIT
                || (int) crc.getValue() != request.getChunk().getCrc32C()) {
              faults.add("a bad chunk at " + request.getChunk().getOffset());
              observer.onError(Status.INTERNAL.withDescription("a bad chunk").asRuntimeException());
              return;
            }
            part.writeBytes(data);
            if (breakAfterFirstChunk) {
              breakAfterFirstChunk = false;
              observer.onError(Status.UNAVAILABLE.withDescription("the line broke").asRuntimeException());
              return;
            }
            long total = offer.getTensors(0).getEncodedBytes();
            answer.getProgressBuilder().setVersion(offer.getManifest().getVersion()).setReceivedBytes(part.size())
                .setTotalBytes(total).setCreditBytes(CREDIT);
            if (part.size() == total) {
              observer.onNext(answer.build());
              answer.getStagedBuilder().setVersion(offer.getManifest().getVersion());
            }
          }
          case COMMIT -> {
            long version = request.getCommit().getVersion();
            active = hasItAlready ? active : Playbooks.parse(part.toByteArray());
            part = new ByteArrayOutputStream();
            state = state.toBuilder().setActiveVersion(version).setHighestVersion(version).addKeptVersions(version)
                .setActiveDigest(offer.getManifest().getDigest()).build();
            if (dropActivated) {
              dropActivated = false;
              observer.onError(Status.UNAVAILABLE.asRuntimeException());
              return;
            }
            answer.getActivatedBuilder().setVersion(version);
          }
          case ABORT -> {
            aborts.add(request.getAbort().getVersion());
            return;
          }
          default -> {
            return;
          }
        }
        observer.onNext(answer.build());
      }

      @Override
      public void onError(Throwable error) {}

      @Override
      public void onCompleted() {
        observer.onCompleted();
      }
    };
  }

  @Override
  public void close() throws InterruptedException {
    server.shutdownNow();
    server.awaitTermination();
  }
}
