package org.openclaw.rl.trainer;

import com.google.protobuf.CodedOutputStream;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.protobuf.MessageLite;
import com.google.protobuf.Timestamp;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import java.util.function.LongSupplier;
import org.openclaw.rl.v1.Ack;
import org.openclaw.rl.v1.AckStatus;
import org.openclaw.rl.v1.LiveScore;
import org.openclaw.rl.v1.Sample;
import org.openclaw.rl.v1.SampleFate;
import org.openclaw.rl.v1.SampleStatus;
import org.openclaw.rl.v1.Turn;
import org.openclaw.rl.v1.TurnClass;

/** The samples, and the fate of each: pending, trained or dropped. */
final class Samples {
  private static final int LONGEST_ID = 256;
  private static final String PENDING = "pending";

  private static final Map<String, SampleFate> FATES = Map.of(PENDING, SampleFate.SAMPLE_FATE_PENDING,
      "trained", SampleFate.SAMPLE_FATE_TRAINED, "dropped", SampleFate.SAMPLE_FATE_DROPPED);

  /**
   * What waits for a step.
   *
   * @param total samples
   * @param signal those that a step can learn from
   * @param again those of them that wait again, since the version that they trained was taken back
   * @param oldest when the oldest of those was accepted, seconds since 1970; 0 when there is none
   */
  record Waiting(long total, long signal, long again, double oldest) {}

  private final Store store;
  private final String mesh; // whose turns are trained on; empty for those of any
  private final LongSupplier newest; // version that there ever was; -1 while that is not known

  Samples(Store store, String mesh, LongSupplier newest) {
    this.store = store;
    this.mesh = mesh;
    this.newest = newest;
  }

  /** Keeps a batch in one transaction; an answer for each, in order, when it is on the disk. */
  List<Ack> accept(List<Sample> batch) {
    return store.transaction(() -> batch.stream().map(this::acceptOne).toList());
  }

  private Ack acceptOne(Sample sample) {
    String id = sample.getTransition().getTurn().getTurnId();
    Ack.Builder ack = Ack.newBuilder().setId(id);
    Optional<String> bad = misfit(sample, id);
    if (bad.isPresent()) {
      return ack.setStatus(AckStatus.ACK_STATUS_REJECTED).setReason(bad.get()).build();
    }
    byte[] content = Arrays.copyOf(Playbooks.sha256(bytes(sample)), 8);
    // Of a forgotten one no content is known: whatever comes again is that.
    Optional<String> first = store.one("SELECT hex(IFNULL(content, x'')) FROM samples WHERE turn_id = ?",
        row -> row.getString(1), id);
    if (first.isPresent()) {
      boolean same = first.get().isEmpty() || first.get().equals(HexFormat.of().withUpperCase().formatHex(content));
      return same
          ? ack.setStatus(AckStatus.ACK_STATUS_DUPLICATE).build()
          : ack.setStatus(AckStatus.ACK_STATUS_REJECTED).setReason("transition.turn.turn_id: a sample of this id and "
              + "another content came before; that one stands").build();
    }
    insert(sample, id, content);
    return ack.setStatus(AckStatus.ACK_STATUS_ACCEPTED).build();
  }

  private void insert(Sample sample, String id, byte[] content) {
    Turn turn = sample.getTransition().getTurn();
    double requested = seconds(turn.getRequestedAt());
    boolean forgotten = forgotten(id, turn.getSessionId(), requested);
    String reason = forgotten ? "forgotten: its session, while it was under way" : unusable(sample);
    boolean kept = reason.isEmpty();
    int score = sample.getJudgement().getScore();
    boolean counts = !forgotten && foreign(turn).isEmpty() && !sample.getJudgement().getFailed()
        && turn.getTurnClass() == TurnClass.TURN_CLASS_MAIN && Math.abs(score) <= 1;
    store.run("INSERT INTO samples (turn_id, session, fate, reason, score, signal, answered, accepted_at, requested_at,"
            + " content, payload) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        id, forgotten ? "" : turn.getSessionId(), kept ? PENDING : "dropped", reason,
        sample.getJudgement().getFailed() || forgotten ? null : score,
        kept && (score != 0 || !sample.getJudgement().getHint().isBlank()) ? 1 : 0,
        counts ? Learner.answeredBy(turn) : null, now(), requested, forgotten ? null : content,
        kept ? sample.toByteArray() : null);
    store.count("accepted", 1);
    if (!kept) {
      countDropped(reason, 1);
    }
  }

