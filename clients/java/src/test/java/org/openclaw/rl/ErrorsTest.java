package org.openclaw.rl;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.protobuf.ByteString;
import com.google.rpc.BadRequest;
import com.google.rpc.RetryInfo;
import io.grpc.Status;
import io.grpc.stub.StreamObserver;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.openclaw.rl.v1.ChatMessage;
import org.openclaw.rl.v1.ChatRequest;
import org.openclaw.rl.v1.ChatResponse;
import org.openclaw.rl.v1.ComponentServiceGrpc;
import org.openclaw.rl.v1.ComponentStatus;
import org.openclaw.rl.v1.GetPolicyRequest;
import org.openclaw.rl.v1.GetPolicyResponse;
import org.openclaw.rl.v1.GetStatusRequest;
import org.openclaw.rl.v1.GetStatusResponse;
import org.openclaw.rl.v1.JudgeServiceGrpc;
import org.openclaw.rl.v1.PolicyServiceGrpc;
import org.openclaw.rl.v1.ScoreRequest;
import org.openclaw.rl.v1.ScoreResponse;

class ErrorsTest {
  private static final class Policy extends PolicyServiceGrpc.PolicyServiceImplBase {
    @Override
    public void score(ScoreRequest request, StreamObserver<ScoreResponse> observer) {
      observer.onError(Fake.error(Status.Code.INVALID_ARGUMENT, "INVALID_ARGUMENT", "token_ids: none",
          BadRequest.newBuilder().addFieldViolations(BadRequest.FieldViolation.newBuilder()
              .setField("token_ids").setDescription("must have two")).build(),
          RetryInfo.newBuilder().setRetryDelay(Durations.toProto(Duration.ofMillis(1500))).build()));
    }

    @Override
    public void getPolicy(GetPolicyRequest request, StreamObserver<GetPolicyResponse> observer) {
      // Never answers.
    }

    @Override
    public void chat(ChatRequest request, StreamObserver<ChatResponse> observer) {
      ChatResponse.Builder response = ChatResponse.newBuilder();
      response.getDeltaBuilder().setContentBytes(ByteString.copyFrom(new byte[3 << 20]));
      observer.onNext(response.build());
      observer.onCompleted();
    }
  }

  /** Says what it is told of itself. */
  private record Component(ComponentStatus status) implements io.grpc.BindableService {
    @Override
    public io.grpc.ServerServiceDefinition bindService() {
      return new ComponentServiceGrpc.ComponentServiceImplBase() {
        @Override
        public void getStatus(GetStatusRequest request, StreamObserver<GetStatusResponse> observer) {
          observer.onNext(GetStatusResponse.newBuilder().setStatus(status).build());
          observer.onCompleted();
        }
      }.bindService();
    }
  }

  @Test
  void tellsAllThatTheServerSaid() throws Exception {
    try (Fake fake = Fake.of(new Policy()); PolicyClient policy = PolicyClient.open(fake.options())) {
      MeshException error = assertThrows(MeshException.class, () -> policy.score(List.of()));
      assertEquals(Status.Code.INVALID_ARGUMENT, error.code());
      assertEquals("INVALID_ARGUMENT", error.reason());
      assertEquals(List.of(new MeshException.Violation("token_ids", "must have two")), error.violations());
      assertEquals(Duration.ofMillis(1500), error.retryAfter().orElseThrow());
      assertEquals("1, 2", error.metadata().get("versions"));
      assertTrue(error.retryable());
      assertEquals("INVALID_ARGUMENT: token_ids: none; repeat the call after 1.5 s", error.toString());
    }
  }

  @Test
  void aDeadlineEndsACall() throws Exception {
    try (Fake fake = Fake.of(new Policy()); PolicyClient policy = PolicyClient.open(fake.options())) {
      MeshException error =
          assertThrows(MeshException.class, () -> policy.withDeadline(Duration.ofMillis(50)).policy());
      assertEquals(Status.Code.DEADLINE_EXCEEDED, error.code());
      assertTrue(error.getMessage().contains("did not end in time"), error.getMessage());
    }
  }

