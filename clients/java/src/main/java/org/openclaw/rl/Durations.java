package org.openclaw.rl;

import java.time.Duration;

/** Between protobuf's times and Java's. */
final class Durations {
  private Durations() {}

  static com.google.protobuf.Duration toProto(Duration value) {
    return com.google.protobuf.Duration.newBuilder()
        .setSeconds(value.getSeconds())
        .setNanos(value.getNano())
        .build();
  }

  static Duration toDuration(com.google.protobuf.Duration value) {
    return Duration.ofSeconds(value.getSeconds(), value.getNanos());
  }
}
