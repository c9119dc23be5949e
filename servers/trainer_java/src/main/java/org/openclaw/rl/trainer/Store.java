package org.openclaw.rl.trainer;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.function.Supplier;
import org.sqlite.SQLiteErrorCode;
import org.sqlite.SQLiteException;

/**
 * The trainer's SQLite file. One transaction at a time; each is on the disk when it returns, so that a kill or a power
 * loss at any moment leaves all of it or nothing.
 */
final class Store implements AutoCloseable {
  /** The file can't be used. */
  static final class Failure extends RuntimeException {
    private static final long serialVersionUID = 1L;

    /** There is no room for what it was to take; worth repeating. */
    final boolean full;

    Failure(String message, Throwable cause) {
      super(message, cause);
      full = cause instanceof SQLiteException error && error.getResultCode() == SQLiteErrorCode.SQLITE_FULL;
    }
  }

  /** Reads a row. */
  interface Row<T> {
    T read(ResultSet row) throws SQLException;
  }

  /** Of the tables below; a greater one was written by a newer release. */
  private static final int FORMAT = 1;

  private static final String[] SCHEMA = {
    """
    CREATE TABLE IF NOT EXISTS samples (
      seq INTEGER PRIMARY KEY, turn_id TEXT NOT NULL UNIQUE, session TEXT NOT NULL, fate TEXT NOT NULL,
      reason TEXT NOT NULL, version INTEGER, score INTEGER, signal INTEGER NOT NULL, answered INTEGER,
      accepted_at REAL NOT NULL, requested_at REAL NOT NULL, content BLOB, payload BLOB, again INTEGER NOT NULL DEFAULT 0)""",
    "CREATE INDEX IF NOT EXISTS by_fate ON samples (fate, seq)",
    "CREATE INDEX IF NOT EXISTS by_session ON samples (session)",
    "CREATE INDEX IF NOT EXISTS by_answered ON samples (answered, score)",
    """
    CREATE TABLE IF NOT EXISTS versions (
      version INTEGER PRIMARY KEY, parent INTEGER, manifest BLOB NOT NULL, playbook BLOB, activated_at REAL,
      detail TEXT NOT NULL DEFAULT '', refused INTEGER NOT NULL DEFAULT 0)""",
    "CREATE TABLE IF NOT EXISTS state (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS forgotten (digest BLOB PRIMARY KEY, before REAL NOT NULL)",
    "CREATE TABLE IF NOT EXISTS voided (digest BLOB, version INTEGER, PRIMARY KEY (digest, version)) WITHOUT ROWID",
  };

  private final Path file;
  private final Connection connection;
  private int depth;

  /** Opens or makes it. */
  Store(Path folder) {
    file = folder.resolve("trainer.db");
    try {
      Files.createDirectories(folder);
      connection = DriverManager.getConnection("jdbc:sqlite:" + file);
      // One trainer for a file: the lock is held for as long as the process lives.
      for (String pragma : List.of("locking_mode=EXCLUSIVE", "journal_mode=WAL", "synchronous=FULL",
          "secure_delete=ON")) {
        try (Statement statement = connection.createStatement()) {
          statement.execute("PRAGMA " + pragma);
        }
      }
      int format = one("PRAGMA user_version", row -> row.getInt(1)).orElse(0);
      if (format > FORMAT) {
        throw new Failure(file + " was written by a newer release (format " + format + ", this one reads " + FORMAT
            + "): use that, or another --data", null);
      }
      transaction(() -> {
        for (String table : SCHEMA) {
          run(table);
        }
        run("PRAGMA user_version=" + FORMAT);
        return null;
      });
    } catch (IOException | SQLException error) {
      throw failure(error);
    }
  }

  /** Does something all or nothing; calls within belong to it. */
  synchronized <T> T transaction(Supplier<T> work) {
    if (depth > 0) {
      return work.get();
    }
    depth++;
    boolean done = false;
    try {
      execute("BEGIN IMMEDIATE");
      T result = work.get();
      execute("COMMIT");
      done = true;
      return result;
    } finally {
      depth--;
      if (!done) {
        try {
          execute("ROLLBACK");
        } catch (Failure nothingToRollBack) {
          done = false; // BEGIN failed, or SQLite has rolled back by itself
        }
      }
    }
  }

  /** Runs a statement; the number of rows that it changed. */
  synchronized int run(String sql, Object... values) {
    try (PreparedStatement statement = prepare(sql, values)) {
      statement.execute();
      return Math.max(0, statement.getUpdateCount());
    } catch (SQLException error) {
      throw failure(error);
    }
  }

  synchronized <T> List<T> query(String sql, Row<T> read, Object... values) {
    try (PreparedStatement statement = prepare(sql, values); ResultSet rows = statement.executeQuery()) {
      List<T> found = new ArrayList<>();
      while (rows.next()) {
        found.add(read.read(rows));
      }
      return found;
    } catch (SQLException error) {
      throw failure(error);
    }
  }

  <T> Optional<T> one(String sql, Row<T> read, Object... values) {
    return query(sql, read, values).stream().findFirst();
  }

  /** A single value. */
  Optional<String> get(String name) {
    return one("SELECT value FROM state WHERE name = ?", row -> row.getString(1), name);
  }

  void set(String name, Object value) {
    run("INSERT OR REPLACE INTO state VALUES (?, ?)", name, value.toString());
  }

  long number(String name) {
    return get(name).map(Long::parseLong).orElse(0L);
  }

  /** Counts something that is told in the status. */
  void count(String name, long by) {
    set(name, number(name) + by);
  }

  private void execute(String sql) {
    try (Statement statement = connection.createStatement()) {
      statement.execute(sql);
    } catch (SQLException error) {
      throw failure(error);
    }
  }

  private PreparedStatement prepare(String sql, Object[] values) throws SQLException {
    PreparedStatement statement = connection.prepareStatement(sql);
    for (int i = 0; i < values.length; i++) {
      statement.setObject(i + 1, values[i]);
    }
    return statement;
  }

  private Failure failure(Exception error) {
    return new Failure(file + " can't be used: " + error.getMessage()
        + (String.valueOf(error.getMessage()).contains("locked") ? "; another trainer has it open" : ""), error);
  }

  @Override
  public synchronized void close() {
    try {
      connection.close();
    } catch (SQLException error) {
      throw failure(error);
    }
  }
}
