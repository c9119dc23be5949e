package openclaw

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"
)

// Domain is the ErrorInfo.domain of the mesh's own errors.
const Domain = "openclaw-rl"

// Reasons that this package makes itself, beside those of the components' catalogue and gRPC's code names.
const (
	// ReasonContractMismatch: the component speaks another major version of the contract.
	ReasonContractMismatch = "CONTRACT_MISMATCH"
	// ReasonWrongComponent: another component answers at the address.
	ReasonWrongComponent = "WRONG_COMPONENT"
	// ReasonWrongMesh: the component belongs to another mesh than [WithMesh] says, or asks for the name of one.
	ReasonWrongMesh = "WRONG_MESH"
	// ReasonNoAck: the receiver of a ring stream did not acknowledge a message in time.
	ReasonNoAck = "NO_ACK"
	// ReasonForeignAck: the receiver of a ring stream acknowledged a message that was never sent.
	ReasonForeignAck = "FOREIGN_ACK"
	// ReasonLeaseClosed: the lease was given back by this program.
	ReasonLeaseClosed = "LEASE_CLOSED"
)

// Violation is a field with a value that is not allowed.
type Violation struct {
	// Field is its path, such as "sampling.temperature".
	Field string
	// Description says what is wrong with it.
	Description string
}

// Error is the one kind of error of this package's calls.
type Error struct {
	// Code is gRPC's code.
	Code codes.Code
	// Reason is a key of the mesh's error catalogue, one of the Reason constants, or the code's name in capitals when
	// the server told none.
	Reason string
	// Message says what is wrong, and where the server knows it, what to do.
	Message string
	// Advice says what to do about an error that this side has recognised (nothing listens there, TLS on one side only,
	// HTTP/1, ...); empty otherwise.
	Advice string
	// Violations are the bad fields of an INVALID_ARGUMENT.
	Violations []Violation
	// RetryAfter is the pause that the server asks for; 0 when it asks for none.
	RetryAfter time.Duration
	// Metadata has more, by name.
	Metadata map[string]string
	// Address is whom the call was for; empty when unknown.
	Address string
	// Method is the RPC, such as "PolicyService/Chat"; empty when unknown.
	Method string

	cause error
}

// Error says what is wrong and what to do.
func (e *Error) Error() string {
	var b strings.Builder
	if e.Method != "" {
		b.WriteString(e.Method)
		b.WriteString(" ")
	}
	if e.Address != "" {
		fmt.Fprintf(&b, "at %s: ", e.Address)
	} else if b.Len() > 0 {
		b.WriteString(": ")
	}
	fmt.Fprintf(&b, "%s: %s", e.Reason, e.Message)
	for _, v := range e.Violations {
		if !strings.Contains(e.Message, v.Field) {
			fmt.Fprintf(&b, "; %s: %s", v.Field, v.Description)
		}
	}
	if e.Advice != "" {
		fmt.Fprintf(&b, ". %s", e.Advice)
	}
	if e.RetryAfter > 0 {
		fmt.Fprintf(&b, " (worth repeating after %s)", e.RetryAfter)
	}
	return b.String()
}

// Retryable tells whether the same call may succeed later.
func (e *Error) Retryable() bool {
	return e.RetryAfter > 0 || e.Code == codes.Unavailable || e.Code == codes.Aborted
}

// Unwrap gives the error that gRPC gave, if any.
func (e *Error) Unwrap() error { return e.cause }

// Is lets errors.Is recognise ends by the caller's own context.
func (e *Error) Is(target error) bool {
	return target == context.DeadlineExceeded && e.Code == codes.DeadlineExceeded ||
		target == context.Canceled && e.Code == codes.Canceled
}

// GRPCStatus lets google.golang.org/grpc/status read the error, its details included; so a server may return an Error
// of its own.
func (e *Error) GRPCStatus() *status.Status {
	if e.cause != nil {
		if s, ok := status.FromError(e.cause); ok {
			return s
		}
	}
	details := []protoadapt.MessageV1{&errdetails.ErrorInfo{Reason: e.Reason, Domain: Domain, Metadata: e.Metadata}}
	if len(e.Violations) > 0 {
		bad := &errdetails.BadRequest{}
		for _, v := range e.Violations {
			bad.FieldViolations = append(bad.FieldViolations, &errdetails.BadRequest_FieldViolation{Field: v.Field, Description: v.Description})
		}
		details = append(details, bad)
	}
	if e.RetryAfter > 0 {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(e.RetryAfter)})
	}
	s := status.New(e.Code, e.Message)
	if full, err := s.WithDetails(details...); err == nil {
		return full
	}
	return s
}

// AsError gives the *Error that err is or wraps; one of any other error is made of its text. nil and io.EOF give nil.
func AsError(err error) *Error {
	if err == nil || err == io.EOF {
		return nil
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	s, ok := status.FromError(err)
	if !ok {
		s = status.FromContextError(err)
	}
	e := &Error{Code: s.Code(), Reason: codeName(s.Code()), Message: s.Message(), cause: err}
	for _, detail := range s.Details() {
		switch d := detail.(type) {
		case *errdetails.ErrorInfo:
			if d.Reason != "" {
				e.Reason = d.Reason
			}
			e.Metadata = maps.Clone(d.Metadata)
		case *errdetails.BadRequest:
			for _, v := range d.FieldViolations {
				e.Violations = append(e.Violations, Violation{v.Field, v.Description})
			}
		case *errdetails.RetryInfo:
			e.RetryAfter = d.RetryDelay.AsDuration()
		}
	}
	e.Advice = advice(e)
	return e
}

// convert makes the *Error of a call; nil and io.EOF pass.
func convert(err error, address, method string) error {
	if err == nil || err == io.EOF {
		return err
	}
	e := AsError(err)
	if e.Address == "" && e.Method == "" {
		e.Address, e.Method = address, strings.TrimPrefix(strings.TrimPrefix(method, "/"), "openclaw_rl.v1.")
	}
	return e
}

// codeName is the code's name as the contract writes it, such as INVALID_ARGUMENT.
func codeName(code codes.Code) string {
	var b strings.Builder
	name := code.String()
	for i, r := range name {
		if i > 0 && r >= 'A' && r <= 'Z' && name[i-1] >= 'a' {
			b.WriteByte('_')
		}
		b.WriteRune(r)
	}
	if code == codes.Canceled {
		return "CANCELLED"
	}
	return strings.ToUpper(b.String())
}
