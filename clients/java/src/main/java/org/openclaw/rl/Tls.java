package org.openclaw.rl;

import io.grpc.ChannelCredentials;
import io.grpc.Status;
import io.grpc.TlsChannelCredentials;
import java.io.IOException;
import java.io.InputStream;
import java.net.Socket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.KeyFactory;
import java.security.KeyStore;
import java.security.PublicKey;
import java.security.Signature;
import java.security.cert.Certificate;
import java.security.cert.CertificateException;
import java.security.cert.CertificateFactory;
import java.security.cert.X509Certificate;
import java.security.spec.PKCS8EncodedKeySpec;
import java.util.Base64;
import java.util.Collection;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import javax.net.ssl.SSLEngine;
import javax.net.ssl.TrustManager;
import javax.net.ssl.TrustManagerFactory;
import javax.net.ssl.X509ExtendedTrustManager;

/**
 * Certificates of a connection.
 *
 * @param authority file with the mesh's CA (PEM)
 * @param certificate file with this side's certificate (PEM); null with a bearer key
 * @param key file with its key (PEM, PKCS 8); null with a bearer key
 * @param byRole the server is expected under the mesh's own names (component.openclaw-rl.internal and, in its
 *     certificate, ROLE.openclaw-rl.internal); else under that of its host
 */
public record Tls(Path authority, Path certificate, Path key, boolean byRole) {
  /** The name that all components of a mesh have in their certificates. */
  static final String ANY_COMPONENT = "component.openclaw-rl.internal";

  private static final int DNS_NAME = 2;
  private static final Pattern PKCS8 =
      Pattern.compile("-----BEGIN PRIVATE KEY-----([^-]+)-----END PRIVATE KEY-----");

  /** Mutual TLS with ca.crt, ROLE.crt and ROLE.key of a folder that `openclaw-rl init` made; people's is "operator". */
  public static Tls mutual(Path folder, String role) {
    return new Tls(folder.resolve("ca.crt"), folder.resolve(role + ".crt"), folder.resolve(role + ".key"), true);
  }

  /** For a bearer key: the server's certificate is checked against this CA, and this side has none. */
  public static Tls authority(Path authority) {
    return new Tls(authority, null, null, false);
  }

  /** The same, the server expected under the mesh's own names, whatever address leads to it. */
  public Tls underMeshNames() {
    return new Tls(authority, certificate, key, true);
  }

  /** The same, the server expected under its host's name: for certificates of your own. */
  public Tls underHostNames() {
    return new Tls(authority, certificate, key, false);
  }

  /**
   * What gRPC makes a connection with.
   *
   * @param role the component that must be there; empty takes any
   */
  ChannelCredentials credentials(String role) {
    try {
      TlsChannelCredentials.Builder made = TlsChannelCredentials.newBuilder();
      if (certificate != null) {
        checkPair();
        made.keyManager(certificate.toFile(), key.toFile());
      }
      X509ExtendedTrustManager trust = trust(authority);
      return made.trustManager(byRole && !role.isEmpty() ? new Expecting(trust, role) : trust).build();
    } catch (IOException | GeneralSecurityException error) {
      throw new MeshException(Status.Code.FAILED_PRECONDITION, "BAD_CERTIFICATES",
          "the certificates can't be used (" + authority + (certificate == null ? "" : ", " + certificate + ", " + key)
              + "): " + error.getMessage() + "; `openclaw-rl certs show` tells what is in them");
    }
  }

  /** A key of another certificate would be found out by the other side only, and told as a handshake that failed. */
  private void checkPair() throws IOException, GeneralSecurityException {
    PublicKey open;
    try (InputStream file = Files.newInputStream(certificate)) {
      open = CertificateFactory.getInstance("X.509").generateCertificate(file).getPublicKey();
    }
    Matcher pem = PKCS8.matcher(Files.readString(key));
    String algorithm = switch (open.getAlgorithm()) {
      case "EC" -> "SHA256withECDSA";
      case "RSA" -> "SHA256withRSA";
      default -> "";
    };
    if (algorithm.isEmpty() || !pem.find()) {
      return; // of another form, which gRPC takes or refuses
    }
    Signature signature = Signature.getInstance(algorithm);
    signature.initSign(KeyFactory.getInstance(open.getAlgorithm())
        .generatePrivate(new PKCS8EncodedKeySpec(Base64.getMimeDecoder().decode(pem.group(1)))));
    byte[] signed = signature.sign();
    signature.initVerify(open);
    if (!signature.verify(signed)) {
      throw new GeneralSecurityException(key + " is not the key of " + certificate);
    }
  }

  private static X509ExtendedTrustManager trust(Path authority) throws IOException, GeneralSecurityException {
    KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
    store.load(null, null);
    try (InputStream file = Files.newInputStream(authority)) {
      int number = 0;
      for (Certificate one : CertificateFactory.getInstance("X.509").generateCertificates(file)) {
        store.setCertificateEntry("ca" + number++, one);
      }
    }
    TrustManagerFactory factory = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
    factory.init(store);
    for (TrustManager manager : factory.getTrustManagers()) {
      if (manager instanceof X509ExtendedTrustManager found) {
        return found;
      }
    }
    throw new GeneralSecurityException("this Java has no trust manager for " + authority);
  }

  /**
   * Trusts the component of one role. Java takes no underscore in the name that it expects a server under, so TLS looks
   * for the name of any component and this for the role's.
   */
  private static final class Expecting extends X509ExtendedTrustManager {
    private final X509ExtendedTrustManager chain;
    private final String name;

    Expecting(X509ExtendedTrustManager chain, String role) {
      this.chain = chain;
      this.name = role + ".openclaw-rl.internal";
    }

    private void expect(X509Certificate certificate) throws CertificateException {
      Collection<List<?>> names = certificate.getSubjectAlternativeNames();
      if (names == null || names.stream().noneMatch(n -> n.get(0).equals(DNS_NAME) && name.equals(n.get(1)))) {
        throw new CertificateException("it does not name " + name + ", which is expected there");
      }
    }

    @Override
    public void checkServerTrusted(X509Certificate[] given, String type, SSLEngine engine) throws CertificateException {
      chain.checkServerTrusted(given, type, engine);
      expect(given[0]);
    }

    @Override
    public void checkServerTrusted(X509Certificate[] given, String type, Socket socket) throws CertificateException {
      chain.checkServerTrusted(given, type, socket);
      expect(given[0]);
    }

    @Override
    public void checkServerTrusted(X509Certificate[] given, String type) throws CertificateException {
      chain.checkServerTrusted(given, type);
      expect(given[0]);
    }

    @Override
    public void checkClientTrusted(X509Certificate[] given, String type, SSLEngine engine) throws CertificateException {
      chain.checkClientTrusted(given, type, engine);
    }

    @Override
    public void checkClientTrusted(X509Certificate[] given, String type, Socket socket) throws CertificateException {
      chain.checkClientTrusted(given, type, socket);
    }

    @Override
    public void checkClientTrusted(X509Certificate[] given, String type) throws CertificateException {
      chain.checkClientTrusted(given, type);
    }

    @Override
    public X509Certificate[] getAcceptedIssuers() {
      return chain.getAcceptedIssuers();
    }
  }
}
