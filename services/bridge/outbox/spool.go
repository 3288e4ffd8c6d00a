package outbox

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
)

// errSpoolFull is returned when a record would pass the spool's bound.
var errSpoolFull = errors.New("spool is full")

// recordHeader is length, checksum and seq of a record.
const recordHeader = 4 + 4 + 8

// spool is a first-in first-out file of batches that wait for the server: block
// keys, no token ids. It does not outlive the process: what is in it can be had
// again from the engine, and what cannot begins a new epoch. Not safe for
// concurrent use.
type spool struct {
	dir   string
	limit int64
	file  *os.File // nil while empty

	read, write int64
	count       int
}

// put appends a record. Its error is errSpoolFull or the file system's.
func (s *spool) put(seq uint64, data []byte) error {
	size := int64(recordHeader + len(data))
	if s.write+size > s.limit {
		return errSpoolFull
	}
	if s.file == nil {
		file, err := os.CreateTemp(s.dir, "warmpath-bridge-*.spool")
		if err != nil {
			return fmt.Errorf("spool: %w", err)
		}
		// Without a name it cannot be left behind.
		if err := os.Remove(file.Name()); err != nil {
			return errors.Join(fmt.Errorf("spool: %w", err), file.Close())
		}
		s.file = file
	}
	record := make([]byte, recordHeader, size)
	binary.LittleEndian.PutUint32(record, uint32(len(data)))
	binary.LittleEndian.PutUint32(record[4:], crc32.ChecksumIEEE(data))
	binary.LittleEndian.PutUint64(record[8:], seq)
	if _, err := s.file.WriteAt(append(record, data...), s.write); err != nil {
		return fmt.Errorf("spool: %w", err)
	}
	s.write += size
	s.count++
	return nil
}

// take removes the oldest record; ok is false when there is none.
func (s *spool) take() (seq uint64, data []byte, ok bool, err error) {
	if s.count == 0 {
		return 0, nil, false, nil
	}
	var header [recordHeader]byte
	if _, err := s.file.ReadAt(header[:], s.read); err != nil {
		return 0, nil, false, fmt.Errorf("spool: %w", err)
	}
	data = make([]byte, binary.LittleEndian.Uint32(header[:]))
	if _, err := s.file.ReadAt(data, s.read+recordHeader); err != nil {
		return 0, nil, false, fmt.Errorf("spool: %w", err)
	}
	if crc32.ChecksumIEEE(data) != binary.LittleEndian.Uint32(header[4:]) {
		return 0, nil, false, errors.New("spool: a record is not what was written; look at the disk")
	}
	s.read += int64(recordHeader + len(data))
	s.count--
	if s.count == 0 {
		s.read, s.write = 0, 0
		if err := s.file.Truncate(0); err != nil {
			return 0, nil, false, fmt.Errorf("spool: %w", err)
		}
	}
	return binary.LittleEndian.Uint64(header[8:]), data, true, nil
}

// bytes is what waits on disk.
func (s *spool) bytes() int64 { return s.write - s.read }

// close forgets everything and gives the disk back.
func (s *spool) close() {
	if s.file != nil {
		_ = s.file.Close() // it has no name, and nothing in it is wanted
	}
	*s = spool{dir: s.dir, limit: s.limit}
}
