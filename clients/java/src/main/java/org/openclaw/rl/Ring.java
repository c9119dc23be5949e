package org.openclaw.rl;

import io.grpc.MethodDescriptor;
import java.util.List;
import java.util.function.Function;
import org.openclaw.rl.v1.Ack;

/**
 * One of the three streams round the ring.
 *
 * @param connection to the receiver
 * @param method the RPC
 * @param request a request that holds these messages
 * @param acks the acks of an answer
 */
record Ring<M, Q, A>(
    Connection connection,
    MethodDescriptor<Q, A> method,
    Function<List<M>, Q> request,
    Function<A, List<Ack>> acks) {}
