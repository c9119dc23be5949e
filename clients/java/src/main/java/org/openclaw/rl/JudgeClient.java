package org.openclaw.rl;

import java.util.List;
import org.openclaw.rl.v1.JudgeRequest;
import org.openclaw.rl.v1.JudgeServiceGrpc;
import org.openclaw.rl.v1.JudgeTransitionsRequest;
import org.openclaw.rl.v1.JudgeTransitionsResponse;
import org.openclaw.rl.v1.Judgement;
import org.openclaw.rl.v1.ListJudgementsRequest;
import org.openclaw.rl.v1.Transition;
import org.openclaw.rl.v1.WatchJudgementsRequest;
import org.openclaw.rl.v1.WatchJudgementsResponse;

/** The judge: votes on transitions. */
public final class JudgeClient extends Component<JudgeClient> {
  private static final int PORT = 50053;

  private JudgeClient(Connection connection) {
    super(connection, "prm_judge");
  }

  /** A client with these options; it connects with its first call. */
  public static JudgeClient open(Options options) {
    return new JudgeClient(connect(options, PORT, "prm_judge"));
  }

  @Override
  JudgeClient over(Connection other) {
    return new JudgeClient(other);
  }

  /** Judges a transition now; it is not kept. Its turn needs messages and response only. */
  public Judgement judge(Transition transition) {
    return connection
        .unary(JudgeServiceGrpc.getJudgeMethod(), JudgeRequest.newBuilder().setTransition(transition).build())
        .getJudgement();
  }

  /** Each judgement as it is made; of all sessions when the id is empty. */
  public Responses<WatchJudgementsResponse> watch(String sessionId) {
    return connection.watch(
        JudgeServiceGrpc.getWatchJudgementsMethod(),
        WatchJudgementsRequest.newBuilder().setSessionId(sessionId).build());
  }

  /** The judgements of turns, as far as there are some; at most 1000 turns. */
  public List<Judgement> judgements(List<String> turnIds) {
    return connection
        .unary(
            JudgeServiceGrpc.getListJudgementsMethod(), ListJudgementsRequest.newBuilder().addAllTurnIds(turnIds).build())
        .getJudgementsList();
  }

  /** The environment server's stream of transitions, for one of your own make. */
  public Delivery<Transition> deliver(Delivery.Settings settings, Outbox<Transition> outbox) {
    return new Delivery<>(settings, outbox, new Ring<>(connection, JudgeServiceGrpc.getJudgeTransitionsMethod(),
        batch -> JudgeTransitionsRequest.newBuilder().addAllTransitions(batch).build(),
        JudgeTransitionsResponse::getAcksList));
  }
}
