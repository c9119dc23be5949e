package org.openclaw.rl.trainer;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.grpc.Status;
import io.grpc.health.v1.HealthCheckRequest;
import io.grpc.health.v1.HealthCheckResponse;
import io.grpc.health.v1.HealthGrpc;
import java.nio.file.Path;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.Statement;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.openclaw.rl.Delivery;
import org.openclaw.rl.MemoryOutbox;
import org.openclaw.rl.MeshException;
import org.openclaw.rl.Options;
import org.openclaw.rl.Responses;
import org.openclaw.rl.TrainerClient;
import org.openclaw.rl.v1.Ack;
import org.openclaw.rl.v1.AckStatus;
import org.openclaw.rl.v1.Alarm;
import org.openclaw.rl.v1.FetchWeightsRequest;
import org.openclaw.rl.v1.FetchWeightsResponse;
import org.openclaw.rl.v1.ForgetRequest;
import org.openclaw.rl.v1.ForgetResponse;
import org.openclaw.rl.v1.PolicyVersion;
import org.openclaw.rl.v1.Sample;
import org.openclaw.rl.v1.SampleFate;
import org.openclaw.rl.v1.SampleStatus;
import org.openclaw.rl.v1.TrainingEventKind;
import org.openclaw.rl.v1.TurnClass;
import org.openclaw.rl.v1.WatchTrainingResponse;
import org.openclaw.rl.v1.WeightRejectReason;

class TrainerServerTest {
  @TempDir private Path folder;
  private FakePolicy policy;
  private TrainerServer server;
  private TrainerClient client;

  @BeforeEach
  void begin() throws Exception {
    policy = new FakePolicy();
    start();
    Given.until("the model is known", () -> client.versions().getVersionsCount() > 0);
  }

  private void start() throws Exception {
    server = new TrainerServer(new TrainerServer.Settings("127.0.0.1", 0, folder, policy.address(), null,
        Given.OURS, new Learner.Limits(20, 1_600, 8, -0.2), new Trainer.Pace(2, Duration.ofHours(1))));
    client = TrainerClient.open(Options.at(server.address()).withMesh(Given.OURS));
  }

  @AfterEach
  void end() throws Exception {
    client.close();
    server.close();
    policy.close();
    assertEquals(List.of(), policy.faults);
  }

  private List<Ack> submit(Sample... samples) throws Exception {
    try (Delivery<Sample> delivery = client.deliver(Delivery.Settings.defaults(), new MemoryOutbox<>())) {
      List<Ack> acks = new ArrayList<>();
      for (Sample sample : samples) { // one after the other, since an id may come twice
        acks.add(delivery.send(sample.getTransition().getTurn().getTurnId(), sample).get(30, TimeUnit.SECONDS));
      }
      return acks;
    }
  }

  private SampleStatus fate(String turnId) {
    return client.samples(List.of(turnId)).get(0);
  }

  private void learn(String... hints) throws Exception {
    for (String hint : hints) {
      submit(Given.sample("of " + hint, -1, hint));
    }
    client.trainNow();
  }

  private void active(long version) throws InterruptedException {
    Given.until("version " + version + " is active", () -> made(version) && client.version(version).getActive());
  }

  private boolean made(long version) {
    return client.versions().getVersionsList().stream().anyMatch(v -> v.getManifest().getVersion() == version);
  }

