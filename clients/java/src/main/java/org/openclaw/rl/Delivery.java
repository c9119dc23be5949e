package org.openclaw.rl;

import com.google.protobuf.MessageLite;
import io.grpc.CallOptions;
import io.grpc.Status;
import io.grpc.stub.ClientCallStreamObserver;
import io.grpc.stub.ClientCalls;
import io.grpc.stub.ClientResponseObserver;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.Consumer;
import org.openclaw.rl.v1.Ack;
import org.openclaw.rl.v1.AckStatus;

/**
 * The sending end of a ring stream: carries messages until each is acknowledged by its id, over as many connections as
 * that takes. What is not acknowledged is sent again after a break, oldest first; the receiver removes duplicates.
 *
 * @param <M> a message
 */
public final class Delivery<M extends MessageLite> implements AutoCloseable {
  /** Bytes of one request, unless a single message has more. */
  private static final int REQUEST_BYTES = 1 << 20;
  /** Room for what is around a message. */
  private static final int FRAME = 1024;

  /**
   * How it is done. Immutable; each method gives a changed copy.
   *
   * @param window most messages in flight
   * @param batch most messages of one request
   * @param ackTimeout time after which a peer that doesn't answer the oldest message is given up and called anew
   * @param onProblem told of everything that breaks the stream
   */
  public record Settings(int window, int batch, Duration ackTimeout, Consumer<MeshException> onProblem) {
    /** 256 in flight, 64 in a request, 60 s for an ack. */
    public static Settings defaults() {
      return new Settings(256, 64, Duration.ofSeconds(60), problem -> {});
    }

    /** Most messages in flight. */
    public Settings withWindow(int value) {
      return new Settings(value, batch, ackTimeout, onProblem);
    }

    /** Time after which a peer that doesn't answer is given up and called anew. */
    public Settings withAckTimeout(Duration value) {
      return new Settings(window, batch, value, onProblem);
    }

    /** Tell somebody of everything that breaks the stream. It is called on the delivery's thread. */
    public Settings withOnProblem(Consumer<MeshException> value) {
      return new Settings(window, batch, ackTimeout, value);
    }
  }

  private final Settings settings;
  private final Outbox<M> outbox;
  private final Ring<M, ?, ?> ring;
  private final Map<String, CompletableFuture<Ack>> waiting = new ConcurrentHashMap<>();
  private final LinkedBlockingQueue<Runnable> events = new LinkedBlockingQueue<>(); // for the thread
  private final AtomicLong acknowledged = new AtomicLong();
  private final AtomicLong rejected = new AtomicLong();
  private final Thread thread;
  private volatile boolean closed;
  private volatile boolean connected;
  private volatile MeshException problem;

  Delivery(Settings settings, Outbox<M> outbox, Ring<M, ?, ?> ring) {
    this.settings = settings;
    this.outbox = outbox;
    this.ring = ring;
    this.thread = new Thread(this::run, "delivery " + ring.method().getBareMethodName());
    thread.setDaemon(true);
    thread.start();
  }

  /**
   * Keeps a message in the outbox and sends it.
   *
   * @param id by which the receiver acknowledges it
   * @return completes with the ack: ACCEPTED, DUPLICATE, or REJECTED with a reason
   */
  public CompletableFuture<Ack> send(String id, M message) {
    CompletableFuture<Ack> future = waiting.computeIfAbsent(id, unused -> new CompletableFuture<>());
    outbox.add(id, message);
    wake();
    return future;
  }

  /** Something was put into the outbox by another way. */
  public void wake() {
    events.offer(() -> {});
  }

  /** Waits until nothing is left in the outbox. */
  public void flush(Duration limit) throws InterruptedException, TimeoutException {
    long end = System.nanoTime() + limit.toNanos();
    while (outbox.pending() > 0) {
      if (System.nanoTime() > end) {
        throw new TimeoutException(outbox.pending() + " messages are not acknowledged"
            + (problem == null ? "" : "; the last problem: " + problem));
      }
      Thread.sleep(5);
    }
  }

  /** Messages that wait for their ack. */
  public long pending() {
    return outbox.pending();
  }

  /** Messages that the receiver has taken, duplicates included. */
  public long acknowledged() {
    return acknowledged.get();
  }

  /** Messages that the receiver will never take. */
  public long rejected() {
    return rejected.get();
  }

  /** Whether the stream is open. */
  public boolean connected() {
    return connected;
  }

  /** What broke the stream last; empty while all is well. */
  public Optional<MeshException> problem() {
    return Optional.ofNullable(problem);
  }

  /** Ends the stream. What is not acknowledged stays in the outbox. */
  @Override
  public void close() {
    closed = true;
    wake();
    try {
      thread.join(5_000);
    } catch (InterruptedException interrupted) {
      Thread.currentThread().interrupt();
    }
  }

  private void run() {
    Backoff backoff = new Backoff();
    while (!closed) {
      events.clear();
      Attempt<?, ?> attempt = new Attempt<>(ring);
      try {
        attempt.run();
      } catch (MeshException error) {
        problem = error;
        settings.onProblem().accept(error);
      } catch (InterruptedException interrupted) {
        return;
      } finally {
        connected = false;
        attempt.end();
      }
      if (attempt.progress) {
        backoff.reset();
      }
      rest(backoff.next());
    }
  }

  private void rest(Duration pause) {
    long end = System.nanoTime() + pause.toNanos();
    try {
      while (!closed && System.nanoTime() < end) { // messages that come meanwhile wake, and wait
        events.poll(end - System.nanoTime(), TimeUnit.NANOSECONDS);
      }
    } catch (InterruptedException interrupted) {
      closed = true;
    }
  }

