package zmq

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"testing"
)

var records = []Record{
	{Kind: RecordBegan, Frame: Frame{AtUS: 1, Payload: []byte("bridge")}},
	{Kind: RecordConnected, Source: "vllm-0", Frame: Frame{AtUS: 2, Payload: []byte{}}},
	{Kind: RecordFrame, Source: "vllm-0.dp1", Frame: Frame{AtUS: 1795986000000000, Topic: []byte("kv@10.0.0.1:5557@m"), Seq: 1 << 63, Payload: []byte{0x93, 0, 1}}},
	{Kind: RecordReplay, Source: "vllm-0", Frame: Frame{AtUS: -3, Topic: []byte{}, Seq: 7, Payload: bytes.Repeat([]byte("p"), 1000)}},
	{Kind: RecordLost, Source: "vllm-0", Frame: Frame{AtUS: 4, Payload: []byte("replay began at 9, wanted 7")}},
}

func readAll(t *testing.T, b []byte) (got []Record, cut int64, err error) {
	t.Helper()
	r, err := NewCaptureReader(bytes.NewReader(b))
	for err == nil {
		var rec Record
		if rec, err = r.Next(); err == nil {
			got = append(got, rec)
		}
	}
	if errors.Is(err, io.EOF) {
		_, cut = r.Cut()
		return got, cut, nil
	}
	return got, 0, err
}

func capture(t *testing.T, path string, limit int64) *CaptureWriter {
	t.Helper()
	w, err := CreateCapture(path, limit)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	return w
}

func same(a, b Record) bool {
	return a.Kind == b.Kind && a.Source == b.Source && a.Frame.AtUS == b.Frame.AtUS && a.Frame.Seq == b.Frame.Seq &&
		bytes.Equal(a.Frame.Topic, b.Frame.Topic) && bytes.Equal(a.Frame.Payload, b.Frame.Payload)
}

func TestCaptureRoundTripAndCutAtEveryByte(t *testing.T) {
	path := filepath.Join(t.TempDir(), "capture")
	w := capture(t, path, 0)
	ends := []int64{w.size}
	for _, r := range records {
		if err := w.Write(r); err != nil {
			t.Fatal(err)
		}
		ends = append(ends, w.size)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if info, _ := os.Stat(path); info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", info.Mode())
	}
	for n := range len(whole) + 1 {
		got, cut, err := readAll(t, whole[:n])
		want, last := 0, int64(0)
		for i, end := range ends {
			if int64(n) >= end {
				want, last = i, end
			}
		}
		if err != nil || len(got) != want || cut != int64(n)-last {
			t.Fatalf("cut at byte %d: %d records, %d bytes cut, %v; want %d, %d", n, len(got), cut, err, want, int64(n)-last)
		}
		for i, r := range got {
			if !same(r, records[i]) {
				t.Fatalf("record %d: got %+v", i, r)
			}
		}
	}
	for n := range whole { // every byte matters
		bad := bytes.Clone(whole)
		bad[n] ^= 0x10
		if got, cut, err := readAll(t, bad); err == nil && cut == 0 {
			t.Errorf("damage at byte %d went unseen: %d records", n, len(got))
		}
	}
}

func TestCaptureIsAppendedTo(t *testing.T) {
	for _, cut := range []int64{0, 1, 5, 1 << 20} {
		path := filepath.Join(t.TempDir(), "capture")
		w := capture(t, path, 0)
		for _, r := range records[:3] {
			if err := w.Write(r); err != nil {
				t.Fatal(err)
			}
		}
		size := w.size
		w.Close()
		if err := os.Truncate(path, max(size-cut, 3)); err != nil { // 3: in the header
			t.Fatal(err)
		}
		if err := os.Chmod(path, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := capture(t, path, 0).Write(records[4]); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		got, left, err := readAll(t, b)
		want := []RecordKind{RecordBegan, RecordConnected, RecordFrame, RecordLost}
		switch {
		case cut > size:
			want = want[3:]
		case cut > 0:
			want = []RecordKind{RecordBegan, RecordConnected, RecordLost}
		}
		var kinds []RecordKind
		for _, r := range got {
			kinds = append(kinds, r.Kind)
		}
		if err != nil || left != 0 || !reflect.DeepEqual(kinds, want) {
			t.Errorf("after a cut of %d: %v, %d bytes cut, %v", cut, kinds, left, err)
		}
		if info, _ := os.Stat(path); info.Mode().Perm() != 0o600 {
			t.Errorf("mode %v", info.Mode())
		}
	}
}

func TestCaptureLimit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "capture")
	w := capture(t, path, 600)
	for i, want := range []error{nil, nil, nil, ErrCaptureFull, nil} { // the fourth has 1000 bytes
		if err := w.Write(records[i]); !errors.Is(err, want) {
			t.Errorf("record %d: %v", i, err)
		}
	}
	if err := w.Write(Record{Source: string(make([]byte, 1<<16))}); err == nil {
		t.Error("a source of 64 KiB was taken")
	}
	if w.Dropped() != 2 {
		t.Errorf("dropped %d", w.Dropped())
	}
	b, _ := os.ReadFile(path)
	if got, cut, err := readAll(t, b); len(got) != 4 || cut != 0 || err != nil {
		t.Errorf("%d records, %d cut, %v", len(got), cut, err)
	}
}

func TestCaptureLeavesOtherFilesAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notes")
	if err := os.WriteFile(path, []byte("something else entirely, and dear to someone"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := CreateCapture(path, 0); !errors.Is(err, ErrDamaged) {
		t.Errorf("got %v", err)
	}
	if b, _ := os.ReadFile(path); string(b) != "something else entirely, and dear to someone" {
		t.Errorf("the file now holds %q", b)
	}
}

func FuzzCaptureReader(f *testing.F) {
	whole := []byte(captureHeader)
	for _, r := range records {
		whole = appendRecord(whole, r)
	}
	f.Add(whole)
	f.Fuzz(func(t *testing.T, b []byte) {
		got, cut, err := readAll(t, b)
		if err != nil {
			return
		}
		again := []byte(captureHeader)
		for _, r := range got {
			again = appendRecord(again, r)
		}
		if len(b)-int(cut) >= len(captureHeader) && !bytes.Equal(again, b[:len(b)-int(cut)]) {
			t.Error("a capture that was read is not written the same")
		}
	})
}
