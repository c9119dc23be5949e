package org.openclaw.rl;

import io.grpc.Status;
import java.time.Duration;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;

/** A watch that begins anew when it breaks, until it is closed or fails for good. */
final class Reconnecting<T> implements Responses.Source<T> {
  private final Supplier<Responses.Source<T>> open;
  private final Backoff backoff = new Backoff();
  private final CountDownLatch closed = new CountDownLatch(1);
  private volatile Responses.Source<T> current;

  Reconnecting(Supplier<Responses.Source<T>> open) {
    this.open = open;
    this.current = open.get(); // now, so that it tells of what the caller does next
  }

  @Override
  public T next() {
    while (closed.getCount() > 0) {
      Duration pause = null;
      try {
        if (current == null) {
          current = open.get();
          if (closed.getCount() == 0) { // closed meanwhile, when there was nothing to cancel
            current.close();
          }
        }
        T next = current.next();
        if (next != null) {
          backoff.reset();
          return next;
        }
      } catch (MeshException error) {
        boolean interrupted = Thread.currentThread().isInterrupted();
        if (interrupted || !(error.retryable() || error.code() == Status.Code.CANCELLED)) {
          throw error;
        }
        pause = error.retryAfter().orElse(null);
      }
      current = null;
      rest(pause == null ? backoff.next() : pause);
    }
    return null;
  }

  private void rest(Duration pause) {
    try {
      closed.await(pause.toMillis(), TimeUnit.MILLISECONDS);
    } catch (InterruptedException interrupted) {
      Thread.currentThread().interrupt();
      throw new MeshException(Status.Code.CANCELLED, "CANCELLED", "the thread that waited was interrupted");
    }
  }

  @Override
  public void close() {
    closed.countDown();
    Responses.Source<T> running = current;
    if (running != null) {
      running.close();
    }
  }
}
