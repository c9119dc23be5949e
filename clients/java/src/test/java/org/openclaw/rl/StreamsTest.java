package org.openclaw.rl;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.grpc.Context;
import io.grpc.Status;
import io.grpc.stub.ServerCallStreamObserver;
import io.grpc.stub.StreamObserver;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Test;
import org.openclaw.rl.v1.AcquireRequest;
import org.openclaw.rl.v1.AcquireResponse;
import org.openclaw.rl.v1.ChatRequest;
import org.openclaw.rl.v1.ChatResponse;
import org.openclaw.rl.v1.EnvironmentServiceGrpc;
import org.openclaw.rl.v1.InteractRequest;
import org.openclaw.rl.v1.InteractResponse;
import org.openclaw.rl.v1.PolicyServiceGrpc;
import org.openclaw.rl.v1.ReleaseRequest;
import org.openclaw.rl.v1.ReleaseResponse;
import org.openclaw.rl.v1.RenewRequest;
import org.openclaw.rl.v1.RenewResponse;
import org.openclaw.rl.v1.StepRequest;
import org.openclaw.rl.v1.StepResponse;
import org.openclaw.rl.v1.TurnOptions;
import org.openclaw.rl.v1.WatchPolicyRequest;
import org.openclaw.rl.v1.WatchPolicyResponse;

class StreamsTest {
  private static final class Policy extends PolicyServiceGrpc.PolicyServiceImplBase {
    private final CountDownLatch cancelled = new CountDownLatch(1);
    private final AtomicInteger watches = new AtomicInteger();
    private final Status end;

    Policy(Status end) {
      this.end = end;
    }

    @Override
    public void chat(ChatRequest request, StreamObserver<ChatResponse> observer) {
      Context.current().addListener(context -> cancelled.countDown(), Runnable::run);
      ((ServerCallStreamObserver<ChatResponse>) observer).setOnCancelHandler(cancelled::countDown);
      ChatResponse.Builder response = ChatResponse.newBuilder();
      response.getDeltaBuilder().setContent("hello");
      observer.onNext(response.build()); // and it never ends
    }

    @Override
    public void watchPolicy(WatchPolicyRequest request, StreamObserver<WatchPolicyResponse> observer) {
      WatchPolicyResponse.Builder response = WatchPolicyResponse.newBuilder();
      response.getStateBuilder().setActiveVersion(watches.incrementAndGet());
      observer.onNext(response.build());
      observer.onError(end.asRuntimeException());
    }
  }

  private static final class Environment extends EnvironmentServiceGrpc.EnvironmentServiceImplBase {
    private final List<Long> steps = new ArrayList<>();
    private final AtomicInteger renewed = new AtomicInteger();
    private final AtomicInteger released = new AtomicInteger();
    private boolean fail = true;

    @Override
    public void acquire(AcquireRequest request, StreamObserver<AcquireResponse> observer) {
      observer.onNext(AcquireResponse.newBuilder().setLeaseId(request.getLeaseId()).setExpiresAt(byAnotherClock()).build());
      observer.onCompleted();
    }

    @Override
    public void renew(RenewRequest request, StreamObserver<RenewResponse> observer) {
      renewed.incrementAndGet();
      observer.onNext(RenewResponse.newBuilder().setExpiresAt(byAnotherClock()).build());
      observer.onCompleted();
    }

    @Override
    public void step(StepRequest request, StreamObserver<StepResponse> observer) {
      steps.add(request.getStep());
      if (steps.size() == 2 && fail) {
        fail = false;
        observer.onError(Status.UNAVAILABLE.asRuntimeException());
        return;
      }
      observer.onNext(StepResponse.getDefaultInstance());
      observer.onCompleted();
    }

    @Override
    public void release(ReleaseRequest request, StreamObserver<ReleaseResponse> observer) {
      released.incrementAndGet();
      observer.onNext(ReleaseResponse.getDefaultInstance());
      observer.onCompleted();
    }

    @Override
    public StreamObserver<InteractRequest> interact(StreamObserver<InteractResponse> observer) {
      return new StreamObserver<>() {
        private String session = "";

        @Override
        public void onNext(InteractRequest request) {
          session = request.hasTurn() ? request.getTurn().getSessionId() : session;
          for (String word : request.getMessages(0).getContent().split(" ")) {
            observer.onNext(InteractResponse.newBuilder().setContent(word).build());
          }
          InteractResponse.Builder end = InteractResponse.newBuilder();
          end.getTurnBuilder().setSessionId(session).setTurnId("of " + request.getMessages(0).getContent());
          observer.onNext(end.build());
        }

        @Override
        public void onError(Throwable error) {}

        @Override
        public void onCompleted() {
          observer.onCompleted();
        }
      };
    }

