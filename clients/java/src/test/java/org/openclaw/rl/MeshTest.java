package org.openclaw.rl;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.grpc.Status;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.UUID;
import org.junit.jupiter.api.Assumptions;
import org.junit.jupiter.api.Test;
import org.openclaw.rl.v1.ChatRequest;
import org.openclaw.rl.v1.ChatResponse;
import org.openclaw.rl.v1.FinishReason;
import org.openclaw.rl.v1.GenerateRequest;
import org.openclaw.rl.v1.GenerateResponse;
import org.openclaw.rl.v1.Judgement;
import org.openclaw.rl.v1.NextStateKind;
import org.openclaw.rl.v1.PolicyEvent;
import org.openclaw.rl.v1.PolicyState;
import org.openclaw.rl.v1.ResetResponse;
import org.openclaw.rl.v1.SamplingParams;
import org.openclaw.rl.v1.SessionEnd;
import org.openclaw.rl.v1.StepResponse;
import org.openclaw.rl.v1.TaskInfo;
import org.openclaw.rl.v1.TaskSplit;
import org.openclaw.rl.v1.ToolDefinition;
import org.openclaw.rl.v1.Transition;
import org.openclaw.rl.v1.TurnOptions;

/** Against a real mesh, whose addresses are in the variables OPENCLAW_RL_TEST_*. */
class MeshTest {
  private static final SamplingParams SHORT = SamplingParams.newBuilder().setMaxTokens(8).setTemperature(0).build();

  private static String variable(String name) {
    String value = System.getenv("OPENCLAW_RL_TEST_" + name);
    Assumptions.assumeTrue(value != null, "no mesh to try it on: OPENCLAW_RL_TEST_" + name + " is not set");
    return value;
  }

  private static Options at(String name) {
    return Options.at(variable(name)).withDeadline(Duration.ofSeconds(120));
  }

  private static String session() {
    return "java-" + UUID.randomUUID();
  }

  private static ChatRequest.Builder chat(String text) {
    return ChatRequest.newBuilder().addMessages(Messages.user(text)).setSampling(SHORT);
  }

  private static Transition thanked() {
    Transition.Builder transition = Transition.newBuilder();
    transition.getTurnBuilder().setTurnId("turn-of-java").addMessages(Messages.user("What is 2 + 2?"))
        .setResponse(Messages.assistant("4"));
    transition.getNextStateBuilder().setKind(NextStateKind.NEXT_STATE_KIND_CONTINUED)
        .addMessages(Messages.user("Thanks, that is exactly what I wanted!"));
    return transition.build();
  }

  @Test
  void chatsWithSessionVersionAndTools() {
    try (PolicyClient policy = PolicyClient.open(at("POLICY"))) {
      Contract.Report report = policy.check();
      assertEquals("policy_server", report.component());
      long version = policy.policy().getState().getActiveVersion();
      String session = session();
      ChatRequest request = chat("Name a bird.")
          .addTools(ToolDefinition.newBuilder().setName("look_up").setDescription("Looks a word up."))
          .setTurn(TurnOptions.newBuilder().setSessionId(session).setMinVersion(0)).build();
      List<ChatResponse> responses = new ArrayList<>();
      try (Responses<ChatResponse> stream = policy.chat(request)) {
        stream.forEachRemaining(responses::add);
      }
      assertEquals(session, responses.get(0).getStart().getSessionId());
      assertTrue(responses.get(0).getStart().getPolicyVersion() >= version);
      ChatResponse last = responses.get(responses.size() - 1);
      assertTrue(last.getEnd().getGeneration().getCompletionTokens() > 0);
      assertFalse(policy.feedback(responses.get(0).getStart().getTurnId(), 1, "good").isEmpty());
      MeshException error = assertThrows(MeshException.class, () -> policy.chat(
          chat("Hello").setTurn(TurnOptions.newBuilder().setExactVersion(987_654)).build()).next());
      assertEquals(Status.Code.FAILED_PRECONDITION, error.code());
      assertEquals("VERSION_NOT_ACTIVE", error.reason());
      MeshException bad = assertThrows(MeshException.class, () -> policy.chat(chat("Hello").setSampling(
          SamplingParams.newBuilder().setTemperature(-1)).build()).next());
      assertTrue(bad.violations().get(0).field().endsWith("temperature"));
    }
  }

  @Test
  void generatesAndScoresTokenIds() {
    try (PolicyClient policy = PolicyClient.open(at("POLICY"))) {
      List<Integer> ids = new ArrayList<>(List.of(504, 1009, 314));
      List<Float> logprobs = new ArrayList<>();
      long version = -1;
      try (Responses<GenerateResponse> stream = policy.generate(
          GenerateRequest.newBuilder().addAllPromptIds(ids).setSampling(SHORT).build())) {
        for (GenerateResponse response : stream) {
          if (response.hasToken()) {
            ids.add(response.getToken().getId());
            logprobs.add(response.getToken().getModelLogprob());
            version = response.getToken().getVersion();
          } else {
            assertTrue(response.getEnd().getFinishReason() != FinishReason.FINISH_REASON_UNSPECIFIED);
          }
        }
      }
      List<Float> scores = policy.score(ids).getLogprobsList();
      assertEquals(ids.size() - 1, scores.size());
      if (policy.score(ids).getVersion() == version) {
        assertEquals(logprobs.get(0), scores.get(2), 0.05);
      }
    }
  }

