package org.openclaw.rl;

import com.google.protobuf.Any;
import com.google.rpc.ErrorInfo;
import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ClientCall;
import io.grpc.ClientInterceptor;
import io.grpc.ForwardingClientCall;
import io.grpc.ForwardingClientCallListener;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.protobuf.StatusProto;

/**
 * Which mesh and component somebody belongs to: in the metadata of each call and in the headers of each answer.
 *
 * @param id of the mesh; empty for none
 * @param component its name, such as "trainer"; empty for a client
 */
public record Mesh(String id, String component) {
  /** Variable with the id of the mesh, for clients whose options name none. */
  public static final String VARIABLE = "OPENCLAW_RL_MESH";
  /** Metadata with the id. */
  public static final Metadata.Key<String> ID = Metadata.Key.of("openclaw-mesh", Metadata.ASCII_STRING_MARSHALLER);
  /** Metadata with the component's name. */
  public static final Metadata.Key<String> COMPONENT =
      Metadata.Key.of("openclaw-component", Metadata.ASCII_STRING_MARSHALLER);

  private static final int LONGEST = 80;

  /** What the variable says. */
  static Mesh ofEnvironment() {
    String id = System.getenv(VARIABLE);
    return new Mesh(id == null ? "" : id, "");
  }

  /** What metadata says. */
  public static Mesh of(Metadata metadata) {
    return new Mesh(first(metadata, ID), first(metadata, COMPONENT));
  }

  /** Says so in metadata. */
  public void into(Metadata metadata) {
    if (!id.isEmpty()) {
      metadata.put(ID, id);
    }
    if (!component.isEmpty()) {
      metadata.put(COMPONENT, component);
    }
  }

  private static String first(Metadata metadata, Metadata.Key<String> key) {
    String value = metadata.get(key);
    return value == null ? "" : value.substring(0, Math.min(value.length(), LONGEST));
  }

  /** Says so with each call, and takes no answer of another mesh. One of contract 1.0 names none, and passes. */
  ClientInterceptor interceptor() {
    return new ClientInterceptor() {
      @Override
      public <Q, A> ClientCall<Q, A> interceptCall(MethodDescriptor<Q, A> method, CallOptions options, Channel next) {
        return new Call<>(next.newCall(method, options), method.getType() == MethodDescriptor.MethodType.BIDI_STREAMING);
      }
    };
  }

  private StatusRuntimeException foreign(Mesh there) {
    String text = (there.component.isEmpty() ? "the component" : there.component) + " there is of the mesh " + there.id
        + ", and " + id + " is expected: correct the address, or the mesh in the options; `openclaw-rl mesh id` prints"
        + " the id of a mesh";
    return StatusProto.toStatusRuntimeException(com.google.rpc.Status.newBuilder()
        .setCode(Status.Code.FAILED_PRECONDITION.value()).setMessage(text)
        .addDetails(Any.pack(ErrorInfo.newBuilder().setDomain("openclaw-rl").setReason("WRONG_MESH")
            .putMetadata("expected", id).putMetadata("found", there.id).build())).build());
  }

  private final class Call<Q, A> extends ForwardingClientCall.SimpleForwardingClientCall<Q, A> {
    private volatile boolean held; // not ready to send before it is known who answers
    private volatile StatusRuntimeException wrong;

    Call(ClientCall<Q, A> call, boolean bidi) {
      super(call);
      held = bidi;
    }

    @Override
    public boolean isReady() {
      return !held && super.isReady();
    }

    @Override
    public void start(Listener<A> listener, Metadata headers) {
      into(headers);
      super.start(new ForwardingClientCallListener.SimpleForwardingClientCallListener<>(listener) {
        @Override
        public void onHeaders(Metadata answer) {
          Mesh there = Mesh.of(answer);
          if (!there.id.isEmpty() && !there.id.equals(id)) {
            wrong = foreign(there);
            cancel(wrong.getMessage(), null);
            return;
          }
          super.onHeaders(answer);
          if (held) {
            held = false;
            onReady();
          }
        }

        @Override
        public void onMessage(A message) {
          if (wrong == null) {
            super.onMessage(message);
          }
        }

        @Override
        public void onClose(Status status, Metadata trailers) {
          held = false;
          if (wrong == null) {
            super.onClose(status, trailers);
          } else {
            super.onClose(wrong.getStatus(), wrong.getTrailers());
          }
        }
      }, headers);
    }
  }
}
