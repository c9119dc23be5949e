package org.openclaw.rl;

import java.util.List;
import org.openclaw.rl.v1.ActivateVersionRequest;
import org.openclaw.rl.v1.ActivateVersionResponse;
import org.openclaw.rl.v1.ChatRequest;
import org.openclaw.rl.v1.ChatResponse;
import org.openclaw.rl.v1.Feedback;
import org.openclaw.rl.v1.GenerateRequest;
import org.openclaw.rl.v1.GenerateResponse;
import org.openclaw.rl.v1.GetPolicyRequest;
import org.openclaw.rl.v1.GetPolicyResponse;
import org.openclaw.rl.v1.PolicyServiceFetchWeightsRequest;
import org.openclaw.rl.v1.PolicyServiceFetchWeightsResponse;
import org.openclaw.rl.v1.PolicyServiceGrpc;
import org.openclaw.rl.v1.ScoreRequest;
import org.openclaw.rl.v1.ScoreResponse;
import org.openclaw.rl.v1.SubmitFeedbackRequest;
import org.openclaw.rl.v1.WatchPolicyRequest;
import org.openclaw.rl.v1.WatchPolicyResponse;

/** The policy server: answers, token ids, feedback and versions. */
public final class PolicyClient extends Component<PolicyClient> {
  private static final int PORT = 50051;

  private PolicyClient(Connection connection) {
    super(connection, "policy_server");
  }

  /** A client with these options; it connects with its first call. */
  public static PolicyClient open(Options options) {
    return new PolicyClient(connect(options, PORT, "policy_server"));
  }

  @Override
  PolicyClient over(Connection other) {
    return new PolicyClient(other);
  }

  /** Answers a conversation: one start, deltas, one end. Session, type and versions are in {@code request.turn}. */
  public Responses<ChatResponse> chat(ChatRequest request) {
    return connection.stream(PolicyServiceGrpc.getChatMethod(), request);
  }

  /** Continues token ids: tokens, one end. */
  public Responses<GenerateResponse> generate(GenerateRequest request) {
    return connection.stream(PolicyServiceGrpc.getGenerateMethod(), request);
  }

  /** Log-probabilities of given token ids. */
  public ScoreResponse score(ScoreRequest request) {
    return connection.unary(PolicyServiceGrpc.getScoreMethod(), request);
  }

  /** The same by the active version. */
  public ScoreResponse score(List<Integer> tokenIds) {
    return score(ScoreRequest.newBuilder().addAllTokenIds(tokenIds).build());
  }

  /** Says what somebody thinks of a turn or a session; gives the feedback's id. */
  public String feedback(Feedback feedback) {
    return connection
        .unary(
            PolicyServiceGrpc.getSubmitFeedbackMethod(),
            SubmitFeedbackRequest.newBuilder().setFeedback(feedback).build())
        .getFeedbackId();
  }

  /** A score from -1 to 1 for a turn, with a comment that may be empty; gives the feedback's id. */
  public String feedback(String turnId, double score, String comment) {
    return feedback(Feedback.newBuilder().setTurnId(turnId).setScore(score).setComment(comment).build());
  }

  /** The active version, and the manifests of those that can be activated. */
  public GetPolicyResponse policy() {
    return connection.unary(PolicyServiceGrpc.getGetPolicyMethod(), GetPolicyRequest.getDefaultInstance());
  }

  /** The state now, and at each change. */
  public Responses<WatchPolicyResponse> watch() {
    return connection.watch(PolicyServiceGrpc.getWatchPolicyMethod(), WatchPolicyRequest.getDefaultInstance());
  }

  /** Goes back, or forward again, to a kept version. */
  public ActivateVersionResponse activate(long version, String reason) {
    return activate(ActivateVersionRequest.newBuilder().setVersion(version).setReason(reason).build());
  }

  /** Makes a version the active one and stays with it, whatever the trainer offers. */
  public ActivateVersionResponse pin(long version, String reason) {
    return activate(ActivateVersionRequest.newBuilder().setVersion(version).setReason(reason).setPin(true).build());
  }

  /** Lifts the pin. */
  public ActivateVersionResponse unpin(String reason) {
    return activate(ActivateVersionRequest.newBuilder().setReason(reason).setPin(false).build());
  }

  /** Any of these. */
  public ActivateVersionResponse activate(ActivateVersionRequest request) {
    return connection.unary(PolicyServiceGrpc.getActivateVersionMethod(), request);
  }

  /** A kept version's tensors: one offer, then chunks. */
  public Responses<PolicyServiceFetchWeightsResponse> fetchWeights(PolicyServiceFetchWeightsRequest request) {
    return connection.stream(PolicyServiceGrpc.getFetchWeightsMethod(), request);
  }
}
