package org.openclaw.rl.trainer;

import com.google.protobuf.InvalidProtocolBufferException;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.util.Collection;
import java.util.Collections;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.TreeSet;
import org.openclaw.rl.v1.Playbook;
import org.openclaw.rl.v1.PolicyState;
import org.openclaw.rl.v1.VersionManifest;

/** The versions: each a playbook with its manifest. Version 0 is the policy's empty one. */
final class Versions {
  static final String ROLLED_BACK = "rolled back";

  /**
   * A version.
   *
   * @param playbook the tensor's bytes; null when they were deleted
   * @param activatedAt seconds since 1970; 0 when no policy server answered with it
   * @param detail why it is not served; empty otherwise
   * @param refused it is never offered again
   */
  record Version(VersionManifest manifest, byte[] playbook, double activatedAt, String detail, boolean refused) {
    long number() {
      return manifest.getVersion();
    }
  }

  private final Store store;

  Versions(Store store) {
    this.store = store;
  }

  /** Keeps version 0 as the policy server has it; whether the versions here are of that model. */
  boolean base(VersionManifest manifest) {
    return store.transaction(() -> {
      Optional<Version> known = find(0);
      if (known.isPresent()) {
        return known.get().manifest().getModelId().equals(manifest.getModelId());
      }
      insert(manifest, Playbooks.dump(Playbook.getDefaultInstance()));
      return true;
    });
  }

  void insert(VersionManifest manifest, byte[] playbook) {
    store.run("INSERT INTO versions (version, parent, manifest, playbook) VALUES (?, ?, ?, ?)", manifest.getVersion(),
        manifest.hasParent() ? manifest.getParent() : null, manifest.toByteArray(), playbook);
  }

  /** The version that the next one builds on. */
  long head() {
    return store.number("head");
  }

  /** The highest number in use anywhere. */
  long highest() {
    return store.number("highest");
  }

  /** The version that the policy server answers with; -1 when that was never heard. */
  long active() {
    return store.get("active").map(Long::parseLong).orElse(-1L);
  }

  Optional<Version> find(long number) {
    return store.one("SELECT * FROM versions WHERE version = ?", Versions::read, number);
  }

  /** The newest below a number, ascending. */
  List<Version> page(long before, int limit) {
    List<Version> found = store.query("SELECT * FROM versions WHERE version < ? ORDER BY version DESC LIMIT ?",
        Versions::read, before, limit);
    Collections.reverse(found);
    return found;
  }

  /** A version's playbook; empty when it isn't known here. */
  Playbook playbook(long number) {
    return find(number).filter(version -> version.playbook() != null)
        .map(version -> Playbooks.parse(version.playbook())).orElse(Playbook.getDefaultInstance());
  }

  /** A version and those that it was made from, newest first. */
  List<Long> line(long number) {
    return store.query("WITH RECURSIVE line AS (SELECT version, parent FROM versions WHERE version = ? UNION ALL SELECT"
        + " v.version, v.parent FROM versions v JOIN line ON v.version = line.parent) SELECT version FROM line ORDER BY"
        + " version DESC", row -> row.getLong(1), number);
  }

  /** These and all that were made from them, ascending. */
  Set<Long> madeFrom(Collection<Long> numbers) {
    Set<Long> found = new TreeSet<>(numbers);
    store.query("SELECT parent, version FROM versions WHERE parent NOT NULL ORDER BY version", // a parent's is lower
        row -> found.contains(row.getLong(1)) && found.add(row.getLong(2)));
    return found;
  }

  void activated(long number, double at) {
    store.transaction(() -> {
      store.run("UPDATE versions SET activated_at = IFNULL(activated_at, ?), detail = '' WHERE version = ?", at, number);
      store.set("active", number);
      return null;
    });
  }

  /** The policy server will never take it. */
  void refused(long number, String detail) {
    store.run("UPDATE versions SET detail = ?, refused = 1 WHERE version = ?", detail, number);
  }

  void setHead(long number) {
    store.set("head", number);
  }

  void raiseHighest(long number) {
    store.set("highest", Math.max(highest(), number));
  }

  /**
   * Follows the policy server: after a rollback the next version builds on what is not taken back.
   *
   * @return the new head, when it moved
   */
  Optional<Long> follow(PolicyState state) {
    return store.transaction(() -> {
      raiseHighest(state.getHighestVersion());
      activated(state.getActiveVersion(), Samples.seconds(state.getActivatedAt()));
      Set<Long> withdrawn = madeFrom(state.getWithdrawnVersionsList());
      List<Long> line = line(head());
      Optional<Version> active = find(state.getActiveVersion());
      boolean ours = active.isPresent() && active.get().playbook() != null
          && active.get().manifest().getDigest().equals(state.getActiveDigest());
      long base = head();
      if (line.stream().anyMatch(withdrawn::contains)) {
        base = ours ? state.getActiveVersion()
            : line.stream().filter(number -> !withdrawn.contains(number)).findFirst().orElse(0L);
        for (long number : withdrawn) {
          store.run("UPDATE versions SET detail = ?, refused = 1 WHERE version = ? AND refused = 0", ROLLED_BACK, number);
        }
      } else if (ours && state.getActiveVersion() > head()) { // forward again
        base = state.getActiveVersion();
        store.run("UPDATE versions SET refused = 0 WHERE version = ?", base);
      }
      boolean moved = base != head();
      setHead(base);
      return moved ? Optional.of(base) : Optional.empty();
    });
  }

  /** What the policy server is to be brought to, if anything. */
  Optional<Version> due(PolicyState state) {
    return find(head()).filter(version -> version.number() > state.getActiveVersion() && !version.refused()
        && version.playbook() != null
        && line(version.number()).stream().noneMatch(state.getWithdrawnVersionsList()::contains));
  }

  private static Version read(ResultSet row) throws SQLException {
    try {
      return new Version(VersionManifest.parseFrom(row.getBytes("manifest")), row.getBytes("playbook"),
          row.getDouble("activated_at"), row.getString("detail"), row.getBoolean("refused"));
    } catch (InvalidProtocolBufferException error) {
      throw new Store.Failure("the record of version " + row.getLong("version") + " is damaged", error);
    }
  }
}
