package org.openclaw.rl;

import io.grpc.Status;
import java.net.InetAddress;
import java.net.UnknownHostException;
import java.time.Duration;

/**
 * How a client connects. Immutable; each method gives a changed copy.
 *
 * @param address HOST:PORT; empty takes the component's own port on 127.0.0.1
 * @param key bearer key; empty without one
 * @param tls certificates; null for plain text
 * @param deadline of calls with one answer; null for none. Streams have one only after {@code withDeadline}
 * @param maxMessageBytes longest message, both ways
 * @param reconnect watches begin anew when they break
 * @param mesh that must answer, and who calls; without an id any may
 */
public record Options(
    String address, String key, Tls tls, Duration deadline, int maxMessageBytes, boolean reconnect, Mesh mesh) {

  /** Longest message of a mesh, in bytes. */
  public static final int MAX_MESSAGE = 16 << 20;

  /** Plain text to this machine, 30 s for an answer, the mesh that the variable OPENCLAW_RL_MESH names. */
  public static Options defaults() {
    return new Options("", "", null, Duration.ofSeconds(30), MAX_MESSAGE, true, Mesh.ofEnvironment());
  }

  /** The component listens there. */
  public static Options at(String address) {
    return defaults().withAddress(address);
  }

  /** The component listens at HOST:PORT. */
  public Options withAddress(String value) {
    return new Options(value, key, tls, deadline, maxMessageBytes, reconnect, mesh);
  }

  /** Show this bearer key with each call. Over a network that takes TLS. */
  public Options withKey(String value) {
    return new Options(address, value, tls, deadline, maxMessageBytes, reconnect, mesh);
  }

  /** Encrypt the connection. */
  public Options withTls(Tls value) {
    return new Options(address, key, value, deadline, maxMessageBytes, reconnect, mesh);
  }

  /** Longest time for an answer; null for any. */
  public Options withDeadline(Duration value) {
    return new Options(address, key, tls, value, maxMessageBytes, reconnect, mesh);
  }

  /** Longest message, both ways. */
  public Options withMaxMessageBytes(int value) {
    return new Options(address, key, tls, deadline, value, reconnect, mesh);
  }

  /** Whether watches begin anew when they break. */
  public Options withReconnect(boolean value) {
    return new Options(address, key, tls, deadline, maxMessageBytes, value, mesh);
  }

  /**
   * The mesh with this id ({@code openclaw-rl mesh id}) must answer; each call names it. On plain text a component takes
   * no ring stream of a sender that names none. Empty for any.
   */
  public Options withMesh(String id) {
    return withMesh(id, "");
  }

  /** The same for a component of the mesh, such as "prm_judge". */
  public Options withMesh(String id, String component) {
    return new Options(address, key, tls, deadline, maxMessageBytes, reconnect, new Mesh(id, component));
  }

  /** Checks them. */
  void check() {
    int colon = address.lastIndexOf(':');
    String port = address.substring(colon + 1);
    // A host's name or IPv4 address, or an IPv6 one in brackets: no URL.
    if (colon < 1 || !address.substring(0, colon).matches("\\[[0-9a-fA-F:.%]+]|[^\\s:/@?#\\[\\]]+") || !port.matches("\\d{1,5}") || Integer.parseInt(port) == 0 || Integer.parseInt(port) > 65535) {
      throw bad("address: '" + address + "' is not allowed: must be HOST:PORT");
    }
    if (maxMessageBytes < 1) {
      throw bad("maxMessageBytes: " + maxMessageBytes + " is not allowed: must be 1 or more");
    }
    if (deadline != null && (deadline.isNegative() || deadline.isZero())) {
      throw bad("deadline: " + deadline + " is not allowed: must be more than 0, or null");
    }
    if (!key.isEmpty() && tls == null && !loopback(address.substring(0, colon))) {
      throw bad("key: it would be readable on the way to " + address + ": add withTls()");
    }
    if (!key.chars().allMatch(c -> c > 32 && c < 127)) {
      throw bad("key: it has characters that no key has (a line's end?)");
    }
  }

  private static boolean loopback(String host) {
    try {
      return InetAddress.getByName(host).isLoopbackAddress();
    } catch (UnknownHostException unknown) {
      return false;
    }
  }

  private static MeshException bad(String message) {
    return new MeshException(Status.Code.INVALID_ARGUMENT, "INVALID_ARGUMENT", message);
  }

  /** Without the key. */
  @Override
  public String toString() {
    return "Options[" + address + (tls == null ? ", plain text" : ", TLS") + (key.isEmpty() ? "" : ", with a key") + "]";
  }
}