  /** Why a sample can't be taken at all. */
  private static Optional<String> misfit(Sample sample, String id) {
    if (id.isEmpty() || id.length() > LONGEST_ID) {
      return Optional.of("transition.turn.turn_id: " + id.length() + " characters; it must have 1 to " + LONGEST_ID);
    }
    if (id.chars().anyMatch(Character::isISOControl)) {
      return Optional.of("transition.turn.turn_id: it has control characters");
    }
    return sample.hasJudgement() ? Optional.empty() : Optional.of("judgement: it is missing");
  }

  /** Why nothing can be learned from it; empty when something can. What stands before a colon is the reason's class. */
  private String unusable(Sample sample) {
    Turn turn = sample.getTransition().getTurn();
    if (!foreign(turn).isEmpty()) {
      return foreign(turn);
    }
    if (sample.getJudgement().getFailed()) {
      return "judge failed";
    }
    if (turn.getTurnClass() != TurnClass.TURN_CLASS_MAIN) {
      return "not a main turn: class " + turn.getTurnClass();
    }
    if (Math.abs(sample.getJudgement().getScore()) > 1) {
      return "bad score: " + sample.getJudgement().getScore() + " is not -1, 0 or +1";
    }
    if (turn.hasEpisode()) {
      return "of an episode: the playbook of an API model does not learn from episodes";
    }
    long latest = newest.getAsLong();
    if (latest >= 0 && turn.getPolicyVersion() > latest) {
      return "bad token record: sampled from version " + turn.getPolicyVersion() + ", but the newest is " + latest;
    }
    return "";
  }

  /** Why a turn is not one of this mesh; empty when it is. */
  private String foreign(Turn turn) {
    String of = turn.getMeshId();
    if (mesh.isEmpty() || of.equals(mesh)) {
      return "";
    }
    return of.isEmpty() ? "foreign mesh: no environment server of this mesh took the turn in: turn.mesh_id is empty"
        : "foreign mesh: the turn is of the mesh " + of.substring(0, Math.min(of.length(), 80)) + ", and this is " + mesh;
  }

  /** The fates of turns in the order asked for; of the pending ones without any. */
  List<SampleStatus> statuses(List<String> turnIds) {
    String columns = "SELECT turn_id, fate, reason, version, score, accepted_at FROM samples WHERE ";
    if (turnIds.isEmpty()) {
      return store.query(columns + "fate = 'pending' ORDER BY seq", Samples::status);
    }
    return store.transaction(() -> turnIds.stream()
        .flatMap(id -> store.one(columns + "turn_id = ?", Samples::status, id).stream()).toList());
  }

  private static SampleStatus status(ResultSet row) throws SQLException {
    SampleStatus.Builder status = SampleStatus.newBuilder().setTurnId(row.getString("turn_id"))
        .setFate(FATES.get(row.getString("fate"))).setReason(row.getString("reason"))
        .setAcceptedAt(timestamp(row.getDouble("accepted_at")));
    if (row.getObject("version") != null) {
      status.setVersion(row.getLong("version"));
    }
    if (row.getObject("score") != null) {
      status.setScore(row.getInt("score"));
    }
    return status.build();
  }

  Waiting waiting() {
    return store.one("SELECT COUNT(*), IFNULL(SUM(signal), 0), IFNULL(SUM(signal AND again), 0),"
            + " IFNULL(MIN(CASE WHEN signal THEN accepted_at END), 0) FROM samples WHERE fate = 'pending'",
        row -> new Waiting(row.getLong(1), row.getLong(2), row.getLong(3), row.getDouble(4))).orElseThrow();
  }

