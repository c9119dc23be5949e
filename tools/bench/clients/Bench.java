import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.openclaw.rl.Options;
import org.openclaw.rl.PolicyClient;
import org.openclaw.rl.v1.ChatMessage;
import org.openclaw.rl.v1.ChatRequest;

/** java Bench.java ADDRESS SECONDS CALLERS STREAMS: see ../clients.py. */
class Bench {
  public static void main(String[] arguments) throws Exception {
    double seconds = Double.parseDouble(arguments[1]);
    int callers = Integer.parseInt(arguments[2]);
    int streams = Integer.parseInt(arguments[3]);
    List<Integer> ids = Collections.nCopies(16, 0);
    ChatRequest hi =
        ChatRequest.newBuilder()
            .addMessages(ChatMessage.newBuilder().setRole("user").setContent("hi"))
            .build();
    try (PolicyClient policy = PolicyClient.open(Options.at(arguments[0]))) {
      Callable<Long> call =
          () -> {
            policy.score(ids);
            return 1L;
          };
      Callable<Long> chat =
          () -> {
            long deltas = 0;
            try (var answer = policy.chat(hi)) {
              for (var event : answer) {
                deltas += event.hasDelta() ? 1 : 0;
              }
            }
            return deltas;
          };
      during(1, callers, call);
      during(1, streams, chat);
      double[] calls = during(seconds, callers, call);
      double[] deltas = during(seconds, streams, chat);
      System.out.printf(
          java.util.Locale.ROOT,
          "{\"calls\": %.0f, \"call_seconds\": %g, \"deltas\": %.0f, \"delta_seconds\": %g}%n",
          calls[0], calls[1], deltas[0], deltas[1]);
    }
    System.exit(0);
  }

  /** Does work in so many threads until the time is over; how much of it was done, and how long it took. */
  private static double[] during(double seconds, int workers, Callable<Long> work)
      throws Exception {
    var pool = Executors.newFixedThreadPool(workers);
    long began = System.nanoTime();
    List<Future<Long>> loops = new ArrayList<>();
    for (int i = 0; i < workers; i++) {
      loops.add(
          pool.submit(
              () -> {
                long done = 0;
                while (System.nanoTime() - began < seconds * 1e9) {
                  done += work.call();
                }
                return done;
              }));
    }
    long done = 0;
    for (var loop : loops) {
      done += loop.get();
    }
    pool.shutdown();
    return new double[] {done, (System.nanoTime() - began) / 1e9};
  }
}