  @Test
  void samplesHaveOneFateEach() throws Exception {
    Sample first = Given.sample("t1", 0, "");
    List<AckStatus> statuses = submit(first, first, first.toBuilder().setJudgement(
            first.getJudgement().toBuilder().setScore(1)).build(), first.toBuilder().clearJudgement().setTransition(
            first.getTransition().toBuilder().setTurn(first.getTransition().getTurn().toBuilder().setTurnId("t2")))
        .build()).stream().map(Ack::getStatus).toList();
    assertEquals(List.of(AckStatus.ACK_STATUS_ACCEPTED, AckStatus.ACK_STATUS_DUPLICATE, AckStatus.ACK_STATUS_REJECTED,
        AckStatus.ACK_STATUS_REJECTED), statuses);
    assertEquals(AckStatus.ACK_STATUS_REJECTED, submit(Given.sample("", 1, "")).get(0).getStatus());
    assertEquals(AckStatus.ACK_STATUS_REJECTED, submit(Given.sample("a\nb", 1, "")).get(0).getStatus());
    Sample.Builder failed = Given.sample("failed", 0, "").toBuilder();
    failed.getJudgementBuilder().setFailed(true);
    Sample.Builder side = Given.sample("side", 1, "").toBuilder();
    side.getTransitionBuilder().getTurnBuilder().setTurnClass(TurnClass.TURN_CLASS_SIDE);
    submit(failed.build(), side.build(), Given.sample("odd", 7, ""), Given.under(99, "future", 1));
    assertEquals(SampleFate.SAMPLE_FATE_PENDING, fate("t1").getFate());
    assertEquals("judge failed", fate("failed").getReason());
    assertFalse(fate("failed").hasScore());
    assertTrue(fate("side").getReason().startsWith("not a main turn"));
    assertTrue(fate("odd").getReason().startsWith("bad score"));
    assertTrue(fate("future").getReason().contains("version 99"));
    assertEquals(List.of("t1"), client.samples(List.of()).stream().map(SampleStatus::getTurnId).toList());
    assertEquals(4L, client.status().getDroppedMap().values().stream().mapToLong(Long::longValue).sum());
    assertEquals(5L, client.status().getCountersOrThrow("samples_accepted"));
    assertThrows(MeshException.class, () -> client.samples(java.util.Collections.nCopies(1_001, "t")));
  }

  private Sample ofMesh(String turnId, String mesh) {
    Sample.Builder sample = Given.sample(turnId, -1, "Answer in one short sentence").toBuilder();
    sample.getTransitionBuilder().getTurnBuilder().setMeshId(mesh);
    return sample.build();
  }

  @Test
  void turnsOfAnotherMeshAreNotTrainedOn() throws Exception {
    submit(ofMesh("theirs", "mesh-b"), ofMesh("nobodys", ""));
    assertEquals("foreign mesh: the turn is of the mesh mesh-b, and this is " + Given.OURS, fate("theirs").getReason());
    assertTrue(fate("nobodys").getReason().startsWith("foreign mesh: no environment server"));
    assertEquals(2L, client.status().getDroppedOrThrow("foreign mesh"));
  }

  private Optional<Alarm> wrongMesh() {
    return client.status().getAlarmsList().stream().filter(alarm -> alarm.getName().equals("wrong_mesh")).findFirst();
  }

  @Test
  void anotherMeshIsRefused() throws Exception {
    assertEquals(Given.OURS, client.status().getMeshId());
    assertTrue(wrongMesh().isEmpty());
    Options options = Options.at(server.address());
    record Case(String mesh, String component, String reason, String says) {}
    for (Case one : List.of(new Case("mesh-b", "prm_judge", "WRONG_MESH", "prm_judge of the mesh mesh-b calls trainer"),
        new Case("", "", "WRONG_MESH", "openclaw-mesh: " + Given.OURS),
        new Case(Given.OURS, "env_server", "WRONG_ROLE", "the caller says it is env_server"))) {
      try (TrainerClient caller = TrainerClient.open(options.withMesh(one.mesh(), one.component()));
          Delivery<Sample> delivery = caller.deliver(Delivery.Settings.defaults(), new MemoryOutbox<>())) {
        delivery.send("u", Given.sample("u", 1, ""));
        Given.until("it is refused", () -> delivery.problem().isPresent());
        assertEquals(one.reason(), delivery.problem().get().reason());
        assertTrue(delivery.problem().get().getMessage().contains(one.says()), delivery.problem().get().getMessage());
      }
    }
    try (TrainerClient anybody = TrainerClient.open(options)) {
      assertEquals("trainer", anybody.status().getName());
    }
    assertTrue(wrongMesh().isEmpty());
    assertTrue(client.status().getDetail().contains("prm_judge of the mesh mesh-b calls here"));
    assertTrue(client.status().getGaugesOrThrow("foreign_calls_refused") > 0);
    assertEquals(List.of(), client.samples(List.of("u")));
  }

