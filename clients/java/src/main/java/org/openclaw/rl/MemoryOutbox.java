package org.openclaw.rl;

import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentSkipListMap;
import org.openclaw.rl.v1.Ack;

/**
 * An outbox in memory, of limited size: whoever adds to a full one waits.
 *
 * @param <M> a message
 */
public final class MemoryOutbox<M> implements Outbox<M> {
  private final int capacity;
  private final Map<String, Long> places = new HashMap<>();
  private final ConcurrentSkipListMap<Long, Entry<M>> entries = new ConcurrentSkipListMap<>();
  private long last;

  /** For 10,000 messages. */
  public MemoryOutbox() {
    this(10_000);
  }

  /** For so many messages. */
  public MemoryOutbox(int capacity) {
    if (capacity < 1) {
      throw new IllegalArgumentException("capacity: " + capacity + " is not allowed: must be 1 or more");
    }
    this.capacity = capacity;
  }

  @Override
  public synchronized void add(String id, M message) {
    try {
      while (places.size() >= capacity && !places.containsKey(id)) {
        wait();
      }
    } catch (InterruptedException interrupted) {
      Thread.currentThread().interrupt();
      throw new IllegalStateException("interrupted while the outbox was full (" + capacity + " messages)", interrupted);
    }
    if (places.putIfAbsent(id, last + 1) == null) {
      last++;
      entries.put(last, new Entry<>(last, id, message));
    }
  }

  @Override
  public List<Entry<M>> after(long number, int limit) {
    return entries.tailMap(number, false).values().stream().limit(limit).toList();
  }

  @Override
  public synchronized void settle(Ack ack) {
    Long place = places.remove(ack.getId());
    if (place != null) {
      entries.remove(place);
      notifyAll();
    }
  }

  @Override
  public synchronized long pending() {
    return places.size();
  }
}
