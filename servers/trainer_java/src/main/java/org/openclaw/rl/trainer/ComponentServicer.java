package org.openclaw.rl.trainer;

import com.google.protobuf.Duration;
import com.google.protobuf.Timestamp;
import io.grpc.stub.StreamObserver;
import java.net.InetAddress;
import java.net.UnknownHostException;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;
import java.util.function.LongConsumer;
import java.util.function.Supplier;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.openclaw.rl.Contract;
import org.openclaw.rl.v1.Alarm;
import org.openclaw.rl.v1.ComponentServiceGrpc;
import org.openclaw.rl.v1.ComponentState;
import org.openclaw.rl.v1.ComponentStatus;
import org.openclaw.rl.v1.DrainRequest;
import org.openclaw.rl.v1.DrainResponse;
import org.openclaw.rl.v1.ForgetRequest;
import org.openclaw.rl.v1.ForgetResponse;
import org.openclaw.rl.v1.GetStatusRequest;
import org.openclaw.rl.v1.GetStatusResponse;
import org.openclaw.rl.v1.ListSpansRequest;
import org.openclaw.rl.v1.ListSpansResponse;
import org.openclaw.rl.v1.ReadLogsRequest;
import org.openclaw.rl.v1.ReadLogsResponse;
import org.openclaw.rl.v1.WatchStatsRequest;
import org.openclaw.rl.v1.WatchStatsResponse;

/** ComponentService: what the trainer tells of itself, draining and forgetting. */
final class ComponentServicer extends ComponentServiceGrpc.ComponentServiceImplBase {
  /** Seconds without the policy server after which that is an alarm. */
  private static final double UNREACHABLE = 30;
  private static final long DEFAULT_GRACE = 30_000;
  private static final long HOUR = 3_600_000;

  private final Store store;
  private final Samples samples;
  private final Versions versions;
  private final Trainer trainer;
  private final Publisher publisher;
  private final Forgetter forgetter;
  private final Streams streams;
  private final ScheduledExecutorService clock;
  private final Supplier<ComponentStatus.Builder> basics; // address, certificate, whether it is about to stop
  private final LongConsumer drain; // within so many milliseconds
  private final Timestamp startedAt = Samples.timestamp(Samples.now());
  private final String host = host();

  ComponentServicer(Store store, Samples samples, Versions versions, Trainer trainer, Publisher publisher,
      Streams streams, ScheduledExecutorService clock, Supplier<ComponentStatus.Builder> basics, LongConsumer drain) {
    this.store = store;
    this.samples = samples;
    this.versions = versions;
    this.trainer = trainer;
    this.publisher = publisher;
    this.forgetter = new Forgetter(store, samples, versions, trainer);
    this.streams = streams;
    this.clock = clock;
    this.basics = basics;
    this.drain = drain;
  }

  ComponentStatus status() {
    Samples.Waiting waiting = samples.waiting();
    ComponentStatus.Builder status = basics.get().setName("trainer").setPid(ProcessHandle.current().pid())
        .setPackageVersion("0.1.0").setContractVersion(Contract.CONTRACT_VERSION).setStartedAt(startedAt)
        .setPolicyVersion(versions.head()).setHost(host)
        .putCounters("samples_accepted", store.number("accepted"))
        .putCounters("samples_trained", store.number("trained"))
        .putCounters("updates", store.number("updates"))
        .putCounters("steps_skipped", store.number("steps_skipped"))
        .putGauges("pending", waiting.total()).putGauges("rebuilding", waiting.again()).putGauges("open_streams", streams.count())
        .putGauges("training", trainer.training() ? 1 : 0)
        .putGauges("paused", trainer.paused() ? 1 : 0).putAllDropped(samples.dropped());
    status.setDetail(Stream.of(trainer.missing(), status.getDetail()).filter(text -> !text.isEmpty())
        .collect(Collectors.joining("; ")));
    for (Alarm alarm : status.getAlarmsList()) {
      status.setDetail(alarm.getMessage() + "; " + status.getDetail());
    }
    if (publisher.down() > UNREACHABLE) {
      String text = "the policy server (" + publisher.address() + ") has not been reached for "
          + Math.round(publisher.down()) + " s: " + publisher.problem() + "; new versions wait until it is there";
      status.addAlarms(Alarm.newBuilder().setName("policy_server_unreachable").setMessage(text)
          .setSince(Samples.timestamp(Samples.now() - publisher.down() + UNREACHABLE)));
      status.setDetail(text + "; " + status.getDetail());
    }
    if (status.getState() == ComponentState.COMPONENT_STATE_UNSPECIFIED) {
      status.setState(status.getAlarmsCount() > 0
          ? ComponentState.COMPONENT_STATE_DEGRADED : ComponentState.COMPONENT_STATE_RUNNING);
    }
    return status.build();
  }

  @Override
  public void getStatus(GetStatusRequest request, StreamObserver<GetStatusResponse> observer) {
    Errors.answer(observer, () -> GetStatusResponse.newBuilder().setStatus(status()).build());
  }

  @Override
  public void watchStats(WatchStatsRequest request, StreamObserver<WatchStatsResponse> observer) {
    long interval = request.hasInterval() ? milliseconds(request.getInterval()) : 1_000;
    if (interval < 100 || interval > HOUR) {
      observer.onError(Errors.invalid("interval", interval / 1000.0 + " s", "from 0.1 s to 1 h"));
      return;
    }
    Streams.Stream<WatchStatsResponse> stream = streams.add(observer, () -> {});
    ScheduledFuture<?>[] ticking = new ScheduledFuture<?>[1];
    ticking[0] = clock.scheduleAtFixedRate(() -> {
      try {
        if (stream.over()) {
          ticking[0].cancel(false);
        } else if (stream.ready()) { // a slow reader gets the newest when it is ready, not all of the past
          stream.send(WatchStatsResponse.newBuilder().setStatus(status()).setAt(Samples.timestamp(Samples.now()))
              .build());
        }
      } catch (RuntimeException error) {
        stream.end(Errors.known(error));
      }
    }, 0, interval, TimeUnit.MILLISECONDS);
  }

  @Override
  public void drain(DrainRequest request, StreamObserver<DrainResponse> observer) {
    Errors.answer(observer, () -> {
      long grace = request.hasGrace() ? milliseconds(request.getGrace()) : DEFAULT_GRACE;
      if (grace < 0 || grace > HOUR) {
        throw Errors.invalid("grace", grace / 1000.0 + " s", "from 0 s to 1 h");
      }
      drain.accept(grace);
      return DrainResponse.getDefaultInstance();
    });
  }

  @Override
  public void forget(ForgetRequest request, StreamObserver<ForgetResponse> observer) {
    Errors.answer(observer, () -> forgetter.forget(request));
  }

  @Override
  public void readLogs(ReadLogsRequest request, StreamObserver<ReadLogsResponse> observer) {
    observer.onError(Errors.unimplemented("ReadLogs")); // it logs to stderr
  }

  @Override
  public void listSpans(ListSpansRequest request, StreamObserver<ListSpansResponse> observer) {
    observer.onError(Errors.unimplemented("ListSpans"));
  }

  private static long milliseconds(Duration value) {
    return Math.addExact(Math.multiplyExact(value.getSeconds(), 1_000L), value.getNanos() / 1_000_000);
  }

  private static String host() {
    try {
      return InetAddress.getLocalHost().getHostName();
    } catch (UnknownHostException nameless) {
      return "";
    }
  }
}
