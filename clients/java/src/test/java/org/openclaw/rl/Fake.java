package org.openclaw.rl;

import com.google.protobuf.Any;
import com.google.protobuf.Message;
import com.google.rpc.ErrorInfo;
import io.grpc.BindableService;
import io.grpc.Grpc;
import io.grpc.InsecureServerCredentials;
import io.grpc.Server;
import io.grpc.ServerBuilder;
import io.grpc.ServerServiceDefinition;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.protobuf.StatusProto;
import java.io.IOException;
import java.time.Duration;
import java.util.List;
import java.util.function.BooleanSupplier;

/** A server in this process. */
final class Fake implements AutoCloseable {
  private final Server server;

  private Fake(Server server) {
    this.server = server;
  }

  static Fake of(BindableService... services) throws IOException {
    return on(0, services);
  }

  static Fake of(List<ServerServiceDefinition> services) throws IOException {
    return new Fake(
        Grpc.newServerBuilderForPort(0, InsecureServerCredentials.create()).addServices(services).build().start());
  }

  static Fake on(int port, BindableService... services) throws IOException {
    ServerBuilder<?> builder = Grpc.newServerBuilderForPort(port, InsecureServerCredentials.create())
        .maxInboundMessageSize(Options.MAX_MESSAGE);
    for (BindableService service : services) {
      builder.addService(service);
    }
    return new Fake(builder.build().start());
  }

  int port() {
    return server.getPort();
  }

  Options options() {
    return Options.at("127.0.0.1:" + port());
  }

  /** An error as components of a mesh send it. */
  static StatusRuntimeException error(Status.Code code, String reason, String message, Message... more) {
    com.google.rpc.Status.Builder status = com.google.rpc.Status.newBuilder().setCode(code.value()).setMessage(message)
        .addDetails(Any.pack(ErrorInfo.newBuilder().setDomain("openclaw-rl").setReason(reason)
            .putMetadata("versions", "1, 2").build()));
    for (Message detail : more) {
      status.addDetails(Any.pack(detail));
    }
    return StatusProto.toStatusRuntimeException(status.build());
  }

  static void until(String what, BooleanSupplier condition) throws InterruptedException {
    long end = System.nanoTime() + Duration.ofSeconds(30).toNanos();
    while (!condition.getAsBoolean()) {
      if (System.nanoTime() > end) {
        throw new AssertionError("not within 30 s: " + what);
      }
      Thread.sleep(5);
    }
  }

  @Override
  public void close() throws InterruptedException {
    server.shutdownNow();
    server.awaitTermination();
  }
}
