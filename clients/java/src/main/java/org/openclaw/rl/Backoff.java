package org.openclaw.rl;

import java.time.Duration;
import java.util.concurrent.ThreadLocalRandom;

/** Pauses that grow from 0.1 to 5 s, each a little different from its neighbours'. */
final class Backoff {
  private static final long FIRST_MS = 100;
  private static final long LONGEST_MS = 5_000;
  private long next = FIRST_MS;

  Duration next() {
    long pause = next;
    next = Math.min(LONGEST_MS, next * 2);
    return Duration.ofMillis(pause + ThreadLocalRandom.current().nextLong(FIRST_MS));
  }

  void reset() {
    next = FIRST_MS;
  }
}