  @Test
  void aPolicyServerOfAnotherMeshGetsNoVersion() throws Exception {
    policy.mesh = "mesh-b";
    policy.cut();
    Given.until("an alarm", () -> wrongMesh().filter(alarm -> alarm.getMessage().contains("mesh-b")).isPresent());
    learn("Answer in one short sentence");
    policy.mesh = "";
    active(1);
  }

  @Test
  void aVersionIsMadeAndPublished() throws Exception {
    List<TrainingEventKind> kinds = java.util.Collections.synchronizedList(new ArrayList<>());
    Responses<WatchTrainingResponse> watch = client.watch();
    Thread watching = new Thread(() -> watch.forEachRemaining(event -> kinds.add(event.getKind())));
    watching.start();
    Given.until("the stream is open", () -> { // which tells what happens from then on
      client.forget(ForgetRequest.newBuilder().setSessionId("nobody's").build());
      return !kinds.isEmpty();
    });
    submit(Given.sample("neutral", 0, ""), Given.sample("a", -1, "Answer in one short sentence"),
        Given.complaint("b", "Use metric units in answers"));
    active(1); // min_samples are there
    assertEquals(List.of("Answer in one short sentence", "Use metric units in answers"),
        policy.active.getEntriesList().stream().map(e -> e.getText()).toList());
    PolicyVersion version = client.version(1);
    assertEquals(0, version.getManifest().getParent());
    assertEquals("api-id", version.getManifest().getModelId());
    assertEquals(List.of("a", "b", "neutral"), version.getManifest().getTurnIdsList());
    assertEquals("playbook", version.getManifest().getAlgorithm());
    assertTrue(version.hasActivatedAt() && version.getKept() && version.getDeliveries(0).getActive());
    assertEquals(1, fate("neutral").getVersion());
    assertEquals(SampleFate.SAMPLE_FATE_TRAINED, fate("a").getFate());
    Given.until("it is told", () -> kinds.containsAll(List.of(TrainingEventKind.TRAINING_EVENT_KIND_STEP_STARTED,
        TrainingEventKind.TRAINING_EVENT_KIND_VERSION_CREATED, TrainingEventKind.TRAINING_EVENT_KIND_VERSION_ACTIVATED)));
    watch.close();
    watching.join();
    List<FetchWeightsResponse> fetched = client.fetchWeights(FetchWeightsRequest.newBuilder().setVersion(1).setFromByte(5)
        .build()).stream().toList();
    assertEquals(version.getManifest(), fetched.get(0).getOffer().getManifest());
    assertEquals(5, fetched.get(1).getChunk().getOffset());
    submit(Given.under(1, "c", 1), Given.under(1, "d", -1));
    assertEquals(2, client.version(1).getLive().getTurns());
    active(2);
    assertEquals(2, policy.active.getEntries(0).getUses());
    assertEquals(1, policy.trainers.stream().distinct().count());
    assertTrue(policy.trainers.get(0).matches("trainer_[0-9a-f]{32}"));
  }

  @Test
  void aBrokenLineGoesOnFromTheReceiversByte() throws Exception {
    policy.breakAfterFirstChunk = true;
    policy.dropActivated = true;
    learn("Answer in one short sentence");
    active(1);
    assertEquals(1, policy.active.getEntriesCount());
    assertTrue(policy.offers.size() >= 2);
  }

