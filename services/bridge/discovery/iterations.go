package discovery

import "bytes"

// readIterations reads TensorRT-LLM's JSON page, a list with one object for each
// iteration since it was last read. It is nil when the page is something else, and
// empty when there was none.
func readIterations(body []byte) []fields {
	if !bytes.HasPrefix(bytes.TrimSpace(body), []byte("[")) {
		return nil
	}
	v, err := readJSON(body)
	list, ok := v.([]any)
	if err != nil || !ok {
		return nil
	}
	return append([]fields{}, objectsOf(list)...)
}

func (r *reading) fromIteration(last fields) {
	tell := func(name string, x float64, ok bool) {
		if ok {
			r.tell(name, figure{byRank: map[int]float64{0: x}})
		}
	}
	x, ok := last.number("numActiveRequests")
	tell(FigureRunning, x, ok)
	x, ok = last.number("numQueuedRequests")
	tell(FigureWaiting, x, ok)
	cache := last.object("kvCacheStats")
	used, haveUsed := cache.number("usedNumBlocks")
	most, haveMost := cache.number("maxNumBlocks")
	if haveUsed && haveMost && most > 0 {
		tell(FigureKVUsed, used/most, true)
	}
}

func (e *Engine) fromIterations(iterations []fields) {
	e.Kind = TRTLLM
	if len(iterations) == 0 {
		return
	}
	cache := iterations[len(iterations)-1].object("kvCacheStats")
	e.size(cache.count("tokensPerBlock"), cache.count("maxNumBlocks"))
}
