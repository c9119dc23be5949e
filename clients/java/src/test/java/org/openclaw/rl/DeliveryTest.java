package org.openclaw.rl;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.grpc.ForwardingServerCall;
import io.grpc.Metadata;
import io.grpc.ServerCall;
import io.grpc.ServerCallHandler;
import io.grpc.ServerInterceptor;
import io.grpc.ServerInterceptors;
import io.grpc.Status;
import io.grpc.stub.StreamObserver;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.BiConsumer;
import org.junit.jupiter.api.Test;
import org.openclaw.rl.v1.Ack;
import org.openclaw.rl.v1.AckStatus;
import org.openclaw.rl.v1.ComponentServiceGrpc;
import org.openclaw.rl.v1.Sample;
import org.openclaw.rl.v1.SubmitSamplesRequest;
import org.openclaw.rl.v1.SubmitSamplesResponse;
import org.openclaw.rl.v1.TrainerServiceGrpc;

class DeliveryTest {
  private static final Duration LIMIT = Duration.ofSeconds(30);

  /** Does with each message what the test says. */
  private static final class Trainer extends TrainerServiceGrpc.TrainerServiceImplBase {
    private final List<String> seen = Collections.synchronizedList(new ArrayList<>());
    private final BiConsumer<String, StreamObserver<SubmitSamplesResponse>> behaviour;
    private volatile int streams;

    Trainer(BiConsumer<String, StreamObserver<SubmitSamplesResponse>> behaviour) {
      this.behaviour = behaviour;
    }

    @Override
    public StreamObserver<SubmitSamplesRequest> submitSamples(StreamObserver<SubmitSamplesResponse> observer) {
      streams++;
      return new StreamObserver<>() {
        @Override
        public void onNext(SubmitSamplesRequest request) {
          for (Sample sample : request.getSamplesList()) {
            String id = sample.getTransition().getTurn().getTurnId();
            seen.add(id);
            behaviour.accept(id, observer);
          }
        }

        @Override
        public void onError(Throwable error) {}

        @Override
        public void onCompleted() {
          observer.onCompleted();
        }
      };
    }
  }

  private static SubmitSamplesResponse ack(String id, AckStatus status, String reason) {
    return SubmitSamplesResponse.newBuilder().addAcks(Ack.newBuilder().setId(id).setStatus(status).setReason(reason))
        .build();
  }

  private static SubmitSamplesResponse accepted(String id) {
    return ack(id, AckStatus.ACK_STATUS_ACCEPTED, "");
  }

  private static Sample sample(String id) {
    Sample.Builder sample = Sample.newBuilder();
    sample.getTransitionBuilder().getTurnBuilder().setTurnId(id);
    return sample.build();
  }

  /** Headers, at once, of a component of the mesh that it says now. */
  private static ServerInterceptor of(AtomicReference<String> mesh) {
    return new ServerInterceptor() {
      @Override
      public <Q, A> ServerCall.Listener<Q> interceptCall(
          ServerCall<Q, A> call, Metadata headers, ServerCallHandler<Q, A> next) {
        Metadata ours = new Metadata();
        new Mesh(mesh.get(), "trainer").into(ours);
        call.sendHeaders(ours);
        return next.startCall(new ForwardingServerCall.SimpleForwardingServerCall<>(call) {
          @Override
          public void sendHeaders(Metadata more) {}
        }, headers);
      }
    };
  }

  @Test
  void nothingIsSentToAnotherMesh() throws Exception {
    Trainer trainer = new Trainer((id, stream) -> stream.onNext(accepted(id)));
    AtomicReference<String> mesh = new AtomicReference<>("mesh-b");
    try (Fake fake = Fake.of(List.of(ServerInterceptors.intercept(trainer, of(mesh)),
            ServerInterceptors.intercept(new ComponentServiceGrpc.ComponentServiceImplBase() {}, of(mesh))));
        TrainerClient client = TrainerClient.open(fake.options().withMesh("mesh-a", "prm_judge"));
        Delivery<Sample> delivery = client.deliver(Delivery.Settings.defaults(), new MemoryOutbox<>())) {
      CompletableFuture<Ack> sent = delivery.send("t", sample("t"));
      Fake.until("it is refused", () -> delivery.problem().isPresent());
      MeshException problem = delivery.problem().get();
      assertEquals("WRONG_MESH", problem.reason());
      assertTrue(problem.getMessage().contains("of the mesh mesh-b, and mesh-a is expected"), problem.getMessage());
      assertFalse(delivery.connected() || sent.isDone());
      assertEquals(List.of(), trainer.seen);
      assertEquals("WRONG_MESH", assertThrows(MeshException.class, client::status).reason());
      mesh.set("mesh-a"); // the right one is back
      assertEquals(AckStatus.ACK_STATUS_ACCEPTED, sent.get(30, TimeUnit.SECONDS).getStatus());
    }
  }

