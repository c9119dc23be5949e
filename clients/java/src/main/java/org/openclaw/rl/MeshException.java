package org.openclaw.rl;

import com.google.protobuf.Any;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.rpc.BadRequest;
import com.google.rpc.ErrorInfo;
import com.google.rpc.RetryInfo;
import io.grpc.Status;
import io.grpc.protobuf.StatusProto;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;

/** What went wrong with a call, with everything that the server said of it. */
public final class MeshException extends RuntimeException {
  private static final long serialVersionUID = 1L;

  /**
   * A bad field of a request.
   *
   * @param field its path, such as "turn.min_version"
   * @param description what is wrong with it and what is allowed
   */
  public record Violation(String field, String description) {}

  private final Status.Code code;
  private final String reason;
  private final transient List<Violation> violations;
  private final Duration retryAfter;
  private final transient Map<String, String> metadata;
  private final boolean hopeless;

  private MeshException(
      Status.Code code, String reason, String message, Details details, boolean hopeless, Throwable cause) {
    super(message, cause);
    this.code = code;
    this.reason = reason;
    this.violations = List.copyOf(details.violations);
    this.retryAfter = details.retryAfter;
    this.metadata = Map.copyOf(details.metadata);
    this.hopeless = hopeless;
  }

  /**
   * An error of this side.
   *
   * @param code the gRPC status code that fits
   * @param reason a word for programs, in capitals
   * @param message what is wrong and what to do
   */
  public MeshException(Status.Code code, String reason, String message) {
    this(code, reason, message, new Details(), false, null);
  }

  /** The status code. */
  public Status.Code code() {
    return code;
  }

  /** Why, as one word of the mesh's catalogue such as "VERSION_UNKNOWN"; the code's name when the server gave none. */
  public String reason() {
    return reason;
  }

  /** The bad fields of the request; empty when that isn't the trouble. */
  public List<Violation> violations() {
    return violations == null ? List.of() : violations; // null after deserialization
  }

  /** After how long a repeated call makes sense, when the server said so. */
  public Optional<Duration> retryAfter() {
    return Optional.ofNullable(retryAfter);
  }

  /** Whether the same call may succeed later. */
  public boolean retryable() {
    return !hopeless && (retryAfter != null || code == Status.Code.UNAVAILABLE || code == Status.Code.ABORTED);
  }

  /** More, by name. */
  public Map<String, String> metadata() {
    return metadata == null ? Map.of() : metadata;
  }

  @Override
  public String toString() {
    String name = reason.equals(code.name()) ? reason : code + " (" + reason + ")";
    return name
        + ": "
        + getMessage()
        + (retryAfter == null ? "" : "; repeat the call after " + retryAfter.toMillis() / 1000.0 + " s");
  }

  /**
   * The error of a call that failed.
   *
   * @param error as gRPC threw it
   * @param address HOST:PORT that was called
   * @param method full name of the RPC
   */
  static MeshException of(Throwable error, String address, String method) {
    if (error instanceof MeshException known) {
      return known;
    }
    Status status = Status.fromThrowable(error);
    com.google.rpc.Status rich = StatusProto.fromThrowable(error);
    if (rich != null && rich.getDetailsCount() > 0) {
      Details details = Details.read(rich);
      if (!details.reason.isEmpty()) {
        return new MeshException(status.getCode(), details.reason, rich.getMessage(), details, false, error);
      }
    }
    Diagnosis diagnosis = Diagnosis.of(status, address, method);
    return new MeshException(
        status.getCode(), status.getCode().name(), diagnosis.message(), new Details(), diagnosis.hopeless(), error);
  }

  private static final class Details {
    String reason = "";
    Map<String, String> metadata = Map.of();
    List<Violation> violations = new ArrayList<>();
    Duration retryAfter;

    static Details read(com.google.rpc.Status status) {
      Details found = new Details();
      for (Any detail : status.getDetailsList()) {
        try {
          if (detail.is(ErrorInfo.class)) {
            ErrorInfo info = detail.unpack(ErrorInfo.class);
            found.reason = info.getReason();
            found.metadata = info.getMetadataMap();
          } else if (detail.is(BadRequest.class)) {
            for (BadRequest.FieldViolation bad : detail.unpack(BadRequest.class).getFieldViolationsList()) {
              found.violations.add(new Violation(bad.getField(), bad.getDescription()));
            }
          } else if (detail.is(RetryInfo.class)) {
            com.google.protobuf.Duration delay = detail.unpack(RetryInfo.class).getRetryDelay();
            found.retryAfter = Duration.ofSeconds(delay.getSeconds(), delay.getNanos());
          }
        } catch (InvalidProtocolBufferException damaged) {
          continue; // the code and the message are there all the same
        }
      }
      return found;
    }
  }
}