  /** Samples for a step: the oldest that it can learn from, and as many neutral ones at most. */
  List<Sample> batch(int limit) {
    String some = "SELECT payload FROM samples WHERE fate = 'pending' AND signal = ? ORDER BY seq LIMIT ?";
    List<Sample> found = new ArrayList<>(store.query(some, row -> parse(row.getBytes(1)), 1, limit));
    found.addAll(store.query(some, row -> parse(row.getBytes(1)), 0, Math.min(found.size(), limit - found.size())));
    return found;
  }

  /** Their fate: they trained a version. In the transaction that keeps the version. */
  void trained(Collection<String> turnIds, long version) {
    for (String id : turnIds) {
      store.run("UPDATE samples SET fate = 'trained', version = ? WHERE turn_id = ? AND fate = 'pending'", version, id);
    }
    store.count("trained", turnIds.size());
  }

  /** Their fate: nothing came of them. */
  void drop(Collection<String> turnIds, String reason) {
    for (String id : turnIds) {
      store.run("UPDATE samples SET fate = 'dropped', reason = ?, payload = NULL WHERE turn_id = ? AND fate = 'pending'",
          reason, id);
    }
    countDropped(reason, turnIds.size());
  }

  /** Drops neutral ones that no step took along for so long. */
  void dropNeutral(double before) {
    List<String> old = store.query("SELECT turn_id FROM samples WHERE fate = 'pending' AND signal = 0 AND accepted_at < ?",
        row -> row.getString(1), before);
    if (!old.isEmpty()) {
      drop(old, "neutral: nothing to learn from it");
    }
  }

  /** Dropped samples by the class of the reason. */
  Map<String, Long> dropped() {
    Map<String, Long> found = new TreeMap<>();
    store.query("SELECT name, value FROM state WHERE name LIKE 'dropped:%'",
        row -> found.put(row.getString(1).substring("dropped:".length()), Long.parseLong(row.getString(2))));
    found.values().removeIf(count -> count == 0);
    return found;
  }

  void countDropped(String reason, long by) {
    store.count("dropped:" + reason.split(":", 2)[0], by);
  }

  /** How the turns that a version answered were judged. */
  Optional<LiveScore> live(long version) {
    return store.one("SELECT COUNT(*), AVG(score) FROM samples WHERE answered = ? AND score IS NOT NULL",
            row -> LiveScore.newBuilder().setTurns(row.getLong(1)).setMean(row.getDouble(2)).build(), version)
        .filter(live -> live.getTurns() > 0);
  }

  private boolean forgotten(String id, String session, double requested) {
    return store.one("SELECT 1 FROM forgotten WHERE digest = ? OR (digest = ? AND before > ?)", row -> 1,
        mark("turn", id), mark("session", session), requested).isPresent();
  }

  /** What stands for an id that was forgotten. */
  static byte[] mark(String kind, String id) {
    return Playbooks.sha256((kind + "\0" + id).getBytes(StandardCharsets.UTF_8));
  }

  private static Sample parse(byte[] payload) {
    try {
      return Sample.parseFrom(payload);
    } catch (InvalidProtocolBufferException error) {
      throw new Store.Failure("a stored sample is damaged: " + error.getMessage(), error);
    }
  }

  /** The same for equal messages, whatever order a sender wrote maps in. */
  private static byte[] bytes(MessageLite message) {
    ByteArrayOutputStream out = new ByteArrayOutputStream(message.getSerializedSize());
    try {
      CodedOutputStream coded = CodedOutputStream.newInstance(out);
      coded.useDeterministicSerialization();
      message.writeTo(coded);
      coded.flush();
      return out.toByteArray();
    } catch (IOException impossible) {
      throw new UncheckedIOException(impossible);
    }
  }

  static double now() {
    return System.currentTimeMillis() / 1000.0;
  }

  static double seconds(Timestamp at) {
    return at.getSeconds() + at.getNanos() / 1e9;
  }

  static Timestamp timestamp(double at) {
    Instant instant = Instant.ofEpochMilli(Math.round(at * 1000));
    return Timestamp.newBuilder().setSeconds(instant.getEpochSecond()).setNanos(instant.getNano()).build();
  }
}
