package org.openclaw.rl;

import java.time.Duration;
import java.util.Optional;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.openclaw.rl.v1.AcquireRequest;
import org.openclaw.rl.v1.AcquireResponse;
import org.openclaw.rl.v1.EnvironmentServiceGrpc;
import org.openclaw.rl.v1.EvaluateRequest;
import org.openclaw.rl.v1.EvaluateResponse;
import org.openclaw.rl.v1.ReleaseRequest;
import org.openclaw.rl.v1.RenewRequest;
import org.openclaw.rl.v1.ResetRequest;
import org.openclaw.rl.v1.ResetResponse;
import org.openclaw.rl.v1.StepRequest;
import org.openclaw.rl.v1.StepResponse;

/** A leased sandbox: renewed by itself until it is closed, which gives it back. For one thread. */
public final class Lease implements AutoCloseable {
  /** Shortest pause between two renewals. */
  private static final Duration SHORTEST = Duration.ofMillis(200);

  private final Connection connection;
  private final AcquireResponse acquired;
  private final CountDownLatch closed = new CountDownLatch(1);
  private volatile MeshException problem;
  private long step;

  private Lease(Connection connection, AcquireResponse acquired, Duration pause) {
    this.connection = connection;
    this.acquired = acquired;
    Thread renewer = new Thread(() -> renew(pause), "lease " + acquired.getLeaseId());
    renewer.setDaemon(true);
    renewer.start();
  }

  static Lease acquire(Connection connection, AcquireRequest request) {
    Connection patient = request.hasWait() && connection.options().deadline() != null // the wait comes on top
        ? connection.withDeadline(connection.options().deadline().plusSeconds(request.getWait().getSeconds() + 1))
        : connection;
    // A third of its time, so that two renewals may fail.
    Duration third = Durations.toDuration(request.getTtl()).dividedBy(3);
    return new Lease(connection, patient.unary(EnvironmentServiceGrpc.getAcquireMethod(), request),
        third.compareTo(SHORTEST) < 0 ? SHORTEST : third);
  }

  /** Its id. */
  public String id() {
    return acquired.getLeaseId();
  }

  /** What is leased: schemas and sandbox. */
  public AcquireResponse acquired() {
    return acquired;
  }

  /** Why it could not be renewed; it is lost then. */
  public Optional<MeshException> problem() {
    return Optional.ofNullable(problem);
  }

  /** Puts the sandbox into a task's initial state; an empty id is no task. */
  public ResetResponse reset(String taskId) {
    return reset(ResetRequest.newBuilder().setTaskId(taskId).build());
  }

  /** The same with more said. */
  public ResetResponse reset(ResetRequest request) {
    ResetResponse response = connection.unary(
        EnvironmentServiceGrpc.getResetMethod(), request.toBuilder().setLeaseId(id()).build());
    step = 0;
    return response;
  }

  /**
   * Does an action, a JSON object with name and arguments. When the call fails on its way it may be repeated: the step
   * keeps its number, and the server doesn't do it twice.
   */
  public StepResponse step(String actionJson) {
    return step(StepRequest.newBuilder().setActionJson(actionJson).build());
  }

  /** The same with more said. */
  public StepResponse step(StepRequest request) {
    StepResponse response = connection.unary(
        EnvironmentServiceGrpc.getStepMethod(), request.toBuilder().setLeaseId(id()).setStep(step + 1).build());
    step++;
    return response;
  }

  /** Runs the task's check. */
  public EvaluateResponse evaluate() {
    return connection.unary(
        EnvironmentServiceGrpc.getEvaluateMethod(), EvaluateRequest.newBuilder().setLeaseId(id()).build());
  }

  /** Gives it back; any number of times. */
  @Override
  public void close() {
    closed.countDown();
    connection.unary(EnvironmentServiceGrpc.getReleaseMethod(), ReleaseRequest.newBuilder().setLeaseId(id()).build());
  }

  private void renew(Duration pause) {
    try {
      while (!closed.await(pause.toMillis(), TimeUnit.MILLISECONDS)) {
        try {
          connection.unary(
              EnvironmentServiceGrpc.getRenewMethod(), RenewRequest.newBuilder().setLeaseId(id()).build());
          problem = null;
        } catch (MeshException error) {
          problem = error;
          if (!error.retryable()) {
            return;
          }
        }
      }
    } catch (InterruptedException interrupted) {
      Thread.currentThread().interrupt();
    }
  }
}
