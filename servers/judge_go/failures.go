package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	openclaw "github.com/openclaw-rl/openclaw-rl/clients/go"
)

// failure is an error with the details that the contract asks for. retryAfter is 0 when repeating makes no sense.
func failure(code codes.Code, reason, message string, retryAfter time.Duration) error {
	return &openclaw.Error{Code: code, Reason: reason, Message: message, RetryAfter: retryAfter}
}

// invalid is about bad fields, given as field, description, field, description ...
func invalid(fields ...string) error {
	e := &openclaw.Error{Code: codes.InvalidArgument, Reason: "INVALID_ARGUMENT"}
	var texts []string
	for i := 0; i < len(fields); i += 2 {
		e.Violations = append(e.Violations, openclaw.Violation{Field: fields[i], Description: fields[i+1]})
		texts = append(texts, fields[i]+": "+fields[i+1])
	}
	e.Message = strings.Join(texts, "; ")
	return e
}

// asStatus gives any error the details of the contract. What is no status is a fault of ours: the log has it under the
// incident's id, and the caller learns only that.
func asStatus(err error, method string) error {
	if err == nil {
		return nil
	}
	if err == io.EOF {
		return failure(codes.InvalidArgument, "INVALID_ARGUMENT", "the call has no message", 0)
	}
	s, is := status.FromError(err)
	switch {
	case is && len(s.Details()) > 0:
		return err
	case is && s.Code() == codes.Internal && strings.Contains(s.Message(), "unmarshal"):
		return failure(codes.InvalidArgument, "INVALID_ARGUMENT", "a message is not of the type that the contract says", 0)
	case is && s.Code() == codes.ResourceExhausted && strings.Contains(s.Message(), "larger than max"):
		return failure(s.Code(), "RESOURCE_EXHAUSTED", fmt.Sprintf("a message has at most %d bytes: %s", openclaw.MaxMessage, s.Message()), 0)
	case is:
		e := openclaw.AsError(err) // has the code's name as the reason
		return failure(e.Code, e.Reason, e.Message, 0)
	case errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT):
		return failure(codes.ResourceExhausted, "DISK_FULL", "the judge's disk is full; free some space", 5*time.Second)
	case errors.Is(err, bolt.ErrDatabaseNotOpen):
		return stopping
	}
	if e := openclaw.AsError(err); e.Code == codes.Canceled || e.Code == codes.DeadlineExceeded {
		return failure(e.Code, e.Reason, e.Message, 0)
	}
	incident := rand.Text()
	slog.Error("internal error", "incident", incident, "method", method, "error", err)
	return failure(codes.Internal, "INTERNAL", "internal error; the component's log has more under incident "+incident, 0)
}

var stopping = failure(codes.Unavailable, "UNAVAILABLE", "this server is stopping; connect again", time.Second)
