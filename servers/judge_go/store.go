package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"
	"google.golang.org/protobuf/proto"

	pb "github.com/openclaw-rl/openclaw-rl/clients/go/gen/openclaw_rl/v1"
)

const (
	// keepTurns are the newest turns whose ids and judgements are kept. An id comes again only while its sender lacks
	// the ack, so that is far more than a window.
	keepTurns = 50_000
	// keepRefused and keepRefusedBytes bound the refused messages, of either side, that are kept for a person to look at.
	keepRefused      = 1_000
	keepRefusedBytes = 64 << 20
	// byTrainer begins the reason of a refused sample; else the message is a transition.
	byTrainer = "by the trainer: "
)

// The buckets of state.db. Numbers are big-endian, so that keys are in order; a "stamped" value begins with a time.
var (
	known      = []byte("known")      // turn id -> its number, digest of its transition
	order      = []byte("order")      // number -> turn id
	queue      = []byte("queue")      // number -> stamped Transition that waits for a model's votes
	judgements = []byte("judgements") // turn id -> WatchJudgementsResponse
	samples    = []byte("samples")    // number -> stamped Sample that the trainer has not acknowledged: the outbox
	sampleOf   = []byte("sample_of")  // turn id -> its number in samples
	refused    = []byte("refused")    // number -> reason, zero byte, message
	counters   = []byte("counters")   // name -> count
	forgotten  = []byte("forgotten")  // mark of a session or turn -> time before which it is not taken
)

// store is the judge's file: each change is one transaction, which is on the disk when it returns.
type store struct {
	path    string
	changed chan struct{} // gets a value when there are new samples
	queued  chan struct{} // the same for the queue

	mutex   sync.RWMutex // for writing: the file is exchanged
	db      *bolt.DB
	waiting waiting
}

// waiting is what waits, known without reading the file.
type waiting struct {
	sync.Mutex
	samples, bytes, queue int64
	trouble               error // of the last transaction
}

func openStore(folder string) (s *store, err error) {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, err
	}
	s = &store{path: filepath.Join(folder, "state.db"), changed: make(chan struct{}, 1), queued: make(chan struct{}, 1)}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true)) // of pages that are missing
	defer func() {
		if broken := recover(); broken != nil {
			err = s.unusable(fmt.Errorf("a part of it makes no sense: %v", broken))
		}
	}()
	if err := s.open(); err != nil {
		return nil, err
	}
	err = s.update(func(tx *txn) error {
		if file, err := os.Stat(s.path); err != nil || file.Size() < tx.Size() {
			return s.unusable(errors.Join(err, errors.New("its end is missing")))
		}
		for _, name := range [][]byte{known, order, queue, judgements, samples, sampleOf, refused, counters, forgotten} {
			if _, err := tx.CreateBucketIfNotExists(name); err != nil {
				return err
			}
		}
		tx.bucket(queue).each(func(_, value []byte) { tx.queue++ })
		tx.bucket(samples).each(func(_, value []byte) { tx.samples++; tx.bytes += int64(len(value) - 8) })
		return nil
	})
	return s, err
}

func (s *store) open() error {
	db, err := bolt.Open(s.path, 0o600, &bolt.Options{Timeout: 2 * time.Second, FreelistType: bolt.FreelistMapType})
	if errors.Is(err, bolt.ErrTimeout) {
		return fmt.Errorf("%s is in use by another judge: stop that one, or give another --data", s.path)
	}
	if err != nil {
		return s.unusable(err)
	}
	s.db = db
	return errors.Join(os.RemoveAll(s.path+".new"), syncFolder(filepath.Dir(s.path))) // a scrub that was cut off left that
}

func (s *store) unusable(err error) error {
	return fmt.Errorf("%s can't be used: %w; if it is damaged, move it away (what waits in it is lost then)", s.path, err)
}

func (s *store) close() error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.db.Close()
}

// update is one transaction; what it changed of what waits is told after its commit.
func (s *store) update(change func(*txn) error) error {
	s.mutex.RLock()
	defer s.mutex.RUnlock()
	var tx *txn
	err := s.db.Update(func(plain *bolt.Tx) error {
		tx = &txn{Tx: plain}
		return change(tx)
	})
	s.waiting.Lock()
	defer s.waiting.Unlock()
	if s.waiting.trouble = err; err != nil {
		return err
	}
	s.waiting.samples += tx.samples
	s.waiting.bytes += tx.bytes
	s.waiting.queue += tx.queue
	if tx.samples > 0 {
		wake(s.changed)
	}
	if tx.queue > 0 {
		wake(s.queued)
	}
	return nil
}

func (s *store) view(read func(*txn) error) error {
	s.mutex.RLock()
	defer s.mutex.RUnlock()
	return s.db.View(func(plain *bolt.Tx) error { return read(&txn{Tx: plain}) })
}

// scrub writes the file anew, without the unused pages in which deleted messages can still be read.
func (s *store) scrub() error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	fresh := s.path + ".new"
	to, err := bolt.Open(fresh, 0o600, nil)
	if err != nil {
		return err
	}
	err = bolt.Compact(to, s.db, 1<<20)
	if err := errors.Join(err, to.Close()); err != nil {
		return errors.Join(err, os.Remove(fresh))
	}
	if err := s.db.Close(); err != nil {
		return err
	}
	return errors.Join(os.Rename(fresh, s.path), syncFolder(filepath.Dir(s.path)), s.open())
}

