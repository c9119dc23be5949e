package org.openclaw.rl.trainer;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.openclaw.rl.Delivery;
import org.openclaw.rl.JudgeClient;
import org.openclaw.rl.MemoryOutbox;
import org.openclaw.rl.MeshException;
import org.openclaw.rl.Options;
import org.openclaw.rl.Tls;
import org.openclaw.rl.TrainerClient;
import org.openclaw.rl.v1.AckStatus;
import org.openclaw.rl.v1.ComponentStatus;
import org.openclaw.rl.v1.Sample;

class TlsTest {
  @Test
  void rolesAreCheckedOnBothSides(@TempDir Path folder) throws Exception {
    Path mesh = Files.createDirectory(folder.resolve("mesh"));
    Path other = Files.createDirectory(folder.resolve("other"));
    Certificates.make(mesh, "ours", List.of("trainer", "prm_judge", "operator"));
    Certificates.make(other, "theirs", List.of("operator"));
    try (TrainerServer server = new TrainerServer(new TrainerServer.Settings("127.0.0.1", 0, folder.resolve("data"),
        "127.0.0.1:1", mesh, "", new Learner.Limits(20, 1_600, 8, -0.2), new Trainer.Pace(4, Duration.ofHours(1))))) {
      Options options = Options.at(server.address());
      try (TrainerClient judge = TrainerClient.open(options.withTls(Tls.mutual(mesh, "prm_judge")));
          Delivery<Sample> delivery = judge.deliver(Delivery.Settings.defaults(), new MemoryOutbox<>())) {
        assertEquals(AckStatus.ACK_STATUS_ACCEPTED,
            delivery.send("t", Given.sample("t", 1, "")).get(30, TimeUnit.SECONDS).getStatus());
        assertEquals("WRONG_ROLE", assertThrows(MeshException.class, judge::trainNow).reason());
        ComponentStatus status = judge.status();
        assertTrue(status.getSecure() && status.hasCertificateExpiresAt());
      }
      try (TrainerClient operator = TrainerClient.open(options.withTls(Tls.mutual(mesh, "operator")));
          Delivery<Sample> delivery = operator.deliver(Delivery.Settings.defaults(), new MemoryOutbox<>())) {
        assertEquals(1, operator.samples(List.of("t")).size());
        delivery.send("u", Given.sample("u", 1, ""));
        Given.until("it is refused", () -> delivery.problem().isPresent());
        assertEquals("WRONG_ROLE", delivery.problem().get().reason());
      }
      // A client of the judge doesn't take the trainer for it, wherever the address leads.
      try (JudgeClient lost = JudgeClient.open(options.withTls(Tls.mutual(mesh, "operator")))) {
        MeshException error = assertThrows(MeshException.class, lost::status);
        assertTrue(error.getMessage().contains("prm_judge.openclaw-rl.internal"), error.toString());
      }
      for (Options bad : List.of(options, options.withTls(Tls.authority(mesh.resolve("ca.crt")).underMeshNames()),
          options.withTls(Tls.mutual(other, "operator")))) {
        try (TrainerClient stranger = TrainerClient.open(bad)) {
          assertThrows(MeshException.class, stranger::status);
        }
      }
      MeshException missing = assertThrows(MeshException.class,
          () -> TrainerClient.open(options.withTls(Tls.mutual(folder, "operator"))));
      assertEquals("BAD_CERTIFICATES", missing.reason());
      Files.copy(mesh.resolve("ca.crt"), folder.resolve("ca.crt"));
      Files.copy(mesh.resolve("operator.crt"), folder.resolve("operator.crt"));
      Files.copy(other.resolve("operator.key"), folder.resolve("operator.key"));
      MeshException mixed = assertThrows(MeshException.class,
          () -> TrainerClient.open(options.withTls(Tls.mutual(folder, "operator"))));
      assertEquals("BAD_CERTIFICATES", mixed.reason());
      assertTrue(mixed.getMessage().contains("operator.key is not the key of"), mixed.getMessage());
      assertThrows(java.security.cert.CertificateException.class, () -> Roles.read(mesh.resolve("operator.crt")));
    }
  }
}
