import java.nio.file.Path;
import org.openclaw.rl.JudgeClient;
import org.openclaw.rl.Messages;
import org.openclaw.rl.Options;
import org.openclaw.rl.Tls;
import org.openclaw.rl.v1.Judgement;
import org.openclaw.rl.v1.NextStateKind;
import org.openclaw.rl.v1.Transition;

/** Judges one exchange; with a folder of certificates over TLS: java ... examples/Judge.java [HOST:PORT] [CERTS] */
public class Judge {
  public static void main(String[] args) {
    Options options = args.length > 0 ? Options.at(args[0]) : Options.defaults();
    if (args.length > 1) {
      options = options.withTls(Tls.mutual(Path.of(args[1]), "operator"));
    }
    Transition.Builder exchange = Transition.newBuilder();
    exchange.getTurnBuilder()
        .addMessages(Messages.user("What is 2 + 2?"))
        .setResponse(Messages.assistant("4"));
    exchange.getNextStateBuilder()
        .setKind(NextStateKind.NEXT_STATE_KIND_CONTINUED)
        .addMessages(Messages.user("Thanks, that is exactly what I wanted!"));
    try (JudgeClient judge = JudgeClient.open(options)) {
      Judgement judgement = judge.judge(exchange.build());
      System.out.println("score " + judgement.getScore());
      judgement.getVotesList().forEach(vote -> System.out.println(vote.getJudge() + ": " + vote.getRationale()));
    }
  }
}