    private static com.google.protobuf.Timestamp byAnotherClock() {
      return com.google.protobuf.Timestamp.newBuilder().setSeconds(System.currentTimeMillis() / 1000 + 7 * 3600).build();
    }
  }

  @Test
  void closingCancelsAtTheServer() throws Exception {
    Policy policy = new Policy(Status.UNAVAILABLE);
    try (Fake fake = Fake.of(policy); PolicyClient client = PolicyClient.open(fake.options())) {
      Responses<ChatResponse> responses = client.chat(ChatRequest.getDefaultInstance());
      assertEquals("hello", responses.next().getDelta().getContent());
      responses.close();
      assertTrue(policy.cancelled.await(30, TimeUnit.SECONDS));
      assertFalse(responses.hasNext());
    }
  }

  @Test
  void anotherThreadEndsAWait() throws Exception {
    Policy policy = new Policy(Status.UNAVAILABLE);
    try (Fake fake = Fake.of(policy); PolicyClient client = PolicyClient.open(fake.options())) {
      Responses<ChatResponse> responses = client.chat(ChatRequest.getDefaultInstance());
      responses.next();
      Thread closer = new Thread(responses::close);
      closer.start();
      assertFalse(responses.hasNext());
      closer.join();
    }
  }

  @Test
  void aWatchGoesOnAfterABreakUntilItIsClosed() throws Exception {
    Policy policy = new Policy(Status.UNAVAILABLE);
    try (Fake fake = Fake.of(policy); PolicyClient client = PolicyClient.open(fake.options())) {
      Responses<WatchPolicyResponse> watch = client.watch();
      try (watch) {
        assertEquals(List.of(1L, 2L, 3L),
            watch.stream().limit(3).map(response -> response.getState().getActiveVersion()).toList());
      }
      assertFalse(watch.hasNext());
    }
  }

  @Test
  void aWatchEndsWithAnErrorThatStays() throws Exception {
    try (Fake fake = Fake.of(new Policy(Status.PERMISSION_DENIED));
        PolicyClient client = PolicyClient.open(fake.options()); Responses<WatchPolicyResponse> watch = client.watch()) {
      watch.next();
      assertEquals(Status.Code.PERMISSION_DENIED, assertThrows(MeshException.class, watch::hasNext).code());
    }
    try (Fake fake = Fake.of(new Policy(Status.UNAVAILABLE));
        PolicyClient client = PolicyClient.open(fake.options().withReconnect(false));
        Responses<WatchPolicyResponse> watch = client.watch()) {
      watch.next();
      assertEquals(Status.Code.UNAVAILABLE, assertThrows(MeshException.class, watch::hasNext).code());
    }
  }

  @Test
  void aLeaseIsRenewedAndGivenBack() throws Exception {
    Environment environment = new Environment();
    try (Fake fake = Fake.of(environment); EnvironmentClient client = EnvironmentClient.open(fake.options())) {
      AcquireRequest request = AcquireRequest.newBuilder().setType("tool_call")
          .setTtl(com.google.protobuf.Duration.newBuilder().setSeconds(1)).build();
      try (Lease lease = client.acquire(request)) { // renewed by its own time: the server's clock may be another one
        assertTrue(lease.id().startsWith("lease_"));
        lease.step("{}");
        assertThrows(MeshException.class, () -> lease.step("{}"));
        lease.step("{}"); // the same step once more
        lease.step("{}");
        assertEquals(List.of(1L, 2L, 2L, 3L), environment.steps);
        Fake.until("it is renewed", () -> environment.renewed.get() >= 2);
      }
      assertEquals(1, environment.released.get());
    }
  }

  @Test
  void aConversationGivesTextThenTheTurn() throws Exception {
    try (Fake fake = Fake.of(new Environment()); EnvironmentClient client = EnvironmentClient.open(fake.options());
        Conversation talk = client.interact(TurnOptions.newBuilder().setSessionId("s").build())) {
      List<String> words = new ArrayList<>();
      Conversation.Reply reply = talk.say("one two");
      reply.forEachRemaining(words::add);
      assertEquals(List.of("one", "two"), words);
      assertEquals("s", reply.turn().getSessionId());
      talk.say("not read");
      assertEquals("of last", talk.say("last").turn().getTurnId());
    }
  }
}