  @Test
  void watchesPinsAndGoesBack() {
    try (PolicyClient policy = PolicyClient.open(at("POLICY")); Responses<?> stats = policy.watchStats(
        Duration.ofMillis(100))) {
      assertTrue(stats.hasNext());
      PolicyState state;
      try (var watch = policy.watch()) {
        state = watch.next().getState();
      }
      long active = state.getActiveVersion();
      assertTrue(policy.pin(active, "a test").getState().getPinned());
      assertFalse(policy.unpin("the test is over").getState().getPinned());
      long there = policy.policy().getState().getActiveVersion();
      assertEquals(there, policy.activate(there, "a test").getState().getActiveVersion());
      assertEquals("VERSION_UNKNOWN",
          assertThrows(MeshException.class, () -> policy.activate(987_654, "none")).reason());
    }
  }

  @Test
  void talksAndEndsASession() {
    try (EnvironmentClient environment = EnvironmentClient.open(at("ENVIRONMENT"))) {
      assertEquals("env_server", environment.check().component());
      String session = session();
      try (Conversation talk = environment.interact(TurnOptions.newBuilder().setSessionId(session).build())) {
        var first = talk.send(org.openclaw.rl.v1.InteractRequest.newBuilder()
            .addMessages(Messages.user("Hello")).setSampling(SHORT).build());
        assertEquals(session, first.turn().getSessionId());
        assertFalse(talk.say("And now?").turn().getTurnId().isEmpty());
      }
      environment.endSession(session);
      assertTrue(environment.session(session).getTurnsCount() >= 1);
      assertEquals("NOT_FOUND",
          assertThrows(MeshException.class, () -> environment.session("no-such-session")).reason());
    }
  }

