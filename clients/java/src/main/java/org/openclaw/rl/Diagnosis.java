package org.openclaw.rl;

import io.grpc.Status;
import java.net.ConnectException;
import java.net.UnknownHostException;
import java.util.Locale;

/**
 * A sentence on an error that gRPC itself made, for somebody who can do something about it.
 *
 * @param message what is wrong and what to do
 * @param hopeless the same call fails again however often it is repeated
 */
record Diagnosis(String message, boolean hopeless) {

  static Diagnosis of(Status status, String address, String method) {
    String said = status.getDescription() == null ? status.getCode().name() : status.getDescription();
    return switch (status.getCode()) {
      case UNAVAILABLE -> connection(status, said, address,
          new Diagnosis(address + " can't be reached, or went away: " + said, false));
      case INTERNAL, UNKNOWN -> connection(status, said, address, new Diagnosis(said, false));
      case UNIMPLEMENTED -> new Diagnosis(
          address + " does not serve " + method + " (" + said + "): is another component there, or an older release? "
              + "check() tells; `openclaw-rl status` lists the addresses",
          true);
      case DEADLINE_EXCEEDED -> new Diagnosis(
          method + " at " + address + " did not end in time (" + said + "); withDeadline() gives it longer", false);
      case CANCELLED -> new Diagnosis(method + " at " + address + " was cancelled (" + said + ")", false);
      case RESOURCE_EXHAUSTED -> said.contains("exceeds maximum size") || said.contains("too large")
          ? new Diagnosis(
              "a message of " + method + " at " + address + " is too large (" + said
                  + "); the mesh's limit is 16 MB, Options.maxMessageBytes that of this client",
              true)
          : new Diagnosis(said, false);
      default -> new Diagnosis(said, false);
    };
  }

  private static Diagnosis connection(Status status, String said, String address, Diagnosis otherwise) {
    StringBuilder all = new StringBuilder(said);
    for (Throwable cause = status.getCause(); cause != null; cause = cause.getCause()) {
      all.append(" | ").append(cause);
      if (cause instanceof ConnectException) {
        return new Diagnosis(
            "nothing listens at " + address + "; `openclaw-rl status` tells what runs, `openclaw-rl local-start` "
                + "starts a mesh",
            false);
      }
      if (cause instanceof UnknownHostException) {
        return new Diagnosis("there is no host of that name: " + address, false);
      }
    }
    String text = all.toString();
    String lower = text.toLowerCase(Locale.ROOT);
    if (text.contains("first 5 bytes: 485454502f") || text.contains("first 5 bytes: 3c")) {
      return new Diagnosis(
          address + " speaks HTTP/1, not gRPC: take the component's gRPC port (the policy server has 50051 beside its "
              + "HTTP door 30000)",
          true);
    }
    if (text.contains("first 5 bytes: 1503") || text.contains("first 5 bytes: 1603")) {
      return new Diagnosis(
          address + " speaks TLS and this client plain text: give Options.withTls() the folder of certificates", true);
    }
    if (lower.contains("not an ssl/tls record") || lower.contains("wrong_version_number")) {
      return new Diagnosis(address + " speaks plain text and this client TLS: leave Options.withTls() out", true);
    }
    if (lower.contains("certificate_required") || lower.contains("certificate required")
        || lower.contains("bad_certificate") || lower.contains("bad certificate")) {
      return new Diagnosis(
          address + " wants a certificate of the mesh and got none that it takes: give Options.withTls() one of its CA",
          true);
    }
    if (lower.contains("certificateexception") || lower.contains("certification path")
        || lower.contains("sslhandshakeexception")) {
      return new Diagnosis(
          "the certificate of " + address + " can't be trusted (" + innermost(status.getCause()) + "): it is of "
              + "another CA, out of date, or another component's; compare `openclaw-rl certs show` on both sides",
          true);
    }
    if (lower.contains("network closed for unknown reason") || lower.contains("connection reset")) {
      return new Diagnosis(
          address + " closed the connection at once. If it speaks TLS, this client has no certificate, or none that it "
              + "takes: see Options.withTls() and compare `openclaw-rl certs show` on both sides",
          false);
    }
    return otherwise;
  }

  private static String innermost(Throwable error) {
    Throwable at = error;
    while (at != null && at.getCause() != null) {
      at = at.getCause();
    }
    return at == null ? "no reason given" : String.valueOf(at.getMessage());
  }
}
