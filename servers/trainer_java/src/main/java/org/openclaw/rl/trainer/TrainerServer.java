package org.openclaw.rl.trainer;

import io.grpc.ForwardingServerCall;
import io.grpc.InsecureServerCredentials;
import io.grpc.Metadata;
import io.grpc.Server;
import io.grpc.ServerCall;
import io.grpc.ServerCallHandler;
import io.grpc.ServerCredentials;
import io.grpc.ServerInterceptor;
import io.grpc.ServerInterceptors;
import io.grpc.ServerServiceDefinition;
import io.grpc.TlsServerCredentials;
import io.grpc.health.v1.HealthCheckResponse.ServingStatus;
import io.grpc.netty.shaded.io.grpc.netty.NettyServerBuilder;
import io.grpc.protobuf.services.HealthStatusManager;
import io.grpc.protobuf.services.ProtoReflectionService;
import io.grpc.protobuf.services.ProtoReflectionServiceV1;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.nio.file.Path;
import java.security.cert.CertificateException;
import java.security.cert.X509Certificate;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.logging.Logger;
import org.openclaw.rl.Options;
import org.openclaw.rl.PolicyClient;
import org.openclaw.rl.Tls;
import org.openclaw.rl.v1.Alarm;
import org.openclaw.rl.v1.ComponentServiceGrpc;
import org.openclaw.rl.v1.ComponentState;
import org.openclaw.rl.v1.ComponentStatus;
import org.openclaw.rl.v1.TrainerServiceGrpc;

/** The whole trainer: store, steps, weight stream, and the gRPC server with health and reflection. */
final class TrainerServer implements AutoCloseable {
  private static final Logger LOG = Logger.getLogger(TrainerServer.class.getName());
  private static final int MAX_STREAMS = 1_024;
  /** Longest time that open calls get at the end. */
  private static final Duration LAST_CALLS = Duration.ofSeconds(3);
  private static final Duration LONGEST_END = Duration.ofSeconds(10);

  /**
   * What it is started with.
   *
   * @param host where it listens
   * @param port of that; 0 for any
   * @param data folder of what it keeps
   * @param policy HOST:PORT of the policy server
   * @param certs folder with ca.crt, trainer.crt and trainer.key; null for plain text
   * @param mesh id of the mesh; empty takes the certificate's
   */
  record Settings(String host, int port, Path data, String policy, Path certs, String mesh, Learner.Limits limits,
      Trainer.Pace pace) {}

  private final Settings settings;
  private final Store store;
  private final Trainer trainer;
  private final Publisher publisher;
  private final PolicyClient policy;
  private final Streams streams = new Streams();
  private final HealthStatusManager health = new HealthStatusManager();
  private final ScheduledExecutorService clock = Executors.newScheduledThreadPool(1, task -> {
    Thread thread = new Thread(task, "clock");
    thread.setDaemon(true);
    return thread;
  });
  private final ComponentServicer component;
  private final X509Certificate certificate; // null in plain text
  private final Membership membership;
  private final Server server;
  private volatile double wrongMeshSince; // seconds since 1970; 0 while there is no such alarm
  private final AtomicBoolean draining = new AtomicBoolean();
  private final CountDownLatch stopped = new CountDownLatch(1);

  TrainerServer(Settings settings) throws IOException, CertificateException {
    this.settings = settings;
    Options options = Options.at(settings.policy());
    if (settings.certs() != null) {
      options = options.withTls(Tls.mutual(settings.certs(), "trainer")); // which tells what is wrong with them
    }
    certificate = settings.certs() == null ? null : Roles.read(settings.certs().resolve("trainer.crt"));
    membership = new Membership(
        settings.mesh().isEmpty() && certificate != null ? Roles.identity(certificate).mesh() : settings.mesh(),
        certificate != null);
    policy = PolicyClient.open(options.withMesh(membership.id(), "trainer"));
    store = new Store(settings.data());
    Versions versions = new Versions(store);
    Samples samples = new Samples(store, membership.id(), () -> versions.active() < 0 ? -1 : versions.highest());
    trainer = new Trainer(store, samples, versions, settings.limits(), settings.pace());
    publisher = new Publisher(policy, store, versions, trainer, membership);
    component = new ComponentServicer(
        store, samples, versions, trainer, publisher, streams, clock, this::basics, this::drain);
    server = build(new TrainerServicer(samples, versions, trainer, publisher, streams)).start();
    for (String service : List.of(TrainerServiceGrpc.SERVICE_NAME, ComponentServiceGrpc.SERVICE_NAME)) {
      health.setStatus(service, ServingStatus.SERVING);
    }
    trainer.start();
    publisher.start();
    clock.scheduleWithFixedDelay(this::tellAlarms, 0, 2, TimeUnit.SECONDS);
  }

