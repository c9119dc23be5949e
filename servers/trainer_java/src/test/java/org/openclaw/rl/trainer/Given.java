package org.openclaw.rl.trainer;

import java.time.Duration;
import org.openclaw.rl.v1.Sample;
import org.openclaw.rl.v1.TurnClass;

/** Samples of tests. */
final class Given {
  /** The mesh of the tests. */
  static final String OURS = "mesh-a";

  private Given() {}

  static Sample sample(String turnId, int score, String hint) {
    Sample.Builder sample = Sample.newBuilder();
    sample.getTransitionBuilder().getTurnBuilder().setTurnId(turnId).setSessionId("s-" + turnId)
        .setTurnClass(TurnClass.TURN_CLASS_MAIN).setMeshId(OURS);
    sample.getJudgementBuilder().setTurnId(turnId).setScore(score).setHint(hint);
    return sample.build();
  }

  static Sample complaint(String turnId, String comment) {
    Sample.Builder sample = sample(turnId, -1, "").toBuilder();
    sample.getTransitionBuilder().getNextStateBuilder().addFeedbackBuilder().setScore(-1).setComment(comment);
    return sample.build();
  }

  /** One that a version answered. */
  static Sample under(long version, String turnId, int score) {
    Sample.Builder sample = sample(turnId, score, "").toBuilder();
    sample.getTransitionBuilder().getTurnBuilder().setPolicyVersion(version);
    return sample.build();
  }

  static void until(String what, java.util.function.BooleanSupplier condition) throws InterruptedException {
    long end = System.nanoTime() + Duration.ofSeconds(30).toNanos();
    while (!condition.getAsBoolean()) {
      if (System.nanoTime() > end) {
        throw new AssertionError("not within 30 s: " + what);
      }
      Thread.sleep(5);
    }
  }
}
