package org.openclaw.rl.trainer;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.KeyStore;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;

/** A mesh's CA and certificates, made by the JDK's keytool. All roles have the same key, to save time. */
final class Certificates {
  private static final String PASSWORD = "changeit";

  private Certificates() {}

  static void make(Path folder, String mesh, List<String> roles) throws Exception {
    Path store = folder.resolve("keys.p12");
    keytool(store, "-genkeypair", "-alias", "ca", "-keyalg", "EC", "-dname", "CN=ca", "-ext", "bc:c", "-validity", "2");
    keytool(store, "-genkeypair", "-alias", "key", "-keyalg", "EC", "-dname", "CN=key", "-validity", "2");
    keytool(store, "-exportcert", "-alias", "ca", "-rfc", "-file", folder.resolve("ca.crt").toString());
    keytool(store, "-certreq", "-alias", "key", "-file", folder.resolve("key.csr").toString());
    String key = key(store);
    for (String role : roles) {
      keytool(store, "-gencert", "-alias", "ca", "-rfc", "-validity", "2", "-infile",
          folder.resolve("key.csr").toString(), "-outfile", folder.resolve(role + ".crt").toString(), "-dname",
          "CN=" + role, "-ext", "san=uri:spiffe://" + mesh + "/" + role + ",dns:component.openclaw-rl.internal"
              + (role.contains("_") ? "" : ",dns:" + role + ".openclaw-rl.internal")); // keytool takes no underscore
      Files.writeString(folder.resolve(role + ".key"), key);
    }
  }

  private static String key(Path store) throws IOException, GeneralSecurityException {
    KeyStore keys = KeyStore.getInstance("PKCS12");
    try (InputStream in = Files.newInputStream(store)) {
      keys.load(in, PASSWORD.toCharArray());
    }
    byte[] encoded = keys.getKey("key", PASSWORD.toCharArray()).getEncoded();
    return "-----BEGIN PRIVATE KEY-----\n" + Base64.getMimeEncoder(64, new byte[] {'\n'}).encodeToString(encoded)
        + "\n-----END PRIVATE KEY-----\n";
  }

  private static void keytool(Path store, String... arguments) throws Exception {
    List<String> command = new ArrayList<>(List.of(
        Path.of(System.getProperty("java.home"), "bin", "keytool").toString(), "-J-XX:TieredStopAtLevel=1"));
    command.addAll(List.of(arguments));
    command.addAll(List.of("-keystore", store.toString(), "-storetype", "PKCS12", "-storepass", PASSWORD));
    Process process = new ProcessBuilder(command).redirectErrorStream(true).start();
    String said = new String(process.getInputStream().readAllBytes(), java.nio.charset.StandardCharsets.UTF_8);
    assertEquals(0, process.waitFor(), said);
  }
}
