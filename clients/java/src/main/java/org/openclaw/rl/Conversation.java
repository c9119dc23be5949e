package org.openclaw.rl;

import io.grpc.Status;
import io.grpc.StatusException;
import io.grpc.stub.BlockingClientCall;
import java.util.Arrays;
import java.util.Iterator;
import java.util.NoSuchElementException;
import org.openclaw.rl.v1.ChatMessage;
import org.openclaw.rl.v1.EnvironmentServiceGrpc;
import org.openclaw.rl.v1.InteractRequest;
import org.openclaw.rl.v1.InteractResponse;
import org.openclaw.rl.v1.Turn;
import org.openclaw.rl.v1.TurnOptions;

/** A live session over EnvironmentService.Interact: one answer after the other. For one thread. */
public final class Conversation implements AutoCloseable {
  private final Connection connection;
  private final TurnOptions options;
  private final BlockingClientCall<InteractRequest, InteractResponse> call;
  private boolean begun;
  private Reply last;

  Conversation(Connection connection, TurnOptions options) {
    this.connection = connection;
    this.options = options;
    this.call = connection.bidi(EnvironmentServiceGrpc.getInteractMethod());
  }

  /** Says something as the user. */
  public Reply say(String content) {
    return send(Messages.user(content));
  }

  /** Sends new messages, such as tools' results. An answer that was not read to its end is read first. */
  public Reply send(ChatMessage... messages) {
    return send(InteractRequest.newBuilder().addAllMessages(Arrays.asList(messages)).build());
  }

  /** The same, with tools and sampling; they stay for what is sent later. */
  public Reply send(InteractRequest request) {
    if (last != null) {
      last.turn();
    }
    InteractRequest whole = begun ? request : request.toBuilder().setTurn(options).build();
    connection.checkSize(EnvironmentServiceGrpc.getInteractMethod(), whole);
    try {
      if (!call.write(whole)) {
        last = null;
        read(); // throws why the stream has ended
        throw ended();
      }
    } catch (StatusException error) {
      throw connection.failed(EnvironmentServiceGrpc.getInteractMethod(), error);
    } catch (InterruptedException interrupted) {
      close();
      throw Connection.interrupted(EnvironmentServiceGrpc.getInteractMethod());
    }
    begun = true;
    last = new Reply();
    return last;
  }

  /** Ends the stream. The session stays open: `EnvironmentClient.endSession` ends that. */
  @Override
  public void close() {
    call.cancel("the caller closed the conversation", null);
  }

  private InteractResponse read() {
    try {
      return call.read();
    } catch (StatusException error) {
      throw connection.failed(EnvironmentServiceGrpc.getInteractMethod(), error);
    } catch (InterruptedException interrupted) {
      close();
      throw Connection.interrupted(EnvironmentServiceGrpc.getInteractMethod());
    }
  }

  private MeshException ended() {
    return new MeshException(Status.Code.UNAVAILABLE, "UNAVAILABLE",
        "the environment server has ended the stream; open another one with the same session id");
  }

  /** An answer: its text as it comes, then the whole turn. */
  public final class Reply implements Iterator<String>, Iterable<String> {
    private String next;
    private Turn turn;

    private Reply() {}

    @Override
    public boolean hasNext() {
      while (next == null && turn == null) {
        InteractResponse response = read();
        if (response == null) {
          throw ended();
        }
        if (response.hasTurn()) {
          turn = response.getTurn();
        } else if (response.hasContent()) {
          next = response.getContent();
        }
      }
      return next != null;
    }

    @Override
    public String next() {
      if (!hasNext()) {
        throw new NoSuchElementException();
      }
      String given = next;
      next = null;
      return given;
    }

    @Override
    public Iterator<String> iterator() {
      return this;
    }

    /** The complete turn; reads what is left of the text. */
    public Turn turn() {
      while (hasNext()) {
        next = null;
      }
      return turn;
    }
  }
}
