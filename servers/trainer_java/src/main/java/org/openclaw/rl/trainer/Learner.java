package org.openclaw.rl.trainer;

import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.LongFunction;
import org.openclaw.rl.v1.Feedback;
import org.openclaw.rl.v1.Judgement;
import org.openclaw.rl.v1.Playbook;
import org.openclaw.rl.v1.PlaybookEntry;
import org.openclaw.rl.v1.Sample;
import org.openclaw.rl.v1.Turn;

/** From judged turns to the next playbook. Knows nothing of gRPC or files. */
final class Learner {
  private static final int KEEP_TURNS = 64;

  /**
   * Bounds.
   *
   * @param maxEntries instructions
   * @param maxCharacters of all instructions together
   * @param minUses judged turns under an instruction before it can be found not to help
   * @param minScore an instruction under which turns score less than this on the mean goes
   */
  record Limits(int maxEntries, int maxCharacters, int minUses, double minScore) {}

  /** A new playbook, and what was done to make it. */
  record Result(Playbook playbook, Map<String, Double> metrics) {}

  private final Limits limits;

  Learner(Limits limits) {
    this.limits = limits;
  }

  /** What a sample asks for, as instructions: the judge's hint, else what the user complained of. */
  static List<String> wishes(Sample sample) {
    Judgement judgement = sample.getJudgement();
    List<String> texts = new ArrayList<>();
    if (!judgement.getHint().isBlank()) {
      texts.add(judgement.getHint());
    } else if (judgement.getScore() < 0) {
      for (Feedback feedback : sample.getTransition().getNextState().getFeedbackList()) {
        texts.add(feedback.getComment());
      }
    }
    return texts.stream().flatMap(text -> Rules.clean(text).stream()).toList();
  }

  /** The version that answered a turn; -1 when several did. */
  static long answeredBy(Turn turn) {
    Set<Long> versions = new HashSet<>();
    turn.getTokens().getSpansList().forEach(span -> versions.add(span.getVersion()));
    if (versions.isEmpty()) {
      versions.add(turn.getPolicyVersion());
    }
    return versions.size() == 1 ? versions.iterator().next() : -1;
  }

  /**
   * One step.
   *
   * @param before the playbook that it starts from
   * @param samples what it learns from, oldest first
   * @param of the playbook of a version
   * @param version the number that the new one will have
   */
  Result step(Playbook before, List<Sample> samples, LongFunction<Playbook> of, long version) {
    Map<String, PlaybookEntry.Builder> entries = new LinkedHashMap<>();
    before.getEntriesList().forEach(entry -> entries.put(entry.getId(), entry.toBuilder()));
    entries.values().forEach(this::fade);
    double sum = 0;
    for (Sample sample : samples) {
      sum += sample.getJudgement().getScore();
      use(entries, sample, of);
    }
    int there = entries.size();
    entries.values().removeIf(this::bad);
    int dropped = there - entries.size();
    int added = 0;
    int merged = 0;
    Set<String> fresh = new HashSet<>();
    for (Sample sample : samples) {
      String turnId = sample.getTransition().getTurn().getTurnId();
      for (String wish : wishes(sample)) {
        PlaybookEntry.Builder entry =
            entries.values().stream().filter(e -> Rules.alike(e.getText(), wish)).findFirst().orElse(null);
        if (entry == null) {
          entry = PlaybookEntry.newBuilder().setId("i" + version + "." + ++added).setText(wish).setAddedIn(version);
          entries.put(entry.getId(), entry);
        } else {
          merged++;
        }
        remember(entry, turnId);
        fresh.add(entry.getId());
      }
    }
    dropped += bound(entries, fresh);
    Playbook.Builder made = Playbook.newBuilder();
    entries.values().forEach(entry -> made.addEntries(entry.build()));
    return new Result(made.build(), Map.of("entries", (double) entries.size(), "added", (double) added,
        "merged", (double) merged, "dropped", (double) dropped, "samples", (double) samples.size(),
        "mean_score", sum / Math.max(1, samples.size())));
  }

  /** Counts a judged turn for the instructions that it was answered under. */
  private static void use(Map<String, PlaybookEntry.Builder> entries, Sample sample, LongFunction<Playbook> of) {
    long answered = answeredBy(sample.getTransition().getTurn());
    if (answered <= 0) {
      return;
    }
    for (PlaybookEntry under : of.apply(answered).getEntriesList()) {
      PlaybookEntry.Builder entry = entries.get(under.getId());
      if (entry != null) {
        entry.setUses(entry.getUses() + 1).setScoreSum(entry.getScoreSum() + sample.getJudgement().getScore());
      }
    }
  }

  /** Halves figures of many uses, so that an instruction that turned bad is found out by its newer turns. */
  private void fade(PlaybookEntry.Builder entry) {
    while (entry.getUses() >= 4L * limits.minUses()) {
      long uses = entry.getUses() / 2;
      entry.setUses(uses).setScoreSum(Math.max(-uses, Math.min(entry.getScoreSum() / 2, uses)));
    }
  }

  private boolean bad(PlaybookEntry.Builder entry) {
    return entry.getUses() >= limits.minUses() && mean(entry) < limits.minScore();
  }

  /** Takes out what is too much: the worst first, of equals the oldest; fresh ones only when they alone are too many. */
  private int bound(Map<String, PlaybookEntry.Builder> entries, Set<String> fresh) {
    int gone = 0;
    while (entries.size() > limits.maxEntries()
        || entries.values().stream().mapToInt(e -> e.getText().length()).sum() > limits.maxCharacters()) {
      PlaybookEntry.Builder worst = entries.values().stream().min(Comparator
          .comparing((PlaybookEntry.Builder entry) -> fresh.contains(entry.getId()))
          .thenComparing(Learner::mean).thenComparing(PlaybookEntry.Builder::getAddedIn)).orElseThrow();
      entries.remove(worst.getId());
      gone++;
    }
    return gone;
  }

  private static double mean(PlaybookEntry.Builder entry) {
    return entry.getUses() == 0 ? 0 : entry.getScoreSum() / entry.getUses();
  }

  private static void remember(PlaybookEntry.Builder entry, String turnId) {
    LinkedHashSet<String> ids = new LinkedHashSet<>(entry.getTurnIdsList());
    ids.add(turnId);
    entry.clearTurnIds();
    ids.stream().skip(Math.max(0, ids.size() - KEEP_TURNS)).forEach(entry::addTurnIds);
  }
}