  @Test
  void leasesASandboxFromAcquireToRelease() {
    try (EnvironmentClient environment = EnvironmentClient.open(at("ENVIRONMENT"))) {
      List<TaskInfo> tasks = environment.tasks("tool_call", TaskSplit.TASK_SPLIT_UNSPECIFIED);
      assertFalse(tasks.isEmpty());
      String id;
      try (Lease lease = environment.acquire("tool_call")) {
        id = lease.id();
        ResetResponse reset = lease.reset(tasks.get(0).getTaskId());
        assertFalse(reset.getGoal().isEmpty());
        MeshException error = assertThrows(MeshException.class, () -> lease.step("{\"name\": \"no_such_tool\"}"));
        assertEquals("action_json", error.violations().get(0).field());
        assertTrue(reset.getToolsList().stream().anyMatch(tool -> tool.getName().equals("add")), reset.toString());
        StepResponse step = lease.step("{\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": 2}}");
        assertFalse(step.getObservation().getJson().isEmpty() && step.getError().isEmpty());
        assertTrue(lease.evaluate().getOutcome() <= 1);
        assertTrue(environment.leases("").stream().anyMatch(one -> one.getLeaseId().equals(lease.id())));
      }
      assertTrue(environment.leases("").stream().noneMatch(one -> one.getLeaseId().equals(id)));
    }
  }

  @Test
  void judges() {
    try (JudgeClient judge = JudgeClient.open(at("JUDGE"))) {
      assertEquals("prm_judge", judge.check().component());
      Judgement judgement = judge.judge(thanked());
      assertEquals(1, judgement.getScore());
      assertTrue(judge.judgements(List.of("turn-of-java")).isEmpty());
    }
  }

  @Test
  void readsTheTrainer() {
    try (TrainerClient trainer = TrainerClient.open(at("TRAINER"))) {
      assertEquals("trainer", trainer.check().component());
      assertFalse(trainer.versions().getVersionsList().isEmpty());
      assertEquals(0, trainer.version(0).getManifest().getVersion());
      assertTrue(trainer.samples(List.of("unknown")).isEmpty());
    }
  }

  @Test
  void aRingStreamIsAcknowledged() throws Exception {
    try (EnvironmentClient environment = EnvironmentClient.open(
            at("ENVIRONMENT").withMesh(System.getenv("OPENCLAW_RL_TEST_MESH")));
        Delivery<PolicyEvent> delivery = environment.deliver(Delivery.Settings.defaults(), new MemoryOutbox<>())) {
      for (int i = 0; i < 20; i++) {
        delivery.send(end(i), event(end(i)));
      }
      delivery.flush(Duration.ofSeconds(60));
      assertEquals(20, delivery.acknowledged());
    }
  }

  @Test
  void mutualTlsAndKeys() {
    Path certs = Path.of(variable("CERTS"));
    try (JudgeClient judge = JudgeClient.open(at("SECURE_JUDGE").withTls(Tls.mutual(certs, "operator")))) {
      assertEquals(1, judge.judge(thanked()).getScore());
    }
    try (JudgeClient wrong = JudgeClient.open(at("SECURE_JUDGE").withTls(Tls.mutual(certs, "policy_server")))) {
      MeshException error = assertThrows(MeshException.class, () -> wrong.judge(thanked()));
      assertEquals("WRONG_ROLE", error.reason());
    }
    try (PolicyClient other = PolicyClient.open(at("SECURE_JUDGE").withTls(Tls.mutual(certs, "operator")))) {
      MeshException error = assertThrows(MeshException.class, other::policy);
      assertTrue(error.getMessage().contains("policy_server.openclaw-rl.internal"), error.toString());
    }
    Tls authority = Tls.authority(certs.resolve("ca.crt"));
    Options keys = at("SECURE_KEYS").withTls(authority);
    try (JudgeClient judge = JudgeClient.open(keys.withKey(variable("KEY_CHAT")))) {
      assertEquals(1, judge.judge(thanked()).getScore());
    }
    try (JudgeClient judge = JudgeClient.open(keys.withKey(variable("KEY_READ")))) {
      assertEquals("prm_judge", judge.check().component());
      assertEquals("WRONG_SCOPE", assertThrows(MeshException.class, () -> judge.judge(thanked())).reason());
    }
    try (JudgeClient judge = JudgeClient.open(keys)) {
      assertEquals("NO_CREDENTIALS", assertThrows(MeshException.class, judge::status).reason());
    }
    try (JudgeClient plain = JudgeClient.open(at("SECURE_JUDGE"))) {
      MeshException error = assertThrows(MeshException.class, plain::status);
      assertTrue(error.getMessage().contains("TLS"), error.toString());
    }
    try (JudgeClient bare = JudgeClient.open(at("SECURE_JUDGE").withTls(authority.underMeshNames()))) {
      MeshException error = assertThrows(MeshException.class, bare::status);
      assertTrue(error.getMessage().contains("certificate"), () -> error + " " + error.getCause().getCause());
    }
    try (JudgeClient tls = JudgeClient.open(at("JUDGE").withTls(Tls.mutual(certs, "operator")))) {
      MeshException error = assertThrows(MeshException.class, tls::status);
      assertTrue(error.getMessage().contains("speaks plain text"), error.toString());
    }
  }

  @Test
  void badPeersAreTold() throws Exception {
    try (PolicyClient http = PolicyClient.open(at("HTTP1"))) {
      MeshException error = assertThrows(MeshException.class, http::status);
      assertTrue(error.getMessage().contains("speaks HTTP/1"), error.toString());
    }
    try (PolicyClient next = PolicyClient.open(at("NEXT_MAJOR"))) {
      assertEquals("CONTRACT_MISMATCH", assertThrows(MeshException.class, next::check).reason());
    }
    try (PolicyClient judge = PolicyClient.open(at("JUDGE"))) {
      assertEquals("WRONG_COMPONENT", assertThrows(MeshException.class, judge::check).reason());
      assertEquals(Status.Code.UNIMPLEMENTED, assertThrows(MeshException.class, judge::policy).code());
    }
    Delivery.Settings hasty = Delivery.Settings.defaults().withAckTimeout(Duration.ofMillis(500));
    try (EnvironmentClient environment = EnvironmentClient.open(at("NEVER_ACKS"));
        Delivery<PolicyEvent> delivery = environment.deliver(hasty, new MemoryOutbox<>())) {
      delivery.send("e", event("e"));
      Fake.until("it is told", () -> delivery.problem().isPresent());
      assertEquals("NO_ACK", delivery.problem().orElseThrow().reason());
    }
    try (EnvironmentClient environment = EnvironmentClient.open(at("ACKS_OTHERS"));
        Delivery<PolicyEvent> delivery = environment.deliver(hasty, new MemoryOutbox<>())) {
      delivery.send("e", event("e"));
      Fake.until("it is told", () -> delivery.problem().isPresent());
      assertEquals("PROTOCOL_ERROR", delivery.problem().orElseThrow().reason());
    }
    try (EnvironmentClient environment = EnvironmentClient.open(at("CUTS"));
        Delivery<PolicyEvent> delivery = environment.deliver(Delivery.Settings.defaults(), new MemoryOutbox<>())) {
      for (int i = 0; i < 9; i++) {
        delivery.send(end(i), event(end(i)));
      }
      delivery.flush(Duration.ofSeconds(60));
      assertEquals(9, delivery.acknowledged());
    }
  }

  private static String end(int number) {
    return "java-end-" + number;
  }

  private static PolicyEvent event(String id) {
    return PolicyEvent.newBuilder()
        .setSessionEnd(SessionEnd.newBuilder().setEventId(id).setSessionId("of-" + id))
        .build();
  }
}
