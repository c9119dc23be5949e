package org.openclaw.rl.trainer;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.openclaw.rl.Delivery;
import org.openclaw.rl.MemoryOutbox;
import org.openclaw.rl.Options;
import org.openclaw.rl.TrainerClient;
import org.openclaw.rl.v1.Ack;
import org.openclaw.rl.v1.Sample;
import org.openclaw.rl.v1.SampleFate;
import org.openclaw.rl.v1.SampleStatus;

/** The real process: killed and started again. */
class ProcessTest {
  private static final String READY = "trainer serves gRPC on ";

  private static Process start(String... options) throws IOException {
    List<String> command = new ArrayList<>(List.of(
        Path.of(System.getProperty("java.home"), "bin", "java").toString(), "-XX:TieredStopAtLevel=1", "-cp",
        System.getProperty("java.class.path"), Main.class.getName()));
    command.addAll(List.of(options));
    return new ProcessBuilder(command).redirectError(ProcessBuilder.Redirect.DISCARD).start();
  }

  private static String address(Process process) throws IOException {
    String line = new BufferedReader(new InputStreamReader(process.getInputStream(), StandardCharsets.UTF_8)).readLine();
    assertTrue(line != null && line.startsWith(READY), "it said: " + line);
    return line.substring(READY.length());
  }

  @Test
  void nothingIsLostOrDoneTwiceByAKill(@TempDir Path folder) throws Exception {
    try (FakePolicy policy = new FakePolicy()) {
      policy.neverAnswersOffers = true; // so that a version is on its way when it is killed
      killed(folder, policy);
      assertEquals(List.of(), policy.faults);
    }
  }

  private static void killed(Path folder, FakePolicy policy) throws Exception {
    String[] options = {"--listen", "127.0.0.1:0", "--data", folder.toString(), "--policy", policy.address(),
        "--min-samples", "1", "--mesh", Given.OURS};
    Process process = start(options);
    List<String> acknowledged = new ArrayList<>();
    try (TrainerClient client = TrainerClient.open(Options.at(address(process)).withMesh(Given.OURS));
        Delivery<Sample> delivery = client.deliver(Delivery.Settings.defaults(), new MemoryOutbox<>())) {
      List<CompletableFuture<Ack>> sent = new ArrayList<>();
      for (int i = 0; i < 300; i++) {
        sent.add(delivery.send("t" + i, Given.sample("t" + i, -1, "Answer in one short sentence")));
      }
      sent.get(100).get(60, TimeUnit.SECONDS);
      Given.until("a version is on its way", () -> !policy.offers.isEmpty());
      process.destroyForcibly().waitFor();
      for (int i = 0; i < 300; i++) {
        if (sent.get(i).isDone()) {
          acknowledged.add("t" + i);
        }
      }
    }
    assertTrue(acknowledged.size() > 100);
    policy.neverAnswersOffers = false;
    Process again = start(options);
    try (TrainerClient client = TrainerClient.open(Options.at(address(again)).withMesh(Given.OURS))) {
      Given.until("all are trained on", () -> client.samples(List.of()).isEmpty());
      List<SampleStatus> kept = client.samples(acknowledged);
      assertEquals(acknowledged.size(), kept.size());
      assertTrue(kept.stream().allMatch(sample -> sample.getFate() == SampleFate.SAMPLE_FATE_TRAINED), kept.toString());
      List<String> trained = client.versions().getVersionsList().stream()
          .flatMap(version -> version.getManifest().getTurnIdsList().stream()).toList();
      assertEquals(trained.stream().distinct().toList(), trained);
      assertTrue(trained.containsAll(acknowledged));
      Given.until("the newest is active",
          () -> policy.state().getActiveVersion() == client.status().getPolicyVersion());
      again.destroy(); // SIGTERM
      assertTrue(again.waitFor(20, TimeUnit.SECONDS));
      assertEquals(0, again.exitValue());
    } finally {
      again.destroyForcibly();
    }
  }

  @Test
  void badOptionsAreRefused() throws Exception {
    for (List<String> bad : List.of(List.of("--data", "d"), List.of("--data", "d", "--policy", "http://127.0.0.1:1"),
        List.of("--data", "d", "--policy", "127.0.0.1:1", "--listen", "0.0.0.0:0"))) {
      Process process = start(bad.toArray(new String[0]));
      assertTrue(process.waitFor(30, TimeUnit.SECONDS));
      assertEquals(2, process.exitValue());
    }
  }
}
