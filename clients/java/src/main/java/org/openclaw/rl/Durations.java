package org.openclaw.rl;

import java.time.Duration;
import java.time.Instant;

/** Between protobuf's times and Java's. */
final class Durations {
  private Durations() {}

  static com.google.protobuf.Duration toProto(Duration value) {
    return com.google.protobuf.Duration.newBuilder()
        .setSeconds(value.getSeconds())
        .setNanos(value.getNano())
        .build();
  }

  static Instant toInstant(com.google.protobuf.Timestamp value) {
    return Instant.ofEpochSecond(value.getSeconds(), value.getNanos());
  }
}
