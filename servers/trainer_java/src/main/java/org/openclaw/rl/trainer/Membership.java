package org.openclaw.rl.trainer;

import com.google.protobuf.Any;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.rpc.ErrorInfo;
import io.grpc.Metadata;
import io.grpc.ServerCall;
import io.grpc.ServerCallHandler;
import io.grpc.ServerInterceptor;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import java.util.Map;
import java.util.Optional;
import java.util.logging.Logger;
import org.openclaw.rl.Mesh;

/** The mesh that the trainer belongs to, and the refusal of those of another one. */
final class Membership implements ServerInterceptor {
  static final String WRONG_MESH = "WRONG_MESH";

  private static final Logger LOG = Logger.getLogger(Membership.class.getName());
  /** Nanoseconds for which a foreign neighbour is an alarm and a foreign caller told of; both try again every few seconds. */
  private static final long REMEMBERED = 60_000_000_000L;
  private static final Map<String, String> CALLERS = Map.of(
      "openclaw_rl.v1.TrainerService/SubmitSamples", "prm_judge",
      "openclaw_rl.v1.TrainerService/FetchWeights", "policy_server");

  private record Met(String what, long at) {}

  private final Mesh own;
  private final boolean certified;
  private volatile Met met;
  private long refused; // calls of other meshes
  private Met caller; // the last of them
  private Met logged;

  /**
   * Of a trainer in a mesh.
   *
   * @param id of the mesh; empty when it was given none
   * @param certified callers have to show a certificate
   */
  Membership(String id, boolean certified) {
    own = new Mesh(id, id.isEmpty() ? "" : "trainer");
    this.certified = certified;
  }

  String id() {
    return own.id();
  }

  /** What each answer tells. */
  void into(Metadata headers) {
    own.into(headers);
  }

  @Override
  public <Q, A> ServerCall.Listener<Q> interceptCall(
      ServerCall<Q, A> call, Metadata headers, ServerCallHandler<Q, A> next) {
    Optional<StatusRuntimeException> refusal = refuse(Mesh.of(headers), call.getMethodDescriptor().getFullMethodName());
    if (refusal.isEmpty()) {
      return next.startCall(call, headers);
    }
    Metadata trailers = refusal.get().getTrailers();
    call.close(refusal.get().getStatus(), trailers == null ? new Metadata() : trailers);
    return new ServerCall.Listener<>() {};
  }

  /** What a caller of another mesh is told, and a stream that names none where no certificate does. */
  private Optional<StatusRuntimeException> refuse(Mesh caller, String method) {
    if (method.startsWith("grpc.")) { // health and reflection
      return Optional.empty();
    }
    String only = CALLERS.get(method);
    String rpc = method.substring(method.lastIndexOf('/') + 1);
    if (own.id().isEmpty()) {
      return only == null || certified ? Optional.empty() : wrong("", "this trainer was given no mesh, so " + rpc
          + " is refused: start it with --mesh or the variable " + Mesh.VARIABLE + " (`openclaw-rl mesh id` prints the id)");
    }
    if (!caller.id().isEmpty() && !caller.id().equals(own.id())) {
      String who = (caller.component().isEmpty() ? "a client" : caller.component()) + " of the mesh " + caller.id();
      refused(who + " calls here and is refused: correct the address of trainer in its configuration, or stop it");
      return wrong(caller.id(), who + " calls trainer of the mesh " + own.id() + ": correct its address of trainer;"
          + " `openclaw-rl status` tells the addresses of a mesh. Nothing was taken");
    }
    if (only == null) {
      return Optional.empty();
    }
    if (caller.id().isEmpty() && !certified) {
      return wrong("", rpc + " is for components of the mesh " + own.id() + ", and the caller names none: send the"
          + " metadata openclaw-mesh: " + own.id() + " (grpcurl -H), or set " + Mesh.VARIABLE);
    }
    return caller.component().isEmpty() || caller.component().equals(only) ? Optional.empty() : Optional.of(Errors.of(
        Status.Code.PERMISSION_DENIED, "WRONG_ROLE", rpc + " is for " + only + "; the caller says it is "
            + caller.component()));
  }

  private Optional<StatusRuntimeException> wrong(String found, String message) {
    return Optional.of(Errors.of(
        Status.Code.FAILED_PRECONDITION, WRONG_MESH, message, Map.of("expected", own.id(), "found", found)));
  }

  /** Takes in what ended a stream of ours. */
  void note(com.google.rpc.Status status) {
    for (Any detail : status == null ? java.util.List.<Any>of() : status.getDetailsList()) {
      try {
        if (detail.is(ErrorInfo.class) && detail.unpack(ErrorInfo.class).getReason().equals(WRONG_MESH)) {
          meet(status.getMessage());
        }
      } catch (InvalidProtocolBufferException damaged) {
        continue;
      }
    }
  }

  private synchronized void refused(String what) {
    refused++;
    caller = new Met(what, System.nanoTime());
    if (!recent(logged)) {
      logged = caller;
      LOG.warning(what + " (" + refused + " calls of other meshes refused)");
    }
  }

  /** Calls of other meshes that were refused. */
  synchronized long refused() {
    return refused;
  }

  /** A remark about foreign callers of the last minute, empty without any. It is no alarm: nothing is wrong here. */
  synchronized String refusals() {
    return recent(caller) ? caller.what() : "";
  }

  private static boolean recent(Met met) {
    return met != null && System.nanoTime() - met.at() <= REMEMBERED;
  }

  /** Notes that another mesh was met. */
  void meet(String what) {
    met = new Met(what, System.nanoTime());
  }

  /** The alarm; empty when there is none. */
  Optional<String> trouble() {
    Met last = met;
    return recent(last) ? Optional.of(last.what()) : Optional.empty();
  }
}
