package org.openclaw.rl;

import com.google.protobuf.MessageLite;
import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ClientInterceptor;
import io.grpc.ClientInterceptors;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.ManagedChannelBuilder;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.Status;
import io.grpc.StatusException;
import io.grpc.StatusRuntimeException;
import io.grpc.stub.BlockingClientCall;
import io.grpc.stub.ClientCalls;
import io.grpc.stub.MetadataUtils;
import java.time.Duration;
import java.util.Optional;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;

/** A channel to one component, and the three kinds of calls over it with this package's errors. */
final class Connection implements AutoCloseable {
  private static final Metadata.Key<String> AUTHORIZATION =
      Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER);

  private final Options options;
  private final ManagedChannel channel;
  private final Channel calls;
  private final Duration deadline; // of every call, streams too; null: that of the options, for single answers
  private final boolean owner;

  private Connection(Options options, ManagedChannel channel, Channel calls, Duration deadline, boolean owner) {
    this.options = options;
    this.channel = channel;
    this.calls = calls;
    this.deadline = deadline;
    this.owner = owner;
  }

  /**
   * Connects with the first call.
   *
   * @param role the component that must be there
   */
  static Connection open(Options options, String role) {
    options.check();
    Tls tls = options.tls();
    ManagedChannelBuilder<?> builder = Grpc.newChannelBuilder(
        options.address(), tls == null ? InsecureChannelCredentials.create() : tls.credentials(role));
    if (tls != null && tls.byRole()) {
      builder.overrideAuthority(Tls.ANY_COMPONENT);
    }
    ManagedChannel channel = builder
        .maxInboundMessageSize(options.maxMessageBytes())
        .keepAliveTime(20, TimeUnit.SECONDS) // a peer whose machine is gone is noticed after 20 + 10 s
        .keepAliveTimeout(10, TimeUnit.SECONDS)
        .proxyDetector(target -> null) // a proxy of the environment is not for a mesh
        .disableRetry()
        .build();
    Channel calls = channel;
    if (!options.key().isEmpty()) {
      Metadata shown = new Metadata();
      shown.put(AUTHORIZATION, "Bearer " + options.key());
      ClientInterceptor showing = MetadataUtils.newAttachHeadersInterceptor(shown);
      calls = ClientInterceptors.intercept(channel, showing);
    }
    if (!options.mesh().id().isEmpty()) {
      calls = ClientInterceptors.intercept(calls, options.mesh().interceptor());
    }
    return new Connection(options, channel, calls, null, true);
  }

  /** The same channel, with a deadline for every call. */
  Connection withDeadline(Duration every) {
    return new Connection(options, channel, calls, every, false);
  }

  Channel channel() {
    return calls;
  }

  Options options() {
    return options;
  }

  <Q, A> A unary(MethodDescriptor<Q, A> method, Q request) {
    checkSize(method, request);
    try {
      return ClientCalls.blockingV2UnaryCall(calls, method, callOptions(options.deadline()), request);
    } catch (StatusException | StatusRuntimeException error) {
      throw failed(method, error);
    }
  }

  /** A stream of answers; each call of the supplier's result begins one. */
  <Q, A> Responses<A> stream(MethodDescriptor<Q, A> method, Q request) {
    return new Responses<>(source(method, request));
  }

  /** The same, begun anew whenever it breaks, unless the options say otherwise. */
  <Q, A> Responses<A> watch(MethodDescriptor<Q, A> method, Q request) {
    Supplier<Responses.Source<A>> open = () -> source(method, request);
    return new Responses<>(options.reconnect() ? new Reconnecting<>(open) : open.get());
  }

  <Q, A> BlockingClientCall<Q, A> bidi(MethodDescriptor<Q, A> method) {
    return ClientCalls.blockingBidiStreamingCall(calls, method, callOptions(null));
  }

  <Q, A> void checkSize(MethodDescriptor<Q, A> method, Q request) {
    int size = request instanceof MessageLite message ? message.getSerializedSize() : 0;
    if (size > options.maxMessageBytes()) {
      throw new MeshException(Status.Code.RESOURCE_EXHAUSTED, "RESOURCE_EXHAUSTED",
          "the request of " + method.getFullMethodName() + " is too large: it has " + size + " bytes, more than "
              + options.maxMessageBytes() + "; send less at once");
    }
  }

  MeshException failed(MethodDescriptor<?, ?> method, Throwable error) {
    return MeshException.of(error, options.address(), method.getFullMethodName());
  }

  CallOptions callOptions(Duration usual) {
    return Optional.ofNullable(deadline != null ? deadline : usual)
        .map(limit -> CallOptions.DEFAULT.withDeadlineAfter(limit.toNanos(), TimeUnit.NANOSECONDS))
        .orElse(CallOptions.DEFAULT);
  }

  private <Q, A> Responses.Source<A> source(MethodDescriptor<Q, A> method, Q request) {
    checkSize(method, request);
    BlockingClientCall<Q, A> call =
        ClientCalls.blockingV2ServerStreamingCall(calls, method, callOptions(null), request);
    return new Responses.Source<>() {
      @Override
      public A next() {
        try {
          return call.read();
        } catch (StatusException error) {
          throw failed(method, error);
        } catch (InterruptedException interrupted) {
          close();
          throw interrupted(method);
        }
      }

      @Override
      public void close() {
        call.cancel("the caller closed the stream", null);
      }
    };
  }

  /** What an interrupted wait ends with; the thread stays interrupted. */
  static MeshException interrupted(MethodDescriptor<?, ?> method) {
    Thread.currentThread().interrupt();
    return new MeshException(
        Status.Code.CANCELLED, "CANCELLED", method.getFullMethodName() + ": the thread that waited was interrupted");
  }

  /** Ends all calls. A view that {@code withDeadline} made leaves the channel open. */
  @Override
  public void close() {
    if (owner) {
      channel.shutdownNow();
    }
  }
}