  @Test
  void onlyWhatIsAskedForIsSent() throws Exception {
    policy.asksForAnother = true;
    learn("Answer in one short sentence");
    active(1);
    assertEquals(2, policy.offers.size()); // a stream that asks for what was not offered is given up
    policy.hasItAlready = true;
    learn("Use metric units in answers");
    active(2);
    policy.refuse = WeightRejectReason.WEIGHT_REJECT_REASON_ALREADY_ACTIVE;
    learn("Give the source of each number");
    active(3); // what told of it was lost on the way
    assertEquals(4, policy.offers.size());
  }

  @Test
  void whatIsTakenBackOnItsWayIsAborted() throws Exception {
    policy.neverAnswersOffers = true;
    learn("Answer in one short sentence");
    Given.until("it is offered", () -> !policy.offers.isEmpty());
    policy.neverAnswersOffers = false;
    client.forget(ForgetRequest.newBuilder().setSessionId("s-of Answer in one short sentence").build());
    Given.until("it is aborted", () -> policy.aborts.equals(List.of(1L)));
    learn("Use metric units in answers");
    active(2);
  }

  @Test
  void refusalsAreFollowed() throws Exception {
    policy.refuse = WeightRejectReason.WEIGHT_REJECT_REASON_STORAGE;
    policy.refuseForGood = false;
    learn("Answer in one short sentence");
    active(1);
    policy.refuse = WeightRejectReason.WEIGHT_REJECT_REASON_TOO_OLD;
    policy.refuseForGood = true;
    learn("Use metric units in answers");
    Given.until("version 2 is refused", () -> made(2)
        && client.version(2).getDetail().equals("rejected: refused by the test"));
    learn("Give the source of each number");
    active(3);
    assertEquals(3, policy.active.getEntriesCount());
    assertEquals(List.of(1L, 1L, 2L, 3L), policy.offers.stream().map(o -> o.getManifest().getVersion()).toList());
  }

  @Test
  void aPinHoldsAndArollbackIsFollowed() throws Exception {
    learn("Answer in one short sentence");
    active(1);
    policy.change(state -> state.setPinned(true));
    learn("Use metric units in answers");
    Given.until("version 2 is made", () -> made(2));
    assertEquals(1, policy.state().getActiveVersion());
    policy.change(state -> state.setPinned(false));
    active(2);
    policy.change(state -> state.setActiveVersion(1).addWithdrawnVersions(2)
        .setActiveDigest(client.version(1).getManifest().getDigest()));
    Given.until("it follows", () -> client.status().getPolicyVersion() == 1);
    assertEquals("rolled back", client.version(2).getDetail());
    assertTrue(client.version(1).getActive());
    learn("Give the source of each number");
    active(3);
    assertEquals(1, client.version(3).getManifest().getParent());
    assertEquals(List.of("Answer in one short sentence", "Give the source of each number"),
        policy.active.getEntriesList().stream().map(e -> e.getText()).toList());
  }

  @Test
  void aPauseHoldsAlsoAfterArestart() throws Exception {
    client.pause("a test");
    submit(Given.sample("a", -1, "Answer in one short sentence"), Given.sample("b", -1, "Use metric units"));
    assertEquals("PAUSED", assertThrows(MeshException.class, client::trainNow).reason());
    client.close();
    server.close();
    start();
    assertTrue(client.status().getDetail().startsWith("paused"));
    assertEquals(2, client.samples(List.of()).size());
    client.resume();
    active(1);
    assertEquals(AckStatus.ACK_STATUS_DUPLICATE,
        submit(Given.sample("a", -1, "Answer in one short sentence")).get(0).getStatus());
  }