  @Test
  void acksSettleMessages() throws Exception {
    Trainer trainer = new Trainer((id, stream) -> stream.onNext(id.equals("t3")
        ? ack(id, AckStatus.ACK_STATUS_REJECTED, "it is bad") : accepted(id)));
    try (Fake fake = Fake.of(trainer); TrainerClient client = TrainerClient.open(fake.options());
        Delivery<Sample> delivery = client.deliver(
            Delivery.Settings.defaults().withWindow(10), new MemoryOutbox<>())) {
      List<CompletableFuture<Ack>> sent = new ArrayList<>();
      for (int i = 0; i < 500; i++) {
        sent.add(delivery.send("t" + i, sample("t" + i)));
      }
      delivery.flush(LIMIT);
      Ack bad = sent.get(3).get(1, TimeUnit.SECONDS);
      assertEquals(AckStatus.ACK_STATUS_REJECTED, bad.getStatus());
      assertEquals("it is bad", bad.getReason());
      assertEquals(499, delivery.acknowledged());
      assertEquals(1, delivery.rejected());
      assertEquals(500, trainer.seen.size());
      assertEquals("t499", trainer.seen.get(499)); // in order
      assertTrue(delivery.connected());
      assertTrue(delivery.problem().isEmpty());
    }
  }

  @Test
  void whatIsNotAcknowledgedIsSentAgainAfterACut() throws Exception {
    Trainer[] trainer = new Trainer[1];
    trainer[0] = new Trainer((id, stream) -> {
      if (trainer[0].seen.size() == 3) {
        stream.onError(Status.UNAVAILABLE.withDescription("the line broke").asRuntimeException());
      } else if (trainer[0].seen.size() != 4 || trainer[0].streams > 1) {
        try {
          stream.onNext(accepted(id));
        } catch (IllegalStateException closed) {
          return; // messages of the broken stream
        }
      }
    });
    List<MeshException> problems = Collections.synchronizedList(new ArrayList<>());
    try (Fake fake = Fake.of(trainer[0]); TrainerClient client = TrainerClient.open(fake.options());
        Delivery<Sample> delivery = client.deliver(
            Delivery.Settings.defaults().withOnProblem(problems::add), new MemoryOutbox<>())) {
      for (int i = 0; i < 10; i++) {
        delivery.send("t" + i, sample("t" + i));
      }
      delivery.flush(LIMIT);
      assertEquals(10, delivery.acknowledged());
      assertEquals(2, trainer[0].streams);
      assertEquals(2, Collections.frequency(trainer[0].seen, "t2"));
      assertEquals(1, Collections.frequency(trainer[0].seen, "t0"));
      assertTrue(problems.get(0).getMessage().contains("the line broke"));
    }
  }

  @Test
  void aServerThatComesLaterGetsAll() throws Exception {
    Trainer trainer = new Trainer((id, stream) -> stream.onNext(accepted(id)));
    int port;
    try (Fake first = Fake.of(trainer)) {
      port = first.port();
    }
    try (TrainerClient client = TrainerClient.open(Options.at("127.0.0.1:" + port));
        Delivery<Sample> delivery = client.deliver(Delivery.Settings.defaults(), new MemoryOutbox<>())) {
      delivery.send("t", sample("t"));
      Fake.until("it fails", () -> delivery.problem().isPresent());
      assertFalse(delivery.connected());
      try (Fake again = Fake.on(port, trainer)) {
        delivery.flush(LIMIT);
        assertEquals(List.of("t"), trainer.seen);
      }
    }
  }

  @Test
  void aPeerThatNeverAcknowledgesIsToldAndCalledAnew() throws Exception {
    Trainer trainer = new Trainer((id, stream) -> {});
    try (Fake fake = Fake.of(trainer); TrainerClient client = TrainerClient.open(fake.options());
        Delivery<Sample> delivery = client.deliver(
            Delivery.Settings.defaults().withAckTimeout(Duration.ofMillis(200)), new MemoryOutbox<>())) {
      delivery.send("t", sample("t"));
      Fake.until("it is called anew", () -> trainer.streams >= 2 && trainer.seen.size() >= 2);
      assertEquals("NO_ACK", delivery.problem().orElseThrow().reason());
      assertEquals(1, delivery.pending());
      assertThrows(TimeoutException.class, () -> delivery.flush(Duration.ofMillis(10)));
    }
  }

  @Test
  void anAckOfAnotherIsAProtocolError() throws Exception {
    Trainer trainer = new Trainer((id, stream) -> stream.onNext(accepted("foreign-" + id)));
    try (Fake fake = Fake.of(trainer); TrainerClient client = TrainerClient.open(fake.options());
        Delivery<Sample> delivery = client.deliver(Delivery.Settings.defaults(), new MemoryOutbox<>())) {
      CompletableFuture<Ack> sent = delivery.send("t", sample("t"));
      Fake.until("it is told", () -> delivery.problem().isPresent());
      assertEquals("PROTOCOL_ERROR", delivery.problem().orElseThrow().reason());
      assertTrue(delivery.problem().orElseThrow().getMessage().contains("foreign-t"));
      assertFalse(sent.isDone());
    }
  }

  @Test
  void aMessageThatIsTooLargeIsNoObstacle() throws Exception {
    Trainer trainer = new Trainer((id, stream) -> stream.onNext(accepted(id)));
    try (Fake fake = Fake.of(trainer);
        TrainerClient client = TrainerClient.open(fake.options().withMaxMessageBytes(100_000));
        Delivery<Sample> delivery = client.deliver(Delivery.Settings.defaults(), new MemoryOutbox<>())) {
      Sample.Builder large = sample("large").toBuilder();
      large.getJudgementBuilder().setHint("x".repeat(200_000));
      CompletableFuture<Ack> refused = delivery.send("large", large.build());
      delivery.send("small", sample("small"));
      delivery.flush(LIMIT);
      assertEquals(AckStatus.ACK_STATUS_REJECTED, refused.get(1, TimeUnit.SECONDS).getStatus());
      assertEquals(List.of("small"), trainer.seen);
    }
  }
}