  @SuppressWarnings("deprecation") // reflection's v1alpha is what older tools ask for
  private Server build(TrainerServicer servicer) throws IOException {
    List<ServerInterceptor> interceptors = new ArrayList<>(List.of(new HeadersFirst(membership), membership));
    if (certificate != null) {
      interceptors.add(new Roles(certificate)); // the last one sees a call first
    }
    NettyServerBuilder builder = NettyServerBuilder
        .forAddress(new InetSocketAddress(settings.host(), settings.port()), credentials())
        .maxInboundMessageSize(Options.MAX_MESSAGE)
        .maxConcurrentCallsPerConnection(MAX_STREAMS)
        .permitKeepAliveTime(10, TimeUnit.SECONDS)
        .permitKeepAliveWithoutCalls(true)
        .keepAliveTime(20, TimeUnit.SECONDS)
        .keepAliveTimeout(10, TimeUnit.SECONDS)
        .handshakeTimeout(20, TimeUnit.SECONDS);
    for (ServerServiceDefinition service : List.of(servicer.bindService(), component.bindService(),
        health.getHealthService().bindService(), ProtoReflectionServiceV1.newInstance().bindService(),
        ProtoReflectionService.newInstance().bindService())) {
      builder.addService(ServerInterceptors.intercept(service, interceptors));
    }
    return builder.build();
  }

  private ServerCredentials credentials() throws IOException {
    Path certs = settings.certs();
    return certs == null ? InsecureServerCredentials.create() : TlsServerCredentials.newBuilder()
        .keyManager(certs.resolve("trainer.crt").toFile(), certs.resolve("trainer.key").toFile())
        .trustManager(certs.resolve("ca.crt").toFile()).clientAuth(TlsServerCredentials.ClientAuth.REQUIRE).build();
  }

  /** HOST:PORT. */
  String address() {
    return settings.host() + ":" + server.getPort();
  }

  private ComponentStatus.Builder basics() {
    ComponentStatus.Builder status = ComponentStatus.newBuilder().setAddress(address()).setMeshId(membership.id())
        .putGauges("foreign_calls_refused", membership.refused()).setDetail(membership.refusals());
    String trouble = membership.trouble().orElse("");
    double now = Samples.now();
    wrongMeshSince = trouble.isEmpty() ? 0 : wrongMeshSince == 0 ? now : wrongMeshSince;
    if (!trouble.isEmpty()) {
      status.addAlarms(Alarm.newBuilder().setName("wrong_mesh").setMessage(trouble)
          .setSince(Samples.timestamp(wrongMeshSince)));
    }
    if (certificate != null) {
      status.setSecure(true)
          .setCertificateExpiresAt(Samples.timestamp(certificate.getNotAfter().getTime() / 1000.0));
    }
    if (draining.get()) {
      status.setState(ComponentState.COMPONENT_STATE_DRAINING);
    }
    return status;
  }

  private void tellAlarms() {
    ServingStatus now = component.status().getAlarmsCount() > 0 ? ServingStatus.NOT_SERVING : ServingStatus.SERVING;
    health.setStatus(TrainerServiceGrpc.SERVICE_NAME + "/alarms", now);
    health.setStatus("alarms", now);
  }

  /** Begins to end; returns at once. */
  private void drain(long graceMilliseconds) {
    Thread thread = new Thread(() -> stop(graceMilliseconds), "drain");
    thread.start();
  }

  /** Takes no new work, ends what runs and the streams, and stops. */
  void stop(long graceMilliseconds) {
    if (!draining.compareAndSet(false, true)) {
      return;
    }
    LOG.info("draining");
    health.enterTerminalState();
    clock.shutdownNow();
    trainer.close(); // a step takes milliseconds
    publisher.close();
    streams.end(Errors.unavailable("the trainer is stopping", 1));
    server.shutdown();
    try {
      if (!server.awaitTermination(Math.min(graceMilliseconds, LAST_CALLS.toMillis()), TimeUnit.MILLISECONDS)) {
        server.shutdownNow();
        server.awaitTermination(1, TimeUnit.SECONDS);
      }
    } catch (InterruptedException interrupted) {
      server.shutdownNow();
    }
    policy.close();
    store.close();
    stopped.countDown();
  }

  /** Waits until it has stopped. */
  void await() throws InterruptedException {
    stopped.await();
  }

  /** Ends it, or waits until somebody else's Drain has. */
  @Override
  public void close() {
    stop(LAST_CALLS.toMillis());
    try {
      stopped.await(LONGEST_END.toMillis(), TimeUnit.MILLISECONDS);
    } catch (InterruptedException interrupted) {
      Thread.currentThread().interrupt();
    }
  }

  /** Sends the headers, which name the mesh; those of streams at once: some clients wait for them before they send. */
  private record HeadersFirst(Membership membership) implements ServerInterceptor {
    @Override
    public <Q, A> ServerCall.Listener<Q> interceptCall(
        ServerCall<Q, A> call, Metadata headers, ServerCallHandler<Q, A> next) {
      if (call.getMethodDescriptor().getType().serverSendsOneMessage()) {
        return next.startCall(new ForwardingServerCall.SimpleForwardingServerCall<>(call) {
          @Override
          public void sendHeaders(Metadata answer) {
            membership.into(answer);
            super.sendHeaders(answer);
          }
        }, headers);
      }
      Metadata ours = new Metadata();
      membership.into(ours);
      call.sendHeaders(ours);
      return next.startCall(new ForwardingServerCall.SimpleForwardingServerCall<>(call) {
        @Override
        public void sendHeaders(Metadata more) {
          // They have been sent.
        }
      }, headers);
    }
  }
}
