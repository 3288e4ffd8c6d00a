package streams

import (
	"errors"
	"fmt"

	"warmpath/routing/prefix"
	pb "warmpath/schemas/warmpathv1"
)

// Reasons of an InvalidKVError.
const (
	// InvalidDecode: the payload is not of its schema, or the schema is unknown.
	InvalidDecode = "decode"
	// InvalidSchema: the message is not a KV batch.
	InvalidSchema = "schema"
	// InvalidContent: a field of the batch cannot be.
	InvalidContent = "content"
	// InvalidReplica: the batch is of another replica than its subject names.
	InvalidReplica = "replica"
)

// InvalidKVError is why a message of a KV stream is no step of an index.
type InvalidKVError struct {
	// Reason is one of the Invalid constants.
	Reason string
	Err    error
}

// Error is the reason and what was found.
func (e *InvalidKVError) Error() string { return e.Reason + ": " + e.Err.Error() }

// Unwrap returns what was found.
func (e *InvalidKVError) Unwrap() error { return e.Err }

// KVBatch reads a message of a KV stream: the batch as it was published, and as
// an index applies it. The error is an *InvalidKVError. Everybody who folds a KV
// stream must leave out exactly the messages for which it returns one, so that
// all reach the same index; the next batch of their replica shows a gap.
func KVBatch(e Event) (*pb.KVBatch, prefix.Batch, error) {
	invalid := func(reason string, err error) (*pb.KVBatch, prefix.Batch, error) {
		return nil, prefix.Batch{}, &InvalidKVError{reason, err}
	}
	message, err := Decode(e.Schema, e.Data)
	if err != nil {
		return invalid(InvalidDecode, err)
	}
	batch, ok := message.(*pb.KVBatch)
	if !ok {
		return invalid(InvalidSchema, errors.New("it is a "+e.Schema))
	}
	step, err := prefix.FromProto(batch, e.Seq)
	if err != nil {
		return invalid(InvalidContent, err)
	}
	// Permissions are by subject: who may publish for one replica must not be able
	// to change what is known of another.
	if named := SubjectReplica(e.Subject); named != batch.Replica {
		return invalid(InvalidReplica, fmt.Errorf("batch is of replica %.100q, its subject names %q", batch.Replica, named))
	}
	return batch, step, nil
}
