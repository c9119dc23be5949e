package main

import (
	"encoding/binary"

	"google.golang.org/protobuf/proto"

	openclaw "github.com/openclaw-rl/openclaw-rl/clients/go"
	pb "github.com/openclaw-rl/openclaw-rl/clients/go/gen/openclaw_rl/v1"
)

// sampleOutbox is the store as the sender sees it.
type sampleOutbox struct{ *store }

var _ openclaw.Outbox[*pb.Sample] = sampleOutbox{}

func (o sampleOutbox) Changed() <-chan struct{} { return o.changed }

func (o sampleOutbox) Next(after uint64, limit, bytes int) (entries []openclaw.Entry[*pb.Sample], err error) {
	err = o.view(func(tx *txn) error {
		cursor := tx.bucket(samples).Cursor()
		for at, value := cursor.Seek(key(after + 1)); at != nil && len(entries) < limit; at, value = cursor.Next() {
			if bytes -= len(value); bytes < 0 && len(entries) > 0 {
				break
			}
			sample := &pb.Sample{}
			if err := proto.Unmarshal(value[8:], sample); err != nil || sample.GetTransition().GetTurn() == nil {
				continue // damaged on the disk: it stays there, and in the count of what waits; the others go on
			}
			entries = append(entries, openclaw.Entry[*pb.Sample]{Seq: binary.BigEndian.Uint64(at),
				ID: sample.Transition.Turn.TurnId, Message: sample, Size: len(value) - 8})
		}
		return nil
	})
	return entries, err
}

func (o sampleOutbox) Settle(acks []*pb.Ack) error {
	return o.update(func(tx *txn) error {
		for _, ack := range acks {
			payload, err := tx.unsend(ack.Id)
			if err == nil && payload != nil && ack.Status == pb.AckStatus_ACK_STATUS_REJECTED {
				err = tx.refuse(byTrainer+ack.Reason, payload)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}
