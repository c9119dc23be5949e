package org.openclaw.rl.trainer;

import io.grpc.Status;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CopyOnWriteArraySet;
import java.util.logging.Level;
import java.util.logging.Logger;
import org.openclaw.rl.v1.Playbook;
import org.openclaw.rl.v1.Sample;
import org.openclaw.rl.v1.TrainNowResponse;
import org.openclaw.rl.v1.TrainingEventKind;
import org.openclaw.rl.v1.VersionManifest;
import org.openclaw.rl.v1.Vote;
import org.openclaw.rl.v1.WatchTrainingResponse;

/** Decides when to make a version, and makes it: one transaction for the version and the fates of its samples. */
final class Trainer implements AutoCloseable {
  private static final Logger LOG = Logger.getLogger(Trainer.class.getName());
  /** Most samples of a step. */
  private static final int MAX_BATCH = 64;
  /** Intervals after which a neutral sample that no step took along is dropped. */
  private static final int NEUTRAL_INTERVALS = 10;

  /**
   * When to train.
   *
   * @param minSamples samples with a score or a hint that start a step at once
   * @param interval time after which a step has fewer
   */
  record Pace(int minSamples, Duration interval) {}

  private final Store store;
  private final Samples samples;
  private final Versions versions;
  private final Learner learner;
  private final Learner.Limits limits;
  private final Pace pace;
  private final Set<Streams.Stream<WatchTrainingResponse>> watchers = new CopyOnWriteArraySet<>();
  private final Thread thread = new Thread(this::run, "trainer");
  private final Object wake = new Object();
  private boolean awake; // guarded by wake
  private volatile Runnable onVersion = () -> {};
  private volatile boolean forced;
  private volatile boolean training;
  private volatile boolean closed;
  private volatile String problem = "";

  Trainer(Store store, Samples samples, Versions versions, Learner.Limits limits, Pace pace) {
    this.store = store;
    this.samples = samples;
    this.versions = versions;
    this.learner = new Learner(limits);
    this.limits = limits;
    this.pace = pace;
    thread.setDaemon(true);
  }

  void start() {
    thread.start();
  }

  /** Something happened that may make a step due. */
  void wake() {
    synchronized (wake) {
      awake = true;
      wake.notifyAll();
    }
  }

  /** Somebody to tell when another version is the one to be served. */
  void onVersion(Runnable listener) {
    onVersion = listener;
  }

  /** Tells each event to a stream, from now on. */
  void watch(Streams.Stream<WatchTrainingResponse> watcher) {
    watchers.add(watcher);
  }

  void tell(TrainingEventKind kind, Long version, String message) {
    tell(kind, version, message, List.of(), Map.of());
  }

  private void tell(
      TrainingEventKind kind, Long version, String message, List<String> turnIds, Map<String, Double> metrics) {
    WatchTrainingResponse.Builder event = WatchTrainingResponse.newBuilder().setKind(kind).setMessage(message)
        .addAllTurnIds(turnIds).putAllMetrics(metrics).setAt(Samples.timestamp(Samples.now()));
    if (version != null) {
      event.setVersion(version);
    }
    LOG.info(message);
    watchers.removeIf(Streams.Stream::over);
    watchers.forEach(watcher -> watcher.send(event.build()));
    onVersion.run();
  }

  boolean training() {
    return training;
  }

  boolean paused() {
    return store.get("paused").isPresent();
  }

  void pause(String reason) {
    store.set("paused", reason);
  }

  void resume() {
    store.run("DELETE FROM state WHERE name = 'paused'");
    wake();
  }

  /** The next step is due as soon as there is something to learn from. */
  void force() {
    forced = true;
    wake();
  }

  TrainNowResponse trainNow() {
    if (paused()) {
      throw Errors.of(Status.Code.FAILED_PRECONDITION, "PAUSED", "training is paused; resume it first");
    }
    if (versions.find(0).isEmpty()) {
      throw Errors.unavailable("the policy server was not reached yet, so its model is not known", 2);
    }
    Samples.Waiting waiting = samples.waiting();
    if (waiting.signal() == 0) {
      return TrainNowResponse.newBuilder().setMessage("nothing to train on: " + missing()).build();
    }
    int count = samples.batch(MAX_BATCH).size();
    force();
    return TrainNowResponse.newBuilder().setSamples(count).setMessage("a step on " + count + " samples begins").build();
  }

  /** What the next step waits for, for a person. */
  String missing() {
    if (!problem.isEmpty()) {
      return problem;
    }
    Samples.Waiting waiting = samples.waiting();
    if (paused()) {
      String why = store.get("paused").orElse("");
      return "paused" + (why.isEmpty() ? "" : ": " + why);
    }
    if (versions.find(0).isEmpty()) {
      return "waits for the policy server, whose model is not known yet";
    }
    if (waiting.signal() == 0) {
      return waiting.total() == 0 ? "waits for samples"
          : "has " + waiting.total() + " neutral samples; needs one with a score or a hint";
    }
    return "needs " + (pace.minSamples() - waiting.signal()) + " more samples or "
        + Math.max(0, Math.round(waiting.oldest() + seconds() - Samples.now())) + " s";
  }