// syncFolder puts on the disk which file has which name: without it, a power failure could bring the old file back.
func syncFolder(folder string) error {
	opened, err := os.Open(folder)
	if err != nil {
		return err
	}
	return errors.Join(opened.Sync(), opened.Close())
}

func wake(to chan struct{}) {
	select {
	case to <- struct{}{}:
	default:
	}
}

// txn is a transaction, with what it changes of what waits.
type txn struct {
	*bolt.Tx
	samples, bytes, queue int64
}

type bucket struct{ *bolt.Bucket }

func (t *txn) bucket(name []byte) bucket { return bucket{t.Bucket(name)} }

// add puts a value under the next number, which it returns.
func (b bucket) add(value []byte) (uint64, error) {
	number, err := b.NextSequence()
	if err != nil {
		return 0, err
	}
	return number, b.Put(key(number), value)
}

func (b bucket) each(do func(key, value []byte)) {
	_ = b.ForEach(func(key, value []byte) error { do(key, value); return nil })
}

// keep deletes the oldest but for so many; gone is told of each.
func (b bucket) keep(most uint64, gone func(value []byte) error) error {
	for cursor := b.Cursor(); ; {
		first, value := cursor.First()
		if first == nil || binary.BigEndian.Uint64(first)+most > b.Sequence() {
			return nil
		}
		if err := errors.Join(gone(value), b.Delete(first)); err != nil {
			return err
		}
	}
}

// take remembers a transition's id: new, or known with the same content, or with another one (forged).
func (t *txn) take(transition *pb.Transition, payload []byte) (isNew, forged bool, err error) {
	id := []byte(transition.Turn.TurnId)
	hash := fnv.New64a()
	_, _ = hash.Write(payload)
	digest := hash.Sum(nil)
	if before := t.bucket(known).Get(id); before != nil {
		return false, string(before[8:]) != string(digest), nil
	}
	number, err := t.bucket(order).add(id)
	if err != nil {
		return false, false, err
	}
	if err := t.bucket(known).Put(id, append(key(number), digest...)); err != nil {
		return false, false, err
	}
	return true, false, t.bucket(order).keep(keepTurns, func(id []byte) error {
		return errors.Join(t.bucket(known).Delete(id), t.bucket(judgements).Delete(id))
	})
}

// enqueue lets a transition wait for a model.
func (t *txn) enqueue(payload []byte) error {
	t.queue++
	_, err := t.bucket(queue).add(stamped(payload))
	return err
}

// judged keeps a judgement and puts the sample into the outbox.
func (t *txn) judged(transition *pb.Transition, judgement *pb.Judgement) error {
	id := []byte(transition.Turn.TurnId)
	kept, err := proto.Marshal(&pb.WatchJudgementsResponse{Judgement: judgement, SessionId: transition.Turn.SessionId})
	if err != nil {
		return err
	}
	sample, err := proto.Marshal(&pb.Sample{Transition: transition, Judgement: judgement})
	if err != nil {
		return err
	}
	number, err := t.bucket(samples).add(stamped(sample))
	t.samples++
	t.bytes += int64(len(sample))
	failed := 0
	for _, vote := range judgement.Votes {
		if vote.Error != "" {
			failed++
		}
	}
	fate := map[int32]string{1: "positive", 0: "neutral", -1: "negative"}[judgement.Score]
	if judgement.Failed {
		fate = "judgements_failed"
	}
	return errors.Join(err, t.bucket(judgements).Put(id, kept), t.bucket(sampleOf).Put(id, key(number)),
		t.count("judgements", 1), t.count("votes", len(judgement.Votes)), t.count("votes_failed", failed), t.count(fate, 1))
}

// unsend takes a turn's sample out of the outbox; nil when there is none.
func (t *txn) unsend(id string) (payload []byte, err error) {
	number := t.bucket(sampleOf).Get([]byte(id))
	if number == nil {
		return nil, nil
	}
	if value := t.bucket(samples).Get(number); value != nil {
		payload = value[8:]
	}
	return payload, errors.Join(t.takeOut(number), t.bucket(sampleOf).Delete([]byte(id)))
}

// takeOut deletes a sample by its number.
func (t *txn) takeOut(number []byte) error {
	if value := t.bucket(samples).Get(number); value != nil {
		t.samples--
		t.bytes -= int64(len(value) - 8)
	}
	return t.bucket(samples).Delete(number)
}

// refuse keeps a message that is not taken where a person can look.
func (t *txn) refuse(reason string, payload []byte) error {
	aside := t.bucket(refused)
	_, err := aside.add(append([]byte(reason+"\x00"), payload...))
	number, size := 0, 0
	aside.each(func(_, value []byte) { number++; size += len(value) })
	for err == nil && (number > keepRefused || size > keepRefusedBytes) {
		oldest, value := aside.Cursor().First()
		number, size = number-1, size-len(value)
		err = aside.Delete(oldest)
	}
	return err
}

func (t *txn) count(name string, more int) error {
	if more == 0 {
		return nil
	}
	before := uint64(0)
	if value := t.bucket(counters).Get([]byte(name)); value != nil {
		before = binary.BigEndian.Uint64(value)
	}
	return t.bucket(counters).Put([]byte(name), key(before+uint64(more)))
}

func key(number uint64) []byte { return binary.BigEndian.AppendUint64(nil, number) }

func stamped(payload []byte) []byte {
	return append(key(uint64(time.Now().UnixNano())), payload...)
}

func stamp(value []byte) time.Time { return time.Unix(0, int64(binary.BigEndian.Uint64(value))) }