  @Test
  void aSessionIsForgotten() throws Exception {
    learn("Answer in one short sentence");
    active(1);
    learn("Use metric units in answers", "Give the source of each number");
    active(2);
    Given.until("no step is under way", () -> client.samples(List.of()).isEmpty());
    long newest = client.status().getPolicyVersion();
    ForgetResponse done =
        client.forget(ForgetRequest.newBuilder().setSessionId("s-of Use metric units in answers").build());
    assertEquals(1, done.getBaseVersion());
    assertTrue(done.getVersionsList().contains(2L));
    assertEquals(1L, done.getRemovedOrThrow("samples"));
    active(newest + 1); // rebuilt at once, without it
    assertEquals(List.of("Answer in one short sentence", "Give the source of each number"),
        policy.active.getEntriesList().stream().map(e -> e.getText()).toList());
    assertEquals("forgotten: its session", fate("of Use metric units in answers").getReason());
    assertFalse(client.version(2).getKept());
    assertTrue(client.version(2).getDetail().startsWith("void"));
    assertEquals("INVALID_ARGUMENT",
        assertThrows(MeshException.class, () -> client.forget(ForgetRequest.getDefaultInstance())).reason());
    assertEquals(AckStatus.ACK_STATUS_DUPLICATE, submit(Given.sample("of Use metric units in answers", -1, "Use metric "
        + "units in answers")).get(0).getStatus());
    // What comes late of it is let go; a new conversation of that name is none of it.
    Sample.Builder late = Given.sample("late", -1, "Speak of yourself as we").toBuilder();
    late.getTransitionBuilder().getTurnBuilder().setSessionId("s-of Use metric units in answers");
    assertEquals(AckStatus.ACK_STATUS_ACCEPTED, submit(late.build()).get(0).getStatus());
    assertTrue(fate("late").getReason().startsWith("forgotten"));
  }

  @Test
  void errorsAreOfTheCatalogue() {
    assertEquals("NOT_FOUND", assertThrows(MeshException.class, () -> client.version(77)).reason());
    assertEquals("UNIMPLEMENTED", assertThrows(MeshException.class, () -> client.readLogs(
        org.openclaw.rl.v1.ReadLogsRequest.getDefaultInstance()).next()).reason());
    assertEquals("interval", assertThrows(MeshException.class,
        () -> client.watchStats(Duration.ofMillis(1)).next()).violations().get(0).field());
    assertEquals("from_byte", assertThrows(MeshException.class, () -> client.fetchWeights(
        FetchWeightsRequest.newBuilder().setFromByte(1_000_000).build()).next()).violations().get(0).field());
    assertEquals("trainer", client.check().component());
    try (Responses<?> stats = client.watchStats(Duration.ofMillis(100))) {
      assertEquals(2, stats.stream().limit(2).count());
    }
  }

  @Test
  void drainingEndsStreamsWithAWordOnWhen() throws Exception {
    HealthGrpc.HealthBlockingStub health = HealthGrpc.newBlockingStub(client.channel());
    HealthCheckRequest of = HealthCheckRequest.newBuilder().setService("openclaw_rl.v1.TrainerService").build();
    Iterator<HealthCheckResponse> told = health.watch(of);
    assertEquals(HealthCheckResponse.ServingStatus.SERVING, told.next().getStatus());
    try (TrainerClient once = TrainerClient.open(Options.at(server.address()).withReconnect(false));
        Responses<?> stats = once.watchStats(Duration.ofSeconds(3600))) {
      stats.next();
      client.drain(Duration.ofSeconds(5));
      MeshException error = assertThrows(MeshException.class, stats::hasNext);
      assertEquals(Status.Code.UNAVAILABLE, error.code());
      assertTrue(error.retryAfter().isPresent());
    }
    assertEquals(HealthCheckResponse.ServingStatus.NOT_SERVING, told.next().getStatus());
    server.close(); // as on SIGTERM, while it drains
    try (Connection connection = DriverManager.getConnection("jdbc:sqlite:" + folder.resolve("trainer.db")
            + "?busy_timeout=0"); Statement statement = connection.createStatement()) {
      statement.execute("SELECT * FROM state"); // it has let go of the file
    }
  }

  @Test
  void anotherTrainerCannotHaveTheFolder() {
    assertTrue(assertThrows(Store.Failure.class, () -> new Store(folder)).getMessage().contains("another trainer"));
  }
}
