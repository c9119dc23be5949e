import org.openclaw.rl.EnvironmentClient;
import org.openclaw.rl.Lease;
import org.openclaw.rl.Options;
import org.openclaw.rl.v1.ResetResponse;
import org.openclaw.rl.v1.StepResponse;
import org.openclaw.rl.v1.TaskSplit;

/** A leased sandbox from acquire to release: java ... examples/Sandbox.java [HOST:PORT] */
public class Sandbox {
  public static void main(String[] args) {
    Options options = args.length > 0 ? Options.at(args[0]) : Options.defaults();
    try (EnvironmentClient environment = EnvironmentClient.open(options);
        Lease lease = environment.acquire("tool_call")) {
      String task = environment.tasks("tool_call", TaskSplit.TASK_SPLIT_TRAIN).get(0).getTaskId();
      ResetResponse start = lease.reset(task);
      System.out.println("goal: " + start.getGoal());
      StepResponse step = lease.step("{\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": 2}}");
      System.out.println("seen: " + step.getObservation().getJson() + step.getError());
      System.out.println("outcome: " + lease.evaluate().getOutcome());
    } // renewed until here, then given back
  }
}