  private void settle(Ack ack) {
    outbox.settle(ack);
    (ack.getStatus() == AckStatus.ACK_STATUS_REJECTED ? rejected : acknowledged).incrementAndGet();
    CompletableFuture<Ack> future = waiting.remove(ack.getId());
    if (future != null) {
      future.complete(ack);
    }
  }

  /** One stream, until it breaks. All but the observer's methods run on the delivery's thread. */
  private final class Attempt<Q, A> implements ClientResponseObserver<Q, A> {
    private final Ring<M, Q, A> ring;
    private final LinkedHashSet<String> inFlight = new LinkedHashSet<>(); // in the order in which they were sent
    private final LinkedHashSet<String> answered = new LinkedHashSet<>();
    private ClientCallStreamObserver<Q> call;
    private boolean progress;
    private boolean over;
    private MeshException failure;
    private long cursor;
    private long headSince;

    Attempt(Ring<M, Q, A> ring) {
      this.ring = ring;
    }

    void run() throws InterruptedException {
      CallOptions options = ring.connection().callOptions(null);
      ClientCalls.asyncBidiStreamingCall(ring.connection().channel().newCall(ring.method(), options), this);
      while (!closed) {
        fill();
        Runnable event = events.poll(patience(), TimeUnit.NANOSECONDS);
        if (event == null) {
          throw silent();
        }
        event.run();
        if (failure != null) {
          throw failure;
        }
        if (over) {
          throw new MeshException(Status.Code.UNAVAILABLE, "UNAVAILABLE",
              ring.connection().options().address() + " has ended the stream");
        }
      }
    }

    void end() {
      over = true;
      if (call != null) {
        call.cancel("the sender ended the stream", null);
      }
    }

    /** Nanoseconds for which the oldest message in flight may still wait. */
    private long patience() {
      return inFlight.isEmpty()
          ? Long.MAX_VALUE
          : Math.max(0, headSince + settings.ackTimeout().toNanos() - System.nanoTime());
    }

    private void fill() {
      while (call.isReady()) {
        int room = Math.min(settings.batch(), settings.window() - inFlight.size());
        List<Outbox.Entry<M>> entries = room > 0 ? outbox.after(cursor, room) : List.of();
        if (entries.isEmpty()) {
          return;
        }
        List<M> batch = new ArrayList<>();
        long bytes = 0;
        for (Outbox.Entry<M> entry : entries) {
          int size = entry.message().getSerializedSize();
          if (!batch.isEmpty() && bytes + size > REQUEST_BYTES) {
            break;
          }
          cursor = entry.number();
          if (size > ring.connection().options().maxMessageBytes() - FRAME) {
            settle(Ack.newBuilder().setId(entry.id()).setStatus(AckStatus.ACK_STATUS_REJECTED)
                .setReason("it was not sent: it has " + size + " bytes, more than a message of the mesh may have")
                .build());
            continue;
          }
          if (inFlight.isEmpty()) {
            headSince = System.nanoTime();
          }
          inFlight.add(entry.id());
          batch.add(entry.message());
          bytes += size;
        }
        if (!batch.isEmpty()) {
          call.onNext(ring.request().apply(batch));
        }
      }
    }

    private void take(A response) {
      if (over) { // an answer of a stream that was given up; its messages are sent again
        return;
      }
      for (Ack ack : ring.acks().apply(response)) {
        boolean known = inFlight.contains(ack.getId());
        if (!known && !answered.contains(ack.getId())) {
          throw protocol("an ack for '" + shortened(ack.getId()) + "', which was never sent on this stream");
        }
        if (ack.getStatus() == AckStatus.ACK_STATUS_UNSPECIFIED || ack.getStatus() == AckStatus.UNRECOGNIZED) {
          throw protocol("an ack for '" + shortened(ack.getId()) + "' without a status that is known here");
        }
        if (known) {
          boolean head = ack.getId().equals(inFlight.iterator().next());
          inFlight.remove(ack.getId());
          remember(ack.getId());
          if (head) {
            headSince = System.nanoTime();
          }
          progress = true;
          problem = null;
          settle(ack);
        }
      }
      call.request(1);
    }

    private void remember(String id) {
      answered.add(id);
      if (answered.size() > 4 * settings.window()) { // so long after its ack another one is a fault all the same
        answered.remove(answered.iterator().next());
      }
    }

    private MeshException protocol(String what) {
      return new MeshException(Status.Code.INTERNAL, "PROTOCOL_ERROR",
          ring.connection().options().address() + " sent " + what
              + ": it doesn't keep to the contract; nothing is lost, and the messages are sent again");
    }

    private MeshException silent() {
      return new MeshException(Status.Code.UNAVAILABLE, "NO_ACK",
          ring.connection().options().address() + " has not acknowledged '" + shortened(inFlight.iterator().next())
              + "' for " + settings.ackTimeout().toMillis() / 1000.0 + " s; it is called anew");
    }

    private static String shortened(String id) {
      return id.length() <= 80 ? id : id.substring(0, 77) + "...";
    }

    @Override
    public void beforeStart(ClientCallStreamObserver<Q> stream) {
      call = stream;
      stream.disableAutoRequestWithInitial(1);
      stream.setOnReadyHandler(() -> {
        connected |= stream.isReady();
        wake();
      });
    }

    @Override
    public void onNext(A response) {
      events.offer(() -> take(response));
    }

    @Override
    public void onError(Throwable error) {
      events.offer(() -> failure = ring.connection().failed(ring.method(), error));
    }

    @Override
    public void onCompleted() {
      events.offer(() -> over = true);
    }
  }
}
