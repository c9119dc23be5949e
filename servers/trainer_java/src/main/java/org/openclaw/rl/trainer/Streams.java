package org.openclaw.rl.trainer;

import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.stub.ServerCallStreamObserver;
import io.grpc.stub.StreamObserver;
import java.util.ArrayDeque;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;

/** The open streams of this server: answers from any thread, to slow readers too, and one end for all. */
final class Streams {
  /** Answers that a slow reader may have waiting. */
  private static final int MOST_WAITING = 1_000;

  /** One stream of answers. Any thread. */
  static final class Stream<A> {
    private final ServerCallStreamObserver<A> observer;
    private final ArrayDeque<A> waiting = new ArrayDeque<>();
    private boolean over;

    private Stream(ServerCallStreamObserver<A> observer) {
      this.observer = observer;
    }

    synchronized void send(A answer) {
      if (over) {
        return;
      }
      waiting.add(answer);
      if (waiting.size() > MOST_WAITING) {
        end(Errors.of(Status.Code.RESOURCE_EXHAUSTED, "RESOURCE_EXHAUSTED",
            MOST_WAITING + " answers wait to be read; open the stream again and read faster"));
      } else {
        flush();
      }
    }

    /** Whether the reader keeps up. */
    synchronized boolean ready() {
      return !over && observer.isReady();
    }

    /** Whether nobody listens any more. */
    synchronized boolean over() {
      return over;
    }

    private synchronized void flush() {
      while (!over && observer.isReady() && !waiting.isEmpty()) {
        observer.onNext(waiting.poll());
      }
    }

    synchronized void end(StatusRuntimeException error) {
      if (!over) {
        over = true;
        observer.onError(error);
      }
    }

    /** After all that waits. */
    synchronized void complete() {
      if (!over) {
        over = true;
        waiting.forEach(observer::onNext);
        observer.onCompleted();
      }
    }

    private synchronized void cancelled() {
      over = true;
    }
  }

  private final Set<Stream<?>> open = ConcurrentHashMap.newKeySet();
  private volatile StatusRuntimeException ended;

  /** Takes a stream in. Call it on the call's own thread, before the handler returns. */
  <A> Stream<A> add(StreamObserver<A> observer, Runnable onReady) {
    ServerCallStreamObserver<A> call = (ServerCallStreamObserver<A>) observer;
    Stream<A> stream = new Stream<>(call);
    call.setOnReadyHandler(() -> {
      stream.flush();
      onReady.run();
    });
    call.setOnCancelHandler(() -> {
      stream.cancelled();
      open.remove(stream);
    });
    call.setOnCloseHandler(() -> open.remove(stream));
    open.add(stream);
    if (ended != null) {
      stream.end(ended);
    }
    return stream;
  }

  /** Number of open ones. */
  int count() {
    return open.size();
  }

  /** Ends all, and all that come. */
  void end(StatusRuntimeException error) {
    ended = error;
    open.forEach(stream -> stream.end(error));
    open.clear();
  }
}
