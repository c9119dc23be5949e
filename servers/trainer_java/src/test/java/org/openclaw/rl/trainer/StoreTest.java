package org.openclaw.rl.trainer;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.rpc.ErrorInfo;
import com.google.rpc.RetryInfo;
import com.google.rpc.Status;
import io.grpc.protobuf.StatusProto;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.openclaw.rl.v1.ForgetRequest;
import org.openclaw.rl.v1.ForgetResponse;
import org.openclaw.rl.v1.Playbook;
import org.openclaw.rl.v1.PolicyState;
import org.openclaw.rl.v1.Sample;
import org.openclaw.rl.v1.SampleFate;
import org.openclaw.rl.v1.VersionManifest;

/** What is in the file: all or nothing, and what rollbacks and forgetting leave of it. */
class StoreTest {
  @TempDir private Path folder;
  private Store store;
  private Samples samples;
  private Versions versions;
  private Trainer trainer;

  @BeforeEach
  void open() {
    store = new Store(folder);
    versions = new Versions(store);
    samples = new Samples(store, "", () -> -1);
    trainer = new Trainer(store, samples, versions, new Learner.Limits(20, 1_600, 8, -0.2),
        new Trainer.Pace(1, Duration.ofHours(1)));
    version(0, -1);
  }

  @AfterEach
  void close() {
    trainer.close();
    store.close();
  }

  private void version(long number, long parent, String... turnIds) {
    VersionManifest.Builder manifest = VersionManifest.newBuilder().setVersion(number).setModelId("api-id")
        .setDigest("d" + number).addAllTurnIds(List.of(turnIds));
    if (parent >= 0) {
      manifest.setParent(parent);
      for (String id : turnIds) {
        samples.accept(List.of(Given.sample(id, -1, "Answer in one short sentence")));
      }
      samples.trained(List.of(turnIds), number);
      versions.setHead(number);
      versions.raiseHighest(number);
    }
    versions.insert(manifest.build(), Playbooks.dump(Playbook.getDefaultInstance()));
  }

  /** From now on this fails, in the middle of a transaction. */
  private void fail(String what) {
    store.run("CREATE TRIGGER no BEFORE " + what + " BEGIN SELECT RAISE(ABORT, 'by the test'); END");
  }

  private SampleFate fate(String turnId) {
    return samples.statuses(List.of(turnId)).get(0).getFate();
  }

  @Test
  void aBatchIsTakenWholeOrNotAtAll() {
    fail("INSERT ON samples WHEN NEW.turn_id = 'b'");
    List<Sample> batch = List.of(Given.sample("a", 1, ""), Given.sample("b", 1, ""));
    assertThrows(Store.Failure.class, () -> samples.accept(batch));
    assertEquals(List.of(), samples.statuses(List.of("a", "b")));
    assertEquals(0, store.number("accepted"));
    store.run("DROP TRIGGER no");
    assertEquals(2, samples.accept(batch).size());
    assertEquals(2, store.number("accepted"));
  }

  @Test
  void aStepIsWholeOrNotAtAll() throws Exception {
    samples.accept(List.of(Given.sample("a", -1, "Answer in one short sentence")));
    fail("UPDATE ON samples WHEN NEW.fate = 'trained'");
    trainer.start();
    Given.until("it fails", () -> trainer.missing().startsWith("can't train"));
    assertTrue(versions.find(1).isEmpty());
    assertEquals(0, versions.head());
    samples.accept(List.of(Given.sample("b", 0, "")));
    store.run("DROP TRIGGER no");
    trainer.wake();
    Given.until("it goes on", () -> versions.head() == 1);
    assertEquals(List.of("a", "b"), versions.find(1).orElseThrow().manifest().getTurnIdsList());
    assertEquals(1, store.number("updates"));
  }

  @Test
  void aFullDiskIsToldAndGotOver() {
    long pages = store.one("PRAGMA page_count", row -> row.getLong(1)).orElseThrow();
    store.query("PRAGMA max_page_count = " + (pages + 1), row -> 0);
    List<Sample> batch = List.of(Given.sample("a", -1, "x".repeat(100_000)));
    Store.Failure failure = assertThrows(Store.Failure.class, () -> samples.accept(batch));
    Status status = StatusProto.fromThrowable(Errors.known(failure));
    assertEquals(io.grpc.Status.Code.RESOURCE_EXHAUSTED.value(), status.getCode());
    assertTrue(status.getMessage().contains("disk is full"), status.getMessage());
    assertTrue(status.getDetailsList().stream().anyMatch(detail -> detail.is(RetryInfo.class)));
    assertTrue(status.getDetailsList().stream().filter(detail -> detail.is(ErrorInfo.class))
        .anyMatch(detail -> detail.getValue().toStringUtf8().contains("DISK_FULL")));
    store.query("PRAGMA max_page_count = 100000", row -> 0);
    assertEquals(1, samples.accept(batch).size());
    assertEquals(1, store.number("accepted"));
  }

  private Optional<Long> follow(long active, String digest, long... withdrawn) {
    PolicyState.Builder state = PolicyState.newBuilder().setActiveVersion(active).setActiveDigest(digest);
    for (long number : withdrawn) {
      state.addWithdrawnVersions(number);
    }
    Optional<Long> moved = versions.follow(state.build());
    assertEquals(active, versions.active());
    assertTrue(versions.due(state.build()).isEmpty());
    return moved;
  }

