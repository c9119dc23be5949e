package org.openclaw.rl;

import java.util.List;
import org.openclaw.rl.v1.Ack;

/**
 * Messages that wait for their acknowledgement, in order. A server's is on disk and shares a transaction with what the
 * messages follow from; {@link MemoryOutbox} lasts as long as the process.
 *
 * <p>Any thread may call it.
 *
 * @param <M> a message
 */
public interface Outbox<M> {

  /**
   * A message that waits.
   *
   * @param number its place; later ones have greater numbers
   * @param id its id: of the turn, event or feedback
   * @param message it
   */
  record Entry<M>(long number, String id, M message) {}

  /** Keeps a message, unless one of its id waits already; when it returns the message is as safe as it gets here. */
  void add(String id, M message);

  /** The next messages behind a place, oldest first; 0 is before the first one. */
  List<Entry<M>> after(long number, int limit);

  /** The receiver has it, or will never take it (REJECTED, which may be set aside): it waits no longer. */
  void settle(Ack ack);

  /** Number of messages that wait. */
  long pending();
}
