package org.openclaw.rl.trainer;

import java.net.InetAddress;
import java.net.UnknownHostException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.Callable;
import picocli.CommandLine;
import picocli.CommandLine.Command;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Option;
import picocli.CommandLine.ParameterException;
import picocli.CommandLine.Spec;

/** The command line. */
@Command(
    name = "openclaw-rl-trainer",
    version = "0.1.0",
    mixinStandardHelpOptions = true,
    sortOptions = false,
    usageHelpWidth = 110,
    description = "A trainer for policies that are APIs: what users ask for becomes a versioned playbook.",
    footer = {"", "Example:", "  java -jar openclaw-rl-trainer.jar --listen 127.0.0.1:50054 --data ./trainer "
        + "--policy 127.0.0.1:50051 --mesh $(openclaw-rl mesh id)"})
public final class Main implements Callable<Integer> {
  @Spec private CommandSpec spec;

  @Option(names = "--listen", defaultValue = "127.0.0.1:50054", paramLabel = "HOST:PORT",
      description = "Where it serves gRPC; port 0 takes a free one. Default: ${DEFAULT-VALUE}")
  private String listen;

  @Option(names = "--data", required = true, paramLabel = "DIR", description = "Where samples and versions are kept.")
  private Path data;

  @Option(names = "--policy", required = true, paramLabel = "HOST:PORT", description = "gRPC of the policy server.")
  private String policy;

  @Option(names = "--certs", paramLabel = "DIR",
      description = "Folder with ca.crt, trainer.crt and trainer.key: mutual TLS, as server and as client.")
  private Path certs;

  @Option(names = "--mesh", defaultValue = "${env:OPENCLAW_RL_MESH:-}", paramLabel = "ID",
      description = "The mesh that it belongs to (openclaw-rl mesh id): components of another one are refused. Default:"
          + " the variable OPENCLAW_RL_MESH, else the certificate's.")
  private String mesh;

  @Option(names = "--min-samples", defaultValue = "4", paramLabel = "N",
      description = "Samples with a score or a hint that start a step at once. Default: ${DEFAULT-VALUE}")
  private int minSamples;

  @Option(names = "--update-interval", defaultValue = "60", paramLabel = "SECONDS",
      description = "Time after which a step has fewer. Default: ${DEFAULT-VALUE}")
  private double updateInterval;

  @Option(names = "--max-entries", defaultValue = "20", paramLabel = "N",
      description = "Instructions of a playbook. Default: ${DEFAULT-VALUE}")
  private int maxEntries;

  @Option(names = "--max-characters", defaultValue = "1600", paramLabel = "N",
      description = "Characters of all instructions together, at most 64000. Default: ${DEFAULT-VALUE}")
  private int maxCharacters;

  @Option(names = "--min-uses", defaultValue = "8", paramLabel = "N",
      description = "Judged turns before an instruction can be found not to help. Default: ${DEFAULT-VALUE}")
  private int minUses;

  @Option(names = "--min-score", defaultValue = "-0.2", paramLabel = "X",
      description = "An instruction whose turns score less on the mean goes. Default: ${DEFAULT-VALUE}")
  private double minScore;

  /** Serves until it is told to stop. */
  public static void main(String[] args) {
    // Before anything logs: one line for each, to stderr.
    System.setProperty("java.util.logging.SimpleFormatter.format", "%1$tF %1$tT %4$s %3$s: %5$s%6$s%n");
    System.exit(new CommandLine(new Main()).execute(args));
  }

  @Override
  public Integer call() throws Exception {
    TrainerServer.Settings settings = settings();
    TrainerServer server;
    try {
      server = new TrainerServer(settings);
    } catch (Store.Failure | java.io.IOException | java.security.cert.CertificateException
        | org.openclaw.rl.MeshException error) {
      Throwable cause = error.getCause() == null ? error : error.getCause();
      System.err.println("it can't start: " + error.getMessage()
          + (cause == error ? "" : " (" + cause.getMessage() + ")"));
      return 1;
    }
    // On SIGTERM and SIGINT; halt, since an exit by a signal would not be 0.
    Runtime.getRuntime().addShutdownHook(new Thread(() -> {
      server.close();
      Runtime.getRuntime().halt(0);
    }, "stop"));
    System.out.println("trainer serves gRPC on " + server.address());
    System.out.flush();
    server.await();
    return 0;
  }

  private TrainerServer.Settings settings() {
    String[] where = hostAndPort("--listen", listen, 0);
    hostAndPort("--policy", policy, 1);
    require(!Files.exists(data) || Files.isDirectory(data), "--data", data, "a folder, which is made if need be");
    if (certs != null) {
      for (String file : List.of("ca.crt", "trainer.crt", "trainer.key")) {
        require(Files.isReadable(certs.resolve(file)), "--certs", certs, "a folder with " + file);
      }
    }
    require(certs != null || loopback(where[0]), "--listen", listen,
        "on loopback (127.0.0.1) without --certs, since anybody could call it");
    require(minSamples >= 1, "--min-samples", minSamples, "1 or more");
    require(updateInterval > 0 && updateInterval < 1e9, "--update-interval", updateInterval, "more than 0");
    require(maxEntries >= 1, "--max-entries", maxEntries, "1 or more");
    require(maxCharacters >= 240 && maxCharacters <= 64_000, "--max-characters", maxCharacters, "from 240 to 64000");
    require(minUses >= 1, "--min-uses", minUses, "1 or more");
    require(minScore >= -1 && minScore <= 1, "--min-score", minScore, "from -1 to 1");
    return new TrainerServer.Settings(where[0], Integer.parseInt(where[1]), data, policy, certs, mesh,
        new Learner.Limits(maxEntries, maxCharacters, minUses, minScore),
        new Trainer.Pace(minSamples, Duration.ofMillis(Math.max(1, Math.round(updateInterval * 1000)))));
  }

  private String[] hostAndPort(String option, String value, int least) {
    int colon = value.lastIndexOf(':');
    String port = value.substring(colon + 1);
    require(colon > 0 && value.substring(0, colon).matches("\\[[0-9a-fA-F:.%]+]|[^\\s:/@?#\\[\\]]+") && port.matches("\\d{1,5}") && Integer.parseInt(port) >= least && Integer.parseInt(port) <= 65_535,
        option, value, "HOST:PORT");
    return new String[] {value.substring(0, colon), port};
  }

  private static boolean loopback(String host) {
    try {
      return InetAddress.getByName(host).isLoopbackAddress();
    } catch (UnknownHostException unknown) {
      return false;
    }
  }

  private void require(boolean good, String option, Object value, String allowed) {
    if (!good) {
      throw new ParameterException(
          spec.commandLine(), option + ": " + value + " is not allowed: must be " + allowed);
    }
  }
}
