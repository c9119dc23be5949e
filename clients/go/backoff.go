package openclaw

import (
	"context"
	"math/rand/v2"
	"time"
)

// Backoff is how long to wait between attempts: First, then twice as long each time up to Max, and at random up to a
// fifth more. What is not positive is as in DefaultBackoff.
type Backoff struct {
	First, Max time.Duration
}

// DefaultBackoff begins with a tenth of a second and ends at five.
var DefaultBackoff = Backoff{First: 100 * time.Millisecond, Max: 5 * time.Second}

// after is the pause before attempt n (from 0), at least as long as the server asked for.
func (b Backoff) after(n int, err *Error) time.Duration {
	first, most := b.First, b.Max
	if first <= 0 {
		first = DefaultBackoff.First
	}
	if most <= 0 {
		most = max(first, DefaultBackoff.Max)
	}
	pause := min(first, most)
	for ; n > 0 && pause < most; n-- { // a shift would overflow in a long outage
		pause = min(2*pause, most)
	}
	pause += time.Duration(rand.Int64N(int64(pause)/5 + 1))
	if err != nil {
		pause = max(pause, err.RetryAfter)
	}
	return pause
}

// sleep waits; false when the context ended first.
func sleep(ctx context.Context, pause time.Duration) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
