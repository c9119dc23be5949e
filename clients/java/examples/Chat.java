import org.openclaw.rl.MeshException;
import org.openclaw.rl.Messages;
import org.openclaw.rl.Options;
import org.openclaw.rl.PolicyClient;
import org.openclaw.rl.Responses;
import org.openclaw.rl.v1.ChatRequest;
import org.openclaw.rl.v1.ChatResponse;
import org.openclaw.rl.v1.SamplingParams;
import org.openclaw.rl.v1.TurnOptions;

/** A streamed answer in a session, and what the user thinks of it: java ... examples/Chat.java [HOST:PORT] [QUESTION] */
public class Chat {
  public static void main(String[] args) {
    Options options = args.length > 0 ? Options.at(args[0]) : Options.defaults();
    String question = args.length > 1 ? args[1] : "Name three birds.";
    ChatRequest request = ChatRequest.newBuilder()
        .addMessages(Messages.user(question))
        .setTurn(TurnOptions.newBuilder().setSessionId("my-first-session"))
        .setSampling(SamplingParams.newBuilder().setMaxTokens(60))
        .build();
    try (PolicyClient policy = PolicyClient.open(options);
        Responses<ChatResponse> answer = policy.chat(request)) {
      String turnId = "";
      for (ChatResponse piece : answer) {
        switch (piece.getEventCase()) {
          case START -> {
            turnId = piece.getStart().getTurnId();
            System.out.println("version " + piece.getStart().getPolicyVersion() + ":");
          }
          case DELTA -> {
            System.out.print(piece.getDelta().getContent());
            System.out.flush();
          }
          default -> System.out.println();
        }
      }
      policy.feedback(turnId, 1, "just what I wanted");
      System.out.println("thumbs up for " + turnId);
    } catch (MeshException error) {
      System.err.println(error); // what is wrong and what to do
      System.exit(1);
    }
  }
}
