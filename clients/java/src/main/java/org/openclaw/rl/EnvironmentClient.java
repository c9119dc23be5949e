package org.openclaw.rl;

import java.util.List;
import java.util.UUID;
import org.openclaw.rl.v1.AcquireRequest;
import org.openclaw.rl.v1.EndSessionRequest;
import org.openclaw.rl.v1.EnvironmentInfo;
import org.openclaw.rl.v1.EnvironmentServiceGrpc;
import org.openclaw.rl.v1.GetSessionRequest;
import org.openclaw.rl.v1.GetSessionResponse;
import org.openclaw.rl.v1.ListEnvironmentsRequest;
import org.openclaw.rl.v1.ListEpisodesRequest;
import org.openclaw.rl.v1.ListEpisodesResponse;
import org.openclaw.rl.v1.ListLeasesRequest;
import org.openclaw.rl.v1.ListTasksRequest;
import org.openclaw.rl.v1.ListTurnsRequest;
import org.openclaw.rl.v1.ListTurnsResponse;
import org.openclaw.rl.v1.PolicyEvent;
import org.openclaw.rl.v1.RecordTurnsRequest;
import org.openclaw.rl.v1.RecordTurnsResponse;
import org.openclaw.rl.v1.RunEpisodesRequest;
import org.openclaw.rl.v1.RunEpisodesResponse;
import org.openclaw.rl.v1.TaskInfo;
import org.openclaw.rl.v1.TaskSplit;
import org.openclaw.rl.v1.TurnOptions;
import org.openclaw.rl.v1.WatchLeaseRequest;
import org.openclaw.rl.v1.WatchLeaseResponse;

/** The environment server: sessions, live conversations, sandboxes and episodes. */
public final class EnvironmentClient extends Component<EnvironmentClient> {
  private static final int PORT = 50052;

  private EnvironmentClient(Connection connection) {
    super(connection, "env_server");
  }

  /** A client with these options; it connects with its first call. */
  public static EnvironmentClient open(Options options) {
    return new EnvironmentClient(connect(options, PORT, "env_server"));
  }

  @Override
  EnvironmentClient over(Connection other) {
    return new EnvironmentClient(other);
  }

  /** A live session; close it. */
  public Conversation interact(TurnOptions options) {
    return new Conversation(connection, options);
  }

  /** A session and its turns. */
  public GetSessionResponse session(String sessionId) {
    return connection.unary(
        EnvironmentServiceGrpc.getGetSessionMethod(), GetSessionRequest.newBuilder().setSessionId(sessionId).build());
  }

  /** Ends a session; gives the number of turns that got their next state by it. */
  public int endSession(String sessionId) {
    return connection
        .unary(
            EnvironmentServiceGrpc.getEndSessionMethod(),
            EndSessionRequest.newBuilder().setSessionId(sessionId).build())
        .getClosedTurns();
  }

  /** Turns, newest first, a page at a time. */
  public ListTurnsResponse turns(ListTurnsRequest request) {
    return connection.unary(EnvironmentServiceGrpc.getListTurnsMethod(), request);
  }

  /** Leases a sandbox of an environment such as "tool_call"; it is renewed until it is closed. */
  public Lease acquire(String type) {
    return acquire(AcquireRequest.newBuilder().setType(type).build());
  }

  /** The same with more said; an empty lease id gets one, and a ttl that is not set is a minute. */
  public Lease acquire(AcquireRequest request) {
    AcquireRequest.Builder whole = request.toBuilder();
    if (request.getLeaseId().isEmpty()) {
      whole.setLeaseId("lease_" + UUID.randomUUID().toString().replace("-", ""));
    }
    if (!request.hasTtl()) { // always asked for: when to renew is then told by this machine's clock alone
      whole.getTtlBuilder().setSeconds(60);
    }
    return Lease.acquire(connection, whole.build());
  }

  /** Shows what goes on in a leased sandbox, until the lease ends. */
  public Responses<WatchLeaseResponse> watchLease(String leaseId) {
    return connection.stream(
        EnvironmentServiceGrpc.getWatchLeaseMethod(), WatchLeaseRequest.newBuilder().setLeaseId(leaseId).build());
  }

  /** Lets the policy act in sandboxes. Closing the stream ends the run. */
  public Responses<RunEpisodesResponse> runEpisodes(RunEpisodesRequest request) {
    return connection.stream(EnvironmentServiceGrpc.getRunEpisodesMethod(), request);
  }

  /** Episodes, newest first, a page at a time. */
  public ListEpisodesResponse episodes(ListEpisodesRequest request) {
    return connection.unary(EnvironmentServiceGrpc.getListEpisodesMethod(), request);
  }

  /** The environments that there are. */
  public List<EnvironmentInfo> environments() {
    return connection
        .unary(EnvironmentServiceGrpc.getListEnvironmentsMethod(), ListEnvironmentsRequest.getDefaultInstance())
        .getEnvironmentsList();
  }

  /** The tasks of an environment. */
  public List<TaskInfo> tasks(String type, TaskSplit split) {
    return connection
        .unary(
            EnvironmentServiceGrpc.getListTasksMethod(),
            ListTasksRequest.newBuilder().setType(type).setSplit(split).build())
        .getTasksList();
  }

  /** The leases that run; of all environments when the type is empty. */
  public List<org.openclaw.rl.v1.Lease> leases(String type) {
    return connection
        .unary(EnvironmentServiceGrpc.getListLeasesMethod(), ListLeasesRequest.newBuilder().setType(type).build())
        .getLeasesList();
  }

  /** The policy server's stream of events, for one of your own make. */
  public Delivery<PolicyEvent> deliver(Delivery.Settings settings, Outbox<PolicyEvent> outbox) {
    return new Delivery<>(settings, outbox, new Ring<>(connection, EnvironmentServiceGrpc.getRecordTurnsMethod(),
        batch -> RecordTurnsRequest.newBuilder().addAllEvents(batch).build(), RecordTurnsResponse::getAcksList));
  }
}
