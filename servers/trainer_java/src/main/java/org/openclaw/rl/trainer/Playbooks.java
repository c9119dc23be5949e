package org.openclaw.rl.trainer;

import com.google.protobuf.ByteString;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.protobuf.util.JsonFormat;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.HexFormat;
import java.util.zip.CRC32C;
import org.openclaw.rl.v1.Playbook;
import org.openclaw.rl.v1.TensorEncoding;
import org.openclaw.rl.v1.TensorSpec;
import org.openclaw.rl.v1.WeightChunk;

/** A playbook as the one tensor that a version of an API model has. */
final class Playbooks {
  static final String TENSOR = "playbook";
  static final String TYPE = "U8";
  /** Bytes of the tensor, at most. */
  static final int MAX_BYTES = 1 << 20;
  /** Bytes of a chunk, at most. */
  static final int CHUNK = 1 << 20;

  private static final JsonFormat.Printer PRINTER = JsonFormat.printer().omittingInsignificantWhitespace();

  private Playbooks() {}

  /** The tensor's bytes: proto3's JSON form. */
  static byte[] dump(Playbook playbook) {
    try {
      return PRINTER.print(playbook).getBytes(StandardCharsets.UTF_8);
    } catch (InvalidProtocolBufferException impossible) { // a Playbook has no Any
      throw new IllegalStateException(impossible);
    }
  }

  static Playbook parse(byte[] data) {
    try {
      Playbook.Builder builder = Playbook.newBuilder();
      JsonFormat.parser().ignoringUnknownFields().merge(new String(data, StandardCharsets.UTF_8), builder);
      return builder.build();
    } catch (InvalidProtocolBufferException error) {
      throw new IllegalStateException("a version's playbook is damaged: " + error.getMessage(), error);
    }
  }

  static TensorSpec spec(byte[] data) {
    return TensorSpec.newBuilder().setName(TENSOR).setDtype(TYPE).addShape(data.length)
        .setEncoding(TensorEncoding.TENSOR_ENCODING_DENSE).setEncodedBytes(data.length)
        .setSha256(ByteString.copyFrom(sha256(data))).build();
  }

  /** Digest of a version with this one tensor: over its name, type, shape and digest, with zero bytes between. */
  static String digest(byte[] data) {
    byte[] head = (TENSOR + "\0" + TYPE + "\0" + data.length + "\0").getBytes(StandardCharsets.UTF_8);
    return HexFormat.of().formatHex(sha256(head, sha256(data)));
  }

  /** A piece of the transfer. */
  static WeightChunk chunk(long version, byte[] data, int offset, int size) {
    CRC32C crc = new CRC32C();
    crc.update(data, offset, size);
    return WeightChunk.newBuilder().setVersion(version).setOffset(offset)
        .setData(ByteString.copyFrom(data, offset, size)).setCrc32C((int) crc.getValue()).build();
  }

  static byte[] sha256(byte[]... parts) {
    try {
      MessageDigest digest = MessageDigest.getInstance("SHA-256");
      for (byte[] part : parts) {
        digest.update(part);
      }
      return digest.digest();
    } catch (NoSuchAlgorithmException impossible) { // every Java has it
      throw new IllegalStateException(impossible);
    }
  }
}
