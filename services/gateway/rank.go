package gateway

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"

	pb "warmpath/schemas/warmpathv1"
)

// headerRank names the data-parallel rank of a request to vLLM and SGLang.
const headerRank = "X-Data-Parallel-Rank"

// maxRank bounds a rank: an engine that is asked for one that it does not have
// may fail as a whole.
const maxRank = 1 << 12

// rankOf is the data-parallel rank to name in a request to a replica: what the
// fleet says, or else the router, or else the replica's id <engine>.dp<rank>.
// Where two of them speak they must agree.
func rankOf(name string, entry *pb.FleetEntry, answered *uint32) (rank uint32, ok bool, err error) {
	known := entry.GetDataParallelRank()
	switch listed := entry != nil && entry.DataParallelRank != nil; {
	case listed && answered != nil && known != *answered:
		return 0, false, fmt.Errorf("replica %s has data-parallel rank %d by its fleet entry and %d by the router; wait for the router, or correct the bridge's ranks", name, known, *answered)
	case listed:
		rank, ok = known, true
	case answered != nil:
		rank, ok = *answered, true
	default:
		rank, ok = namedRank(name)
	}
	if ok && rank >= maxRank {
		return 0, false, fmt.Errorf("replica %s has data-parallel rank %d; ranks are below %d: correct the bridge's ranks", name, rank, maxRank)
	}
	return rank, ok, nil
}

// namedRank returns the rank in a replica id <engine>.dp<rank>.
func namedRank(replica string) (uint32, bool) {
	i := strings.LastIndex(replica, ".dp")
	if i < 0 {
		return 0, false
	}
	rank, err := strconv.ParseUint(replica[i+len(".dp"):], 10, 32)
	return uint32(rank), err == nil
}

// setRank names the rank. Clients may not choose one: it is taken out.
func setRank(h http.Header, rank *uint32) {
	h.Del(headerRank)
	if rank != nil {
		h.Set(headerRank, strconv.FormatUint(uint64(*rank), 10))
	}
}
