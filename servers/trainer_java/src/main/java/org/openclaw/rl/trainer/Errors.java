package org.openclaw.rl.trainer;

import com.google.protobuf.Any;
import com.google.protobuf.Duration;
import com.google.rpc.BadRequest;
import com.google.rpc.ErrorInfo;
import com.google.rpc.RetryInfo;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.protobuf.StatusProto;
import io.grpc.stub.StreamObserver;
import java.util.Map;
import java.util.UUID;
import java.util.function.Supplier;
import java.util.logging.Level;
import java.util.logging.Logger;

/** Errors as the mesh has them: google.rpc.Status with an ErrorInfo always. */
final class Errors {
  private static final Logger LOG = Logger.getLogger(Errors.class.getName());

  private Errors() {}

  static StatusRuntimeException of(Status.Code code, String reason, String message) {
    return make(code, reason, message, Map.of()).build();
  }

  static StatusRuntimeException of(Status.Code code, String reason, String message, Map<String, String> metadata) {
    return make(code, reason, message, metadata).build();
  }

  /** A field with a value that is not allowed; {@code allowed} completes "must be ...". */
  static StatusRuntimeException invalid(String field, Object value, String allowed) {
    String text = value + " is not allowed: must be " + allowed;
    return make(Status.Code.INVALID_ARGUMENT, "INVALID_ARGUMENT", field + ": " + text, Map.of())
        .with(BadRequest.newBuilder()
            .addFieldViolations(BadRequest.FieldViolation.newBuilder().setField(field).setDescription(text)).build())
        .build();
  }

  static StatusRuntimeException notFound(String what, String id, String hint) {
    return make(Status.Code.NOT_FOUND, "NOT_FOUND", "there is no " + what + " '" + id + "'; " + hint, Map.of("id", id))
        .build();
  }

  /** It can't be done now; worth repeating after so many seconds. */
  static StatusRuntimeException unavailable(String message, int seconds) {
    return make(Status.Code.UNAVAILABLE, "UNAVAILABLE", message, Map.of())
        .with(retryAfter(seconds)).build();
  }

  private static RetryInfo retryAfter(int seconds) {
    return RetryInfo.newBuilder().setRetryDelay(Duration.newBuilder().setSeconds(seconds)).build();
  }

  static StatusRuntimeException unimplemented(String what) {
    return of(Status.Code.UNIMPLEMENTED, "UNIMPLEMENTED", what + " is not done by the trainer in Java");
  }

  /** Answers a call with one answer; whatever goes wrong becomes an error of the catalogue. */
  static <A> void answer(StreamObserver<A> observer, Supplier<A> work) {
    A answer;
    try {
      answer = work.get();
    } catch (RuntimeException error) {
      observer.onError(known(error));
      return;
    }
    observer.onNext(answer);
    observer.onCompleted();
  }

  /** An error for the caller: its own, or INTERNAL with the id under which the log has more. */
  static StatusRuntimeException known(Throwable error) {
    if (error instanceof StatusRuntimeException status) {
      return status;
    }
    if (error instanceof Store.Failure failure && failure.full) {
      return make(Status.Code.RESOURCE_EXHAUSTED, "DISK_FULL", "the trainer's disk is full (" + error.getMessage()
          + "); free some space, work goes on by itself then", Map.of()).with(retryAfter(5)).build();
    }
    String incident = UUID.randomUUID().toString();
    LOG.log(Level.SEVERE, "incident " + incident, error);
    if (error instanceof Store.Failure) {
      return make(Status.Code.INTERNAL, "STORE_UNUSABLE", error.getMessage(), Map.of("incident", incident)).build();
    }
    return make(Status.Code.INTERNAL, "INTERNAL",
        "internal error; the trainer's log has more under incident " + incident, Map.of("incident", incident)).build();
  }

  private static Builder make(Status.Code code, String reason, String message, Map<String, String> metadata) {
    return new Builder(com.google.rpc.Status.newBuilder().setCode(code.value()).setMessage(message))
        .with(ErrorInfo.newBuilder().setDomain("openclaw-rl").setReason(reason).putAllMetadata(metadata).build());
  }

  private record Builder(com.google.rpc.Status.Builder status) {
    Builder with(com.google.protobuf.Message detail) {
      status.addDetails(Any.pack(detail));
      return this;
    }

    StatusRuntimeException build() {
      return StatusProto.toStatusRuntimeException(status.build());
    }
  }
}
