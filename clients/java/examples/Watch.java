import org.openclaw.rl.Options;
import org.openclaw.rl.PolicyClient;
import org.openclaw.rl.Responses;
import org.openclaw.rl.v1.WatchPolicyResponse;

/** Each version that becomes active, also over restarts of the policy server: java ... examples/Watch.java [HOST:PORT] */
public class Watch {
  public static void main(String[] args) {
    Options options = args.length > 0 ? Options.at(args[0]) : Options.defaults();
    try (PolicyClient policy = PolicyClient.open(options);
        Responses<WatchPolicyResponse> watch = policy.watch()) {
      policy.check().warnings().forEach(System.err::println);
      for (WatchPolicyResponse change : watch) { // until Ctrl-C
        System.out.println("version " + change.getState().getActiveVersion() + " is active"
            + (change.getState().getPinned() ? ", pinned" : ""));
      }
    }
  }
}
