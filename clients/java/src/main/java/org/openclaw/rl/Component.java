package org.openclaw.rl;

import io.grpc.Channel;
import java.time.Duration;
import org.openclaw.rl.v1.ComponentServiceGrpc;
import org.openclaw.rl.v1.ComponentStatus;
import org.openclaw.rl.v1.DrainRequest;
import org.openclaw.rl.v1.ForgetRequest;
import org.openclaw.rl.v1.ForgetResponse;
import org.openclaw.rl.v1.GetStatusRequest;
import org.openclaw.rl.v1.ListSpansRequest;
import org.openclaw.rl.v1.ListSpansResponse;
import org.openclaw.rl.v1.ReadLogsRequest;
import org.openclaw.rl.v1.ReadLogsResponse;
import org.openclaw.rl.v1.WatchStatsRequest;
import org.openclaw.rl.v1.WatchStatsResponse;

/**
 * What the clients of all four components have. A client is one connection, made with the first call and again after a
 * break; any thread may use it. All calls throw {@link MeshException}.
 *
 * @param <C> the client itself
 */
public abstract class Component<C extends Component<C>> implements AutoCloseable {
  final Connection connection;
  private final String name;

  Component(Connection connection, String name) {
    this.connection = connection;
    this.name = name;
  }

  /** The same client over another connection. */
  abstract C over(Connection other);

  /**
   * The same client, with a deadline for each of its calls, streams too. It shares the connection: close the one that
   * it was made from.
   */
  public C withDeadline(Duration every) {
    return over(connection.withDeadline(every));
  }

  /** HOST:PORT that it calls. */
  public String address() {
    return connection.options().address();
  }

  /** For a stub of your own: what this package doesn't wrap, or asynchronous calls. Shows the key; closed with this. */
  public Channel channel() {
    return connection.channel();
  }

  /**
   * Whether the component is the expected one and speaks this contract.
   *
   * @throws MeshException CONTRACT_MISMATCH or WRONG_COMPONENT when it isn't or doesn't
   */
  public Contract.Report check() {
    return Contract.check(status(), name, address());
  }

  /** State and figures. */
  public ComponentStatus status() {
    return connection
        .unary(ComponentServiceGrpc.getGetStatusMethod(), GetStatusRequest.getDefaultInstance())
        .getStatus();
  }

  /** The same again and again, every interval of 100 ms to 1 h. */
  public Responses<WatchStatsResponse> watchStats(Duration interval) {
    return connection.watch(
        ComponentServiceGrpc.getWatchStatsMethod(),
        WatchStatsRequest.newBuilder().setInterval(Durations.toProto(interval)).build());
  }

  /** Ends the component: no new work, the running one within the grace. */
  public void drain(Duration grace) {
    connection.unary(
        ComponentServiceGrpc.getDrainMethod(), DrainRequest.newBuilder().setGrace(Durations.toProto(grace)).build());
  }

  /** Removes a session from all that this component keeps. */
  public ForgetResponse forget(ForgetRequest request) {
    return connection.unary(ComponentServiceGrpc.getForgetMethod(), request);
  }

  /** Lines of a log. */
  public Responses<ReadLogsResponse> readLogs(ReadLogsRequest request) {
    return connection.stream(ComponentServiceGrpc.getReadLogsMethod(), request);
  }

  /** Spans of traces, as JSON. */
  public Responses<ListSpansResponse> listSpans(ListSpansRequest request) {
    return connection.stream(ComponentServiceGrpc.getListSpansMethod(), request);
  }

  /** Ends the connection and what runs over it. */
  @Override
  public void close() {
    connection.close();
  }

  /** The options with the component's own address where they have none. */
  static Connection connect(Options options, int port, String role) {
    return Connection.open(options.address().isEmpty() ? options.withAddress("127.0.0.1:" + port) : options, role);
  }
}
