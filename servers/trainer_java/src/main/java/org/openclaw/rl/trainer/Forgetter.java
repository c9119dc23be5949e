package org.openclaw.rl.trainer;

import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import org.openclaw.rl.v1.ForgetRequest;
import org.openclaw.rl.v1.ForgetResponse;
import org.openclaw.rl.v1.TrainingEventKind;

/**
 * Removes a session: its samples, and the versions that learned from them. Training goes on from the newest version
 * before those; the other samples of the versions taken back are trained on again.
 */
final class Forgetter {
  private final Store store;
  private final Samples samples;
  private final Versions versions;
  private final Trainer trainer;

  Forgetter(Store store, Samples samples, Versions versions, Trainer trainer) {
    this.store = store;
    this.samples = samples;
    this.versions = versions;
    this.trainer = trainer;
  }

  ForgetResponse forget(ForgetRequest request) {
    if (request.getSessionId().isEmpty()) {
      throw Errors.invalid("session_id", "''", "the id of a session");
    }
    double before = request.hasBefore() ? Samples.seconds(request.getBefore()) : Samples.now();
    ForgetResponse done = store.transaction(() -> forget(request, before));
    trainer.tell(TrainingEventKind.TRAINING_EVENT_KIND_FORGOTTEN,
        done.hasBaseVersion() ? done.getBaseVersion() : null, done.getTurnIdsCount() + " turns were forgotten");
    trainer.wake();
    return done;
  }

  private ForgetResponse forget(ForgetRequest request, double before) {
    Set<String> turnIds = new TreeSet<>(request.getTurnIdsList());
    turnIds.addAll(store.query("SELECT turn_id FROM samples WHERE session = ? AND requested_at < ?",
        row -> row.getString(1), request.getSessionId(), before));
    mark("session", request.getSessionId(), before);
    long removed = 0;
    for (String id : turnIds) {
      mark("turn", id, Double.MAX_VALUE);
      removed += drop(id);
    }
    Set<Long> touched = new TreeSet<>();
    for (Versions.Version version : versions.page(Long.MAX_VALUE, Integer.MAX_VALUE)) {
      if (version.manifest().getTurnIdsList().stream().anyMatch(turnIds::contains)) {
        touched.add(version.number());
      }
    }
    Set<Long> gone = versions.madeFrom(touched);
    byte[] session = Samples.mark("session", request.getSessionId());
    gone.forEach(version -> store.run("INSERT OR IGNORE INTO voided VALUES (?, ?)", session, version));
    // Also those of an earlier call, whose answer may not have arrived.
    gone.addAll(store.query("SELECT version FROM voided WHERE digest = ?", row -> row.getLong(1), session));
    ForgetResponse.Builder response = ForgetResponse.newBuilder().addAllTurnIds(turnIds).addAllVersions(gone)
        .putRemoved("samples", removed).putRemoved("versions", gone.size());
    for (long version : gone) {
      store.run("UPDATE versions SET playbook = NULL, refused = 1, detail = ? WHERE version = ?",
          "void: a session was forgotten that it was trained on", version);
    }
    if (gone.isEmpty()) {
      return response.setMessage("no version was trained on its turns").build();
    }
    List<Long> line = versions.line(versions.head());
    long base = line.stream().filter(number -> !gone.contains(number)).findFirst().orElse(0L);
    versions.setHead(base);
    int again = 0;
    for (long version : line.stream().takeWhile(gone::contains).toList()) { // not of what was rolled back before
      again += store.run("UPDATE samples SET fate = 'pending', version = NULL, again = 1 WHERE fate = 'trained' AND"
          + " version = ? AND payload IS NOT NULL", version);
    }
    store.count("trained", -again);
    long left = samples.waiting().again();
    return response.setBaseVersion(base).setRebuilding((int) left)
        .setMessage("training goes on from version " + base + (left == 0
            ? "; there is nothing else that the versions after it were trained on"
            : "; " + left + " samples of the versions after it are trained on again")).build();
  }

  private void mark(String kind, String id, double before) {
    store.run("INSERT INTO forgotten VALUES (?, ?) ON CONFLICT (digest) DO UPDATE SET before = MAX(before,"
        + " excluded.before)", Samples.mark(kind, id), before);
  }

  /** Lets a sample go; its id stays, by which one that comes again is known. */
  private int drop(String turnId) {
    String fate = store.one("SELECT CASE WHEN reason LIKE 'forgotten%' THEN '' WHEN fate = 'dropped' THEN reason ELSE"
        + " fate END FROM samples WHERE turn_id = ?", row -> row.getString(1), turnId).orElse("");
    if (fate.isEmpty()) {
      return 0;
    }
    if (fate.equals("trained")) {
      store.count("trained", -1);
    } else if (!fate.equals("pending")) {
      samples.countDropped(fate, -1);
    }
    samples.countDropped("forgotten", 1);
    return store.run("UPDATE samples SET fate = 'dropped', reason = 'forgotten: its session', version = NULL, score ="
        + " NULL, signal = 0, answered = NULL, session = '', content = NULL, payload = NULL WHERE turn_id = ?", turnId);
  }
}
