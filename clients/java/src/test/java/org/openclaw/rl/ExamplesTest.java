package org.openclaw.rl;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.grpc.stub.StreamObserver;
import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.Stream;
import javax.tools.ToolProvider;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.openclaw.rl.v1.ChatRequest;
import org.openclaw.rl.v1.ChatResponse;
import org.openclaw.rl.v1.Feedback;
import org.openclaw.rl.v1.PolicyServiceGrpc;
import org.openclaw.rl.v1.SubmitFeedbackRequest;
import org.openclaw.rl.v1.SubmitFeedbackResponse;

class ExamplesTest {
  private static final Path EXAMPLES = Path.of("examples");

  private static final class Policy extends PolicyServiceGrpc.PolicyServiceImplBase {
    private Feedback feedback;

    @Override
    public void chat(ChatRequest request, StreamObserver<ChatResponse> observer) {
      ChatResponse.Builder response = ChatResponse.newBuilder();
      response.getStartBuilder().setTurnId("turn_1").setPolicyVersion(7);
      observer.onNext(response.build());
      for (String word : List.of("wren, ", "robin, ", "owl")) {
        response.getDeltaBuilder().setContent(word);
        observer.onNext(response.build());
      }
      response.getEndBuilder();
      observer.onNext(response.build());
      observer.onCompleted();
    }

    @Override
    public void submitFeedback(SubmitFeedbackRequest request, StreamObserver<SubmitFeedbackResponse> observer) {
      feedback = request.getFeedback();
      observer.onNext(SubmitFeedbackResponse.getDefaultInstance());
      observer.onCompleted();
    }
  }

  @Test
  void theyCompileAndTheChatRuns(@TempDir Path classes) throws Exception {
    List<String> arguments = new ArrayList<>(List.of("-Xlint:all,-processing,-try", "-Werror", "-d", classes.toString(),
        "-cp", System.getProperty("java.class.path")));
    try (Stream<Path> files = Files.list(EXAMPLES)) {
      files.filter(file -> file.toString().endsWith(".java")).forEach(file -> arguments.add(file.toString()));
    }
    ByteArrayOutputStream said = new ByteArrayOutputStream();
    int result = ToolProvider.getSystemJavaCompiler().run(null, said, said, arguments.toArray(new String[0]));
    assertEquals(0, result, said.toString(StandardCharsets.UTF_8));
    try (Stream<String> lines = Files.lines(EXAMPLES.resolve("Chat.java"))) {
      assertTrue(lines.count() < 60);
    }
    Policy policy = new Policy();
    PrintStream out = System.out;
    said.reset();
    try (Fake fake = Fake.of(policy); URLClassLoader loader = new URLClassLoader(new URL[] {classes.toUri().toURL()})) {
      System.setOut(new PrintStream(said, true, StandardCharsets.UTF_8));
      loader.loadClass("Chat").getMethod("main", String[].class)
          .invoke(null, (Object) new String[] {"127.0.0.1:" + fake.port()});
    } finally {
      System.setOut(out);
    }
    String text = said.toString(StandardCharsets.UTF_8);
    assertTrue(text.contains("version 7:") && text.contains("wren, robin, owl"), text);
    assertEquals("turn_1", policy.feedback.getTurnId());
  }
}