  @Test
  void limitsHoldBothWays() throws Exception {
    try (Fake fake = Fake.of(new Policy());
        PolicyClient policy = PolicyClient.open(fake.options().withMaxMessageBytes(2 << 20))) {
      MeshException down = assertThrows(MeshException.class, () -> policy.chat(ChatRequest.getDefaultInstance()).next());
      assertEquals(Status.Code.RESOURCE_EXHAUSTED, down.code());
      assertTrue(down.getMessage().contains("too large"), down.getMessage());
      assertFalse(down.retryable());
      ChatRequest large = ChatRequest.newBuilder().addMessages(ChatMessage.newBuilder().setContent("x".repeat(3 << 20)))
          .build();
      MeshException up = assertThrows(MeshException.class, () -> policy.chat(large));
      assertEquals(Status.Code.RESOURCE_EXHAUSTED, up.code());
    }
  }

  @Test
  void anotherServiceIsNamed() throws Exception {
    try (Fake fake = Fake.of(new JudgeServiceGrpc.JudgeServiceImplBase() {});
        PolicyClient policy = PolicyClient.open(fake.options())) {
      MeshException error = assertThrows(MeshException.class, policy::policy);
      assertEquals(Status.Code.UNIMPLEMENTED, error.code());
      assertTrue(error.getMessage().contains("does not serve openclaw_rl.v1.PolicyService/GetPolicy"),
          error.getMessage());
    }
  }

  @Test
  void nothingThereIsToldAndWorthRepeating() throws Exception {
    int port;
    try (ServerSocket socket = new ServerSocket(0)) {
      port = socket.getLocalPort();
    }
    try (PolicyClient policy = PolicyClient.open(Options.at("127.0.0.1:" + port))) {
      MeshException error = assertThrows(MeshException.class, policy::policy);
      assertEquals(Status.Code.UNAVAILABLE, error.code());
      assertTrue(error.getMessage().contains("nothing listens at 127.0.0.1:" + port), error.getMessage());
      assertTrue(error.retryable());
    }
  }

  @Test
  void anHttpServerIsTold() throws Exception {
    try (ServerSocket socket = new ServerSocket(0)) {
      Thread server = new Thread(() -> {
        try (Socket one = socket.accept()) {
          one.getOutputStream().write("HTTP/1.1 400 Bad Request\r\n\r\n".getBytes(StandardCharsets.US_ASCII));
          one.getOutputStream().flush();
          while (one.getInputStream().read() >= 0) { // until the client goes
            continue;
          }
        } catch (java.io.IOException gone) {
          return;
        }
      });
      server.setDaemon(true);
      server.start();
      try (PolicyClient policy = PolicyClient.open(Options.at("127.0.0.1:" + socket.getLocalPort()))) {
        MeshException error = assertThrows(MeshException.class, policy::policy);
        assertTrue(error.getMessage().contains("speaks HTTP/1"), () -> error + " " + error.getCause().getCause());
        assertFalse(error.retryable());
      }
    }
  }

  @Test
  void contractsAreCompared() throws Exception {
    ComponentStatus good = ComponentStatus.newBuilder().setName("policy_server").build();
    try (Fake fake = Fake.of(new Component(good)); PolicyClient policy = PolicyClient.open(fake.options());
        JudgeClient judge = JudgeClient.open(fake.options())) {
      assertEquals("1.0", policy.check().contractVersion());
      assertTrue(policy.check().warnings().get(0).contains("speaks contract 1.0, older than"));
      MeshException error = assertThrows(MeshException.class, judge::check);
      assertEquals("WRONG_COMPONENT", error.reason());
    }
    try (Fake fake = Fake.of(new Component(good.toBuilder().setContractVersion("2.0").build()));
        PolicyClient policy = PolicyClient.open(fake.options())) {
      MeshException error = assertThrows(MeshException.class, policy::check);
      assertEquals("CONTRACT_MISMATCH", error.reason());
      assertTrue(error.getMessage().contains("2.0") && error.getMessage().contains(Contract.CONTRACT_VERSION));
    }
  }

  @Test
  void badOptionsAreRefused() {
    for (Options bad : List.of(Options.at("127.0.0.1"), Options.at("host:0"), Options.at("host:99999"),
        Options.at("http://host:50051"), Options.at("::1:50051"), Options.at("a host:50051"),
        Options.at("192.0.2.1:50051").withKey("sk-abc"), Options.defaults().withKey("sk-abc\n"),
        Options.defaults().withMaxMessageBytes(0), Options.defaults().withDeadline(Duration.ZERO))) {
      MeshException error = assertThrows(MeshException.class, () -> PolicyClient.open(bad).close());
      assertEquals(Status.Code.INVALID_ARGUMENT, error.code());
      assertFalse(error.getMessage().contains("sk-abc"));
    }
    assertFalse(Options.defaults().withKey("sk-abc").toString().contains("sk-abc"));
  }
}