  private double seconds() {
    return pace.interval().toMillis() / 1000.0;
  }

  private void run() {
    while (!closed) {
      double pause;
      try {
        pause = turn();
        problem = "";
      } catch (RuntimeException error) { // samples wait; whatever it was, the component goes on taking them
        String now = "can't train: " + error.getMessage();
        if (!now.equals(problem)) { // once, not with each attempt
          LOG.log(Level.SEVERE, now, error);
        }
        problem = now;
        pause = 2;
      }
      synchronized (wake) {
        try {
          if (!awake && !closed) {
            wake.wait(Math.max(1, Math.round(pause * 1000)));
          }
        } catch (InterruptedException interrupted) {
          return;
        }
        awake = false;
      }
    }
  }

  /** Trains when a step is due; seconds after which one may be. */
  private double turn() {
    if (paused() || versions.find(0).isEmpty()) {
      return seconds();
    }
    samples.dropNeutral(Samples.now() - NEUTRAL_INTERVALS * seconds());
    Samples.Waiting waiting = samples.waiting();
    if (waiting.signal() == 0) {
      return seconds();
    }
    double left = waiting.oldest() + seconds() - Samples.now();
    // One of the future came before the clock was set back.
    if (!forced && waiting.again() == 0 && waiting.signal() < pace.minSamples() && left > 0 && left <= seconds() + 1) {
      return left;
    }
    forced = false;
    training = true;
    try {
      step();
    } finally {
      training = false;
    }
    return 0;
  }

  private void step() {
    tell(TrainingEventKind.TRAINING_EVENT_KIND_STEP_STARTED, null, "a step began");
    long began = System.nanoTime();
    WatchTrainingResponse.Builder event = WatchTrainingResponse.newBuilder();
    store.transaction(() -> { // nothing may be forgotten or rolled back between reading and keeping
      List<Sample> batch = samples.batch(MAX_BATCH);
      List<String> turnIds = batch.stream().map(sample -> sample.getTransition().getTurn().getTurnId()).toList();
      event.addAllTurnIds(turnIds);
      long head = versions.head();
      long number = Math.max(versions.highest(), head) + 1;
      Playbook before = versions.playbook(head);
      Learner.Result result = learner.step(before, batch, versions::playbook, number);
      event.putAllMetrics(result.metrics()).putMetrics("seconds", (System.nanoTime() - began) / 1e9);
      byte[] data = Playbooks.dump(result.playbook());
      if (result.playbook().equals(before) || data.length > Playbooks.MAX_BYTES) {
        samples.drop(turnIds, "no instruction: nothing in it can be made one");
        store.count("steps_skipped", 1);
        event.setKind(TrainingEventKind.TRAINING_EVENT_KIND_STEP_SKIPPED)
            .setMessage("nothing in " + turnIds.size() + " samples changes the playbook");
        return null;
      }
      versions.insert(manifest(number, head, data, batch, event.getMetricsMap()), data);
      versions.setHead(number);
      versions.raiseHighest(number);
      samples.trained(turnIds, number);
      store.count("updates", 1);
      event.setKind(TrainingEventKind.TRAINING_EVENT_KIND_VERSION_CREATED).setVersion(number)
          .setMessage("version " + number + " was made of " + turnIds.size() + " samples");
      return null;
    });
    tell(event.getKind(), event.hasVersion() ? event.getVersion() : null, event.getMessage(), event.getTurnIdsList(),
        event.getMetricsMap());
  }

  private VersionManifest manifest(
      long number, long parent, byte[] data, List<Sample> batch, Map<String, Double> metrics) {
    VersionManifest.Builder manifest = VersionManifest.newBuilder().setVersion(number).setParent(parent)
        .setDigest(Playbooks.digest(data))
        .setModelId(versions.find(0).orElseThrow().manifest().getModelId()).setAlgorithm("playbook")
        .putSettings("max_entries", String.valueOf(limits.maxEntries()))
        .putSettings("max_characters", String.valueOf(limits.maxCharacters()))
        .putSettings("min_uses", String.valueOf(limits.minUses()))
        .putSettings("min_score", String.valueOf(limits.minScore()))
        .putAllMetrics(metrics).setCreatedAt(Samples.timestamp(Samples.now())).setTotalBytes(data.length);
    for (Sample sample : batch) {
      manifest.addTurnIds(sample.getTransition().getTurn().getTurnId());
      for (Vote vote : sample.getJudgement().getVotesList()) {
        if (vote.getError().isEmpty()) {
          manifest.putJudges(vote.getJudge(), manifest.getJudgesOrDefault(vote.getJudge(), 0) + 1);
        }
      }
    }
    return manifest.build();
  }

  /** Ends after the step that runs. */
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
}
