package org.openclaw.rl.trainer;

import java.util.Arrays;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.regex.Pattern;
import java.util.stream.Collectors;

/** Which texts of users may become instructions, and which say the same. */
final class Rules {
  private static final int SHORTEST = 8;
  private static final int LONGEST = 240;
  private static final int FLAGS = Pattern.CASE_INSENSITIVE | Pattern.UNICODE_CASE | Pattern.MULTILINE;

  /** What an instruction never has: it would be of one user's conversation, or reach beyond a way to answer. */
  private static final List<Pattern> FORBIDDEN = List.of(
      // addresses, paths, numbers, ids, secrets
      Pattern.compile("https?:|www\\.|\\b[\\w-]+\\.(?:com|net|org|io|cn|de|dev|ai|app|gov|edu)\\b|\\S@\\S", FLAGS),
      Pattern.compile("(?:^|\\s)(?:~|\\.{1,2})?/\\w[\\w.-]*/|[A-Za-z]:\\\\|\\b\\d{1,3}(?:\\.\\d{1,3}){3}\\b", FLAGS),
      Pattern.compile("\\d[\\d\\s().+-]{5,}\\d|\\b(?=\\w*\\d)(?=\\w*[A-Za-z])[\\w-]{12,}|[A-Za-z0-9+/]{32,}", FLAGS),
      Pattern.compile("\\b(?:password|passphrase|secret key|api[ _-]?key|access token|bearer)\\b|密码|口令|密钥", FLAGS),
      // the form of a prompt, instructions about instructions, calls to act
      Pattern.compile("<\\|?/?[\\w ]+\\|?>|\\[/?(?:INST|SYS)]|^\\s*(?:system|assistant|user|developer)\\s*:|[{}`]",
          FLAGS),
      Pattern.compile("\\b(?:ignore|disregard|forget|override|bypass|reveal|repeat|print|leak)\\b.{0,40}"
          + "\\b(?:instruction|prompt|rule|guideline|polic|safety|previous|above)|\\b(?:you are now|act as|pretend"
          + "|jailbreak|developer mode|system prompt)\\b|系统提示|你现在是|假装|扮演", FLAGS),
      Pattern.compile("\\b(?:send|forward|upload|transfer|pay|wire|delete|execute|download|click|visit)\\b|转账|付款|点击",
          FLAGS));

  private static final Pattern WORD = Pattern.compile("[\\u3040-\\u30ff\\u3400-\\u9fff\\uac00-\\ud7af]|[\\p{L}\\p{N}']+");
  private static final Set<String> NEGATIONS = Set.of(
      "not", "no", "never", "without", "avoid", "stop", "don't", "doesn't", "isn't", "can't", "不", "别", "勿", "没", "无");
  private static final Set<String> FILLERS = Arrays.stream(("a an the please always just only your you my me i in of to "
      + "for and with as on at be is it that this do does should must when answer answers respond reply give write keep "
      + "make user users very 请 的 地 得 了 用 您 你 回 答").split(" ")).collect(Collectors.toSet());

  private Rules() {}

  /** The text as an instruction, on one line; empty when it can't be one. */
  static Optional<String> clean(String text) {
    String line = text.replaceAll("[\\p{Cntrl}\\s]+", " ").strip()
        .replaceFirst("^(?:[-*•–]|\\d{1,2}[.)])\\s+", "").strip();
    boolean wide = line.codePoints().anyMatch(c -> c > 0x3000);
    if (line.length() < (wide ? SHORTEST / 2 : SHORTEST) || line.length() > LONGEST) {
      return Optional.empty();
    }
    return FORBIDDEN.stream().anyMatch(pattern -> pattern.matcher(line).find()) ? Optional.empty() : Optional.of(line);
  }

  /** Whether two instructions say the same: the same words but for fillers, and both forbid or both ask. */
  static boolean alike(String one, String other) {
    Map.Entry<Boolean, Set<String>> a = meaning(one);
    Map.Entry<Boolean, Set<String>> b = meaning(other);
    return a.getValue().isEmpty() ? one.equalsIgnoreCase(other) : a.equals(b);
  }

  private static Map.Entry<Boolean, Set<String>> meaning(String text) {
    Set<String> words = new LinkedHashSet<>();
    boolean forbids = false;
    for (String word : WORD.matcher(text.toLowerCase(Locale.ROOT)).results().map(r -> r.group()).toList()) {
      forbids = forbids || NEGATIONS.contains(word);
      if (!FILLERS.contains(word) && !NEGATIONS.contains(word)) {
        words.add(word);
      }
    }
    return Map.entry(forbids, words);
  }
}
