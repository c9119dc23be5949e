package org.openclaw.rl;

import io.grpc.Status;
import java.util.ArrayList;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.openclaw.rl.v1.ComponentStatus;

/** The contract that this package speaks, and whether a component speaks it too. */
public final class Contract {
  /** MAJOR.MINOR, as in protos/VERSION. */
  public static final String CONTRACT_VERSION = "1.1";

  private static final Pattern VERSION = Pattern.compile("(\\d{1,6})\\.(\\d{1,6})");

  /**
   * What a component that can be used said of itself.
   *
   * @param component its name, such as "policy_server"
   * @param contractVersion what it speaks
   * @param warnings what a caller should know, such as that it lacks what a newer contract added; usually empty
   * @param status all that it said
   */
  public record Report(String component, String contractVersion, List<String> warnings, ComponentStatus status) {}

  private Contract() {}

  /**
   * Compares.
   *
   * @param status what the component said
   * @param expected its name, such as "policy_server"
   * @param address where it is, for the message
   * @throws MeshException CONTRACT_MISMATCH or WRONG_COMPONENT
   */
  static Report check(ComponentStatus status, String expected, String address) {
    if (!status.getName().equals(expected)) {
      throw new MeshException(Status.Code.FAILED_PRECONDITION, "WRONG_COMPONENT",
          address + " is the " + status.getName() + ", not the " + expected
              + ": check the address; `openclaw-rl status` lists them");
    }
    String theirs = status.getContractVersion().isEmpty() ? "1.0" : status.getContractVersion();
    Matcher there = VERSION.matcher(theirs);
    Matcher here = VERSION.matcher(CONTRACT_VERSION);
    if (!there.matches() || !here.matches() || Integer.parseInt(there.group(1)) != Integer.parseInt(here.group(1))) {
      throw new MeshException(Status.Code.FAILED_PRECONDITION, "CONTRACT_MISMATCH",
          "the " + expected + " at " + address + " speaks contract " + theirs + ", this client " + CONTRACT_VERSION
              + ": they can't understand each other; take the client of that release, or update the mesh");
    }
    List<String> warnings = new ArrayList<>();
    if (Integer.parseInt(there.group(2)) < Integer.parseInt(here.group(2))) {
      warnings.add("the " + expected + " at " + address + " speaks contract " + theirs + ", older than this client's "
          + CONTRACT_VERSION + ": it does without what was added since");
    }
    return new Report(status.getName(), theirs, List.copyOf(warnings), status);
  }
}