  @Test
  void theHeadFollowsThePolicyServer() {
    version(1, 0, "a");
    version(2, 1, "b");
    version(3, 2, "c");
    version(4, 3, "d");
    assertEquals(Optional.empty(), follow(4, "d4"));
    assertEquals(Optional.of(2L), follow(2, "d2", 3)); // rolled back: 4 was made from 3
    assertEquals(List.of(2L, 1L, 0L), versions.line(versions.head()));
    for (long number : List.of(3L, 4L)) {
      assertEquals(Versions.ROLLED_BACK, versions.find(number).orElseThrow().detail());
      assertTrue(versions.find(number).orElseThrow().refused());
    }
    assertFalse(versions.find(2).orElseThrow().refused());
    assertEquals(Optional.of(4L), follow(4, "d4")); // and forward again
    assertFalse(versions.find(4).orElseThrow().refused());
    assertEquals(Optional.of(1L), follow(1, "d1", 4)); // farther back than what is withdrawn
    assertEquals(Optional.of(4L), follow(4, "d4"));
    assertEquals(Optional.of(3L), follow(2, "of another make", 4)); // only what is withdrawn is left
    assertEquals(Optional.of(1L), follow(99, "of another make", 2, 3, 4));
    assertEquals(4, versions.highest());
    versions.follow(PolicyState.newBuilder().setActiveVersion(99).setHighestVersion(99).build());
    assertEquals(99, versions.highest()); // a number in use there is not taken again
  }

  private ForgetResponse forget(String session) {
    return new Forgetter(store, samples, versions, trainer)
        .forget(ForgetRequest.newBuilder().setSessionId(session).build());
  }

  @Test
  void onlyWhatIsTakenBackIsTrainedOnAgain() {
    version(1, 0, "a");
    version(2, 1, "b");
    version(3, 2, "rolled back");
    follow(2, "d2", 3);
    version(4, 2, "c", "d");
    ForgetResponse done = forget("s-b");
    assertEquals(List.of(2L, 3L, 4L), done.getVersionsList());
    assertEquals(1, done.getBaseVersion());
    assertEquals(1, versions.head());
    assertEquals(2, done.getRebuilding());
    assertEquals(2, samples.waiting().again());
    assertEquals(SampleFate.SAMPLE_FATE_TRAINED, fate("rolled back")); // by an operator: it stays so
    assertEquals(SampleFate.SAMPLE_FATE_PENDING, fate("c"));
    assertEquals(SampleFate.SAMPLE_FATE_DROPPED, fate("b"));
    assertEquals(2, store.number("trained"));
    assertEquals(1, store.query("SELECT 1 FROM samples WHERE turn_id = 'b' AND payload IS NULL AND content IS NULL AND"
        + " session = ''", row -> 1).size());
    // The answer was lost on the way: the same again.
    ForgetResponse again = forget("s-b");
    assertEquals(done.getVersionsList(), again.getVersionsList());
    assertEquals(1, again.getBaseVersion());
    assertEquals(2, again.getRebuilding());
    assertEquals(0, again.getRemovedOrThrow("samples"));
    assertTrue(forget("s-nobody").getVersionsList().isEmpty());
  }

  @Test
  void forgettingIsWholeOrNotAtAll() {
    version(1, 0, "a");
    fail("UPDATE ON versions WHEN NEW.refused = 1");
    assertThrows(Store.Failure.class, () -> forget("s-a"));
    assertEquals(SampleFate.SAMPLE_FATE_TRAINED, fate("a"));
    assertEquals(0, store.query("SELECT 1 FROM forgotten", row -> 1).size());
    store.run("DROP TRIGGER no");
    assertEquals(List.of(1L), forget("s-a").getVersionsList());
  }

  @Test
  void onlyTurnsBeforeTheMomentAreForgotten() {
    Sample.Builder old = Given.sample("old", 1, "").toBuilder();
    old.getTransitionBuilder().getTurnBuilder().setSessionId("s").setRequestedAt(Samples.timestamp(100));
    Sample.Builder late = Given.sample("new", 1, "").toBuilder();
    late.getTransitionBuilder().getTurnBuilder().setSessionId("s").setRequestedAt(Samples.timestamp(300));
    samples.accept(List.of(old.build(), late.build()));
    new Forgetter(store, samples, versions, trainer).forget(
        ForgetRequest.newBuilder().setSessionId("s").setBefore(Samples.timestamp(200)).build());
    assertEquals(SampleFate.SAMPLE_FATE_DROPPED, fate("old"));
    assertEquals(SampleFate.SAMPLE_FATE_PENDING, fate("new"));
    Sample.Builder between = Given.sample("between", 1, "").toBuilder();
    between.getTransitionBuilder().getTurnBuilder().setSessionId("s").setRequestedAt(Samples.timestamp(150));
    samples.accept(List.of(between.build()));
    assertEquals(SampleFate.SAMPLE_FATE_DROPPED, fate("between")); // it was under way
    new Forgetter(store, samples, versions, trainer).forget(
        ForgetRequest.newBuilder().setSessionId("s").addTurnIds("known elsewhere").build());
    samples.accept(List.of(Given.sample("known elsewhere", 1, "")));
    assertEquals(SampleFate.SAMPLE_FATE_DROPPED, fate("known elsewhere"));
  }
}
