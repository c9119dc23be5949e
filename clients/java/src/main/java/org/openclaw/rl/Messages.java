package org.openclaw.rl;

import org.openclaw.rl.v1.ChatMessage;

/** Messages of a conversation in a word. */
public final class Messages {
  private Messages() {}

  /** What a user says. */
  public static ChatMessage user(String content) {
    return of("user", content);
  }

  /** What the policy is told beforehand. */
  public static ChatMessage system(String content) {
    return of("system", content);
  }

  /** What the policy answered before. */
  public static ChatMessage assistant(String content) {
    return of("assistant", content);
  }

  /** The result of a call that the policy made. */
  public static ChatMessage tool(String callId, String content) {
    return of("tool", content).toBuilder().setToolCallId(callId).build();
  }

  private static ChatMessage of(String role, String content) {
    return ChatMessage.newBuilder().setRole(role).setContent(content).build();
  }
}
