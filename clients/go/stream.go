package openclaw

import (
	"context"
	"io"
	"iter"

	"google.golang.org/grpc/codes"
)

// receiver is the reading half of any stream.
type receiver[T any] interface {
	Recv() (*T, error)
}

// once is one stream as an iterator: it begins with the loop, and ends with the loop, the context, the server's end or
// the first error.
func once[T any, S receiver[T]](ctx context.Context, open func(context.Context) (S, error)) iter.Seq2[*T, error] {
	return func(yield func(*T, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel() // leaving the loop cancels the call at the server
		stream, err := open(ctx)
		if err != nil {
			yield(nil, err)
			return
		}
		for {
			message, err := stream.Recv()
			if err == io.EOF {
				return
			}
			if err != nil {
				yield(nil, err)
				return
			}
			if !yield(message, nil) {
				return
			}
		}
	}
}

// watch is the same stream again and again, with growing pauses, until the loop is left, the context ends, or an error
// comes that time does not mend.
func watch[T any, S receiver[T]](ctx context.Context, o *options, name string,
	open func(context.Context) (S, error)) iter.Seq2[*T, error] {
	if !o.reconnect {
		return once(ctx, open)
	}
	return func(yield func(*T, error) bool) {
		for attempt := 0; ; attempt++ {
			var failed *Error
			for message, err := range once(ctx, open) {
				if err != nil {
					failed = AsError(err)
					break
				}
				attempt = 0
				if !yield(message, nil) {
					return
				}
			}
			if ctx.Err() != nil {
				yield(nil, convert(ctx.Err(), o.address, name))
				return
			}
			if failed != nil && lasting(failed) {
				yield(nil, failed)
				return
			}
			pause := o.backoff.after(attempt, failed)
			o.logger.Info("the stream broke; connecting again", "stream", name, "address", o.address, "error", text(failed),
				"pause", pause)
			if !sleep(ctx, pause) {
				yield(nil, convert(ctx.Err(), o.address, name))
				return
			}
		}
	}
}

// lasting tells whether an error stays however often the call is repeated.
func lasting(e *Error) bool {
	switch e.Code {
	case codes.InvalidArgument, codes.NotFound, codes.PermissionDenied, codes.Unauthenticated, codes.Unimplemented,
		codes.FailedPrecondition, codes.OutOfRange, codes.AlreadyExists:
		return e.RetryAfter == 0
	}
	return false
}

func text(e *Error) string {
	if e == nil {
		return "the server ended it"
	}
	return e.Error()
}
