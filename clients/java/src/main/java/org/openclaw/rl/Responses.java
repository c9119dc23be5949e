package org.openclaw.rl;

import java.util.Iterator;
import java.util.NoSuchElementException;
import java.util.Spliterator;
import java.util.Spliterators;
import java.util.stream.Stream;
import java.util.stream.StreamSupport;

/**
 * The answers of a stream, as they come. To be read by one thread and once; any thread may close it, which cancels the
 * call at the server and ends the iteration. Reading throws {@link MeshException}.
 *
 * @param <T> an answer
 */
public final class Responses<T> implements Iterator<T>, Iterable<T>, AutoCloseable {

  /** Where they come from. */
  interface Source<T> {
    /** The next one; null at the end. */
    T next();

    void close();
  }

  private final Source<T> source;
  private volatile boolean closed;
  private boolean ended;
  private T next;

  Responses(Source<T> source) {
    this.source = source;
  }

  /** Waits for the next answer; false when there is none. */
  @Override
  public boolean hasNext() {
    if (next == null && !ended && !closed) {
      try {
        next = source.next();
      } catch (MeshException error) {
        ended = true;
        if (!closed) {
          throw error;
        }
      }
      ended = next == null;
    }
    return next != null;
  }

  @Override
  public T next() {
    if (!hasNext()) {
      throw new NoSuchElementException();
    }
    T given = next;
    next = null;
    return given;
  }

  /** Itself: for a for loop. */
  @Override
  public Iterator<T> iterator() {
    return this;
  }

  /** As a stream; closing that closes this. */
  public Stream<T> stream() {
    return StreamSupport.stream(
            Spliterators.spliteratorUnknownSize(this, Spliterator.ORDERED | Spliterator.NONNULL), false)
        .onClose(this::close);
  }

  @Override
  public void close() {
    closed = true;
    source.close();
  }
}
