package org.openclaw.rl.trainer;

import io.grpc.Grpc;
import io.grpc.Metadata;
import io.grpc.ServerCall;
import io.grpc.ServerCallHandler;
import io.grpc.ServerInterceptor;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.cert.CertificateException;
import java.security.cert.CertificateFactory;
import java.security.cert.X509Certificate;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import javax.net.ssl.SSLPeerUnverifiedException;
import javax.net.ssl.SSLSession;

/** Lets in who may call what, by the role in the caller's certificate (spiffe://MESH/ROLE). */
final class Roles implements ServerInterceptor {
  private static final String PACKAGE = "openclaw_rl.v1.";
  private static final Set<String> ALL = Set.of("policy_server", "env_server", "prm_judge", "trainer", "operator");
  private static final Set<String> READERS = Set.of("policy_server", "operator");
  private static final Set<String> OPERATOR = Set.of("operator");

  private static final Map<String, Set<String>> TABLE = Map.of(
      "TrainerService/SubmitSamples", Set.of("prm_judge"),
      "TrainerService/FetchWeights", Set.of("policy_server"),
      "TrainerService/GetVersion", READERS,
      "TrainerService/ListVersions", READERS,
      "TrainerService/WatchTraining", READERS,
      "ComponentService/GetStatus", ALL,
      "ComponentService/WatchStats", ALL);

  private static final int URI = 6; // of a subject alternative name
  private static final Pattern SPIFFE = Pattern.compile("spiffe://([^/]+)/([^/]+)");
  private static final Pattern COMMON_NAME = Pattern.compile("(?:^|,)\\s*CN=([^,]+)");

  record Identity(String mesh, String role) {}

  private final Identity own;

  /** For a server with this certificate. */
  Roles(X509Certificate certificate) {
    own = identity(certificate);
  }

  static X509Certificate read(Path file) throws IOException, CertificateException {
    try (InputStream in = Files.newInputStream(file)) {
      X509Certificate certificate = (X509Certificate) CertificateFactory.getInstance("X.509").generateCertificate(in);
      if (!identity(certificate).role().equals("trainer")) {
        throw new CertificateException(file + " is not a trainer's: it is of " + identity(certificate));
      }
      return certificate;
    }
  }

  @Override
  public <Q, A> ServerCall.Listener<Q> interceptCall(
      ServerCall<Q, A> call, Metadata headers, ServerCallHandler<Q, A> next) {
    Optional<StatusRuntimeException> refusal = refuse(call);
    if (refusal.isEmpty()) {
      return next.startCall(call, headers);
    }
    Metadata trailers = refusal.get().getTrailers();
    call.close(refusal.get().getStatus(), trailers == null ? new Metadata() : trailers);
    return new ServerCall.Listener<>() {};
  }

  private Optional<StatusRuntimeException> refuse(ServerCall<?, ?> call) {
    SSLSession session = call.getAttributes().get(Grpc.TRANSPORT_ATTR_SSL_SESSION);
    try {
      Identity peer = identity((X509Certificate) session.getPeerCertificates()[0]);
      return refuse(own, peer, call.getMethodDescriptor().getFullMethodName());
    } catch (SSLPeerUnverifiedException none) {
      return Optional.of(Errors.of(Status.Code.UNAUTHENTICATED, "NO_CREDENTIALS", "a certificate of the mesh is needed"));
    }
  }

  /** What a caller is told who may not call this. */
  static Optional<StatusRuntimeException> refuse(Identity own, Identity peer, String method) {
    if (!peer.mesh().equals(own.mesh()) || !ALL.contains(peer.role())) {
      return Optional.of(Errors.of(Status.Code.PERMISSION_DENIED, "FOREIGN_MESH",
          "the certificate is not of a role in the mesh " + own.mesh() + ": it is " + peer));
    }
    if (!method.startsWith(PACKAGE)) { // health and reflection are open to the whole mesh
      return Optional.empty();
    }
    Set<String> allowed = TABLE.getOrDefault(method.substring(PACKAGE.length()), OPERATOR);
    return allowed.contains(peer.role()) ? Optional.empty() : Optional.of(Errors.of(Status.Code.PERMISSION_DENIED,
        "WRONG_ROLE", method + " is for " + String.join(", ", allowed) + "; the certificate says " + peer.role()));
  }

  static Identity identity(X509Certificate certificate) {
    try {
      if (certificate.getSubjectAlternativeNames() != null) {
        for (List<?> name : certificate.getSubjectAlternativeNames()) {
          Matcher matcher = SPIFFE.matcher(name.get(0).equals(URI) ? (String) name.get(1) : "");
          if (matcher.matches()) {
            return new Identity(matcher.group(1), matcher.group(2));
          }
        }
      }
    } catch (CertificateException unreadable) {
      return new Identity("", "");
    }
    Matcher matcher = COMMON_NAME.matcher(certificate.getSubjectX500Principal().getName());
    return new Identity("", matcher.find() ? matcher.group(1) : "");
  }
}
