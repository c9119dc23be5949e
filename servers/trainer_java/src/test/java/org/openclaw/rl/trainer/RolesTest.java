package org.openclaw.rl.trainer;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import org.junit.jupiter.api.Test;
import org.openclaw.rl.v1.ComponentServiceGrpc;
import org.openclaw.rl.v1.TrainerServiceGrpc;

class RolesTest {
  private static final Roles.Identity OWN = new Roles.Identity("ours", "trainer");
  private static final List<String> ROLES = List.of("env_server", "operator", "policy_server", "prm_judge", "trainer");

  /** Who may call what, beside the methods that are the operator's alone. */
  private static final Map<String, Set<String>> ALLOWED = Map.of(
      "SubmitSamples", Set.of("prm_judge"),
      "FetchWeights", Set.of("policy_server"),
      "GetVersion", Set.of("operator", "policy_server"),
      "ListVersions", Set.of("operator", "policy_server"),
      "WatchTraining", Set.of("operator", "policy_server"),
      "GetStatus", new TreeSet<>(ROLES),
      "WatchStats", new TreeSet<>(ROLES));

  @Test
  void eachMethodIsForItsRoles() {
    List<io.grpc.MethodDescriptor<?, ?>> methods =
        new ArrayList<>(TrainerServiceGrpc.getServiceDescriptor().getMethods());
    methods.addAll(ComponentServiceGrpc.getServiceDescriptor().getMethods());
    for (io.grpc.MethodDescriptor<?, ?> method : methods) {
      Set<String> may = new TreeSet<>();
      for (String role : ROLES) {
        if (Roles.refuse(OWN, new Roles.Identity("ours", role), method.getFullMethodName()).isEmpty()) {
          may.add(role);
        }
        assertTrue(Roles.refuse(OWN, new Roles.Identity("theirs", role), method.getFullMethodName()).isPresent());
      }
      assertEquals(new TreeSet<>(ALLOWED.getOrDefault(method.getBareMethodName(), Set.of("operator"))), may,
          method.getFullMethodName());
    }
    assertTrue(Roles.refuse(OWN, new Roles.Identity("ours", "visitor"), "grpc.health.v1.Health/Check").isPresent());
    assertTrue(Roles.refuse(OWN, new Roles.Identity("ours", "env_server"), "grpc.health.v1.Health/Check").isEmpty());
  }
}
