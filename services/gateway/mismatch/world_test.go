package mismatch_test

import (
	"cmp"
	"container/list"
	"math/rand/v2"
	"slices"

	"google.golang.org/protobuf/proto"

	"warmpath/routing/blockkey"
	pb "warmpath/schemas/warmpathv1"
	"warmpath/services/gateway/mismatch"
)

// world is a pool: conversations, a gateway that routes them by session, engines
// with a cache of their own, and an index that events reach late. What is set
// wrong is wrong in the way it is in a real one: engines make their own tokens
// and keys, and events carry the engine's tokens.
type world struct {
	random    *rand.Rand
	detector  *mismatch.Detector
	options   options
	replicas  []*replica
	sessions  []*session
	now       int64
	pending   []pending
	requests  int
	concerned int // requests of the kind that the fault is about
	events    []raised
	asked     int // probes
}

// raised is an alarm and the request after which it came.
type raised struct {
	event    *pb.Mismatch
	requests int
}

type options struct {
	replicas, block, cacheBlocks int
	sessions                     int
	// Shares of requests.
	salted, lora, text, unique, stray float64
	salts                             int  // tenants
	burst                             bool // requests come at once
	noEvents                          bool // the fleet says that engines do not publish
	nullOnMiss                        bool // engines report hits only
	engineBlock                       int  // where it differs from block
	fleetBlock                        int
	wrongReplica                      int // with faults of engines: the only one that has it, counted from 1
	indexed                           bool
	probes                            bool // engines are asked for tokens when that is wanted

	// Faults.
	template  string // none, constant, message, date, ending (harmless)
	tokenizer bool
	saltLost  bool // events do not carry the salt
	loraLost  bool
	saltBlind bool // keys do not have the salt, engines do
	eventsOff bool // nothing is published
	stale     bool // removals are not published
	usageOff  bool
	caching   bool // switched off
}

type replica struct {
	name  string
	cache *lru
	index map[uint64]int // block keys as events told them, and how often
	guess map[uint64]int64
	wrong bool
}

type session struct {
	messages [][]uint32
	salt     string
	lora     string
	text     bool
	replica  int
}

// pending is something that happens later: an event reaching the index, or the
// end of a request.
type pending struct {
	at int64
	do func()
}

// lru is an engine's cache: keys by last use.
type lru struct {
	size  int
	order *list.List
	at    map[uint64]*list.Element
	names map[uint64]uint64 // key as the bridge derives it
}

func newLRU(size int) *lru {
	return &lru{size: size, order: list.New(), at: map[uint64]*list.Element{}, names: map[uint64]uint64{}}
}

func newWorld(seed uint64, o options) *world {
	o.replicas, o.block = cmp.Or(o.replicas, 4), cmp.Or(o.block, 16)
	o.cacheBlocks, o.sessions = cmp.Or(o.cacheBlocks, 20000), cmp.Or(o.sessions, 12)
	o.engineBlock = cmp.Or(o.engineBlock, o.block)
	w := &world{
		random: rand.New(rand.NewPCG(seed, 99)), options: o, now: 1_700_000_000_000_000,
		detector: mismatch.New(mismatch.Config{Pool: "p", Gateway: "g", WithoutEvents: o.noEvents}),
	}
	for i := range o.replicas {
		w.replicas = append(w.replicas, &replica{
			name: string(rune('a' + i)), cache: newLRU(o.cacheBlocks), index: map[uint64]int{}, guess: map[uint64]int64{},
			wrong: o.wrongReplica == 0 || o.wrongReplica == i+1,
		})
	}
	for range o.sessions {
		w.sessions = append(w.sessions, w.newSession())
	}
	return w
}

var systemPrompts = func() [][]uint32 {
	r := rand.New(rand.NewPCG(5, 5))
	out := make([][]uint32, 3)
	for i := range out {
		out[i] = content(r, 150+100*i)
	}
	return out
}()

// content is a text: letters that a tokenizer turns into tokens.
func content(r *rand.Rand, n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = 100 + r.Uint32N(1000)
	}
	return out
}

func (w *world) newSession() *session {
	s := &session{replica: w.random.IntN(len(w.replicas)), text: w.random.Float64() < w.options.text}
	if w.random.Float64() < w.options.salted {
		s.salt = string(rune('A' + w.random.IntN(cmp.Or(w.options.salts, 3))))
	}
	if w.random.Float64() < w.options.lora {
		s.lora = string(rune('X' + w.random.IntN(2)))
	}
	if w.random.Float64() >= w.options.unique {
		s.messages = append(s.messages, systemPrompts[w.random.IntN(len(systemPrompts))])
	}
	s.messages = append(s.messages, content(w.random, 20+w.random.IntN(300)))
	return s
}

// tokenize makes tokens of a text. The wrong tokenizer joins some neighbours.
func tokenize(dst, text []uint32, wrong bool) []uint32 {
	for i := 0; i < len(text); i++ {
		if wrong && i+1 < len(text) && text[i]%7 == 0 {
			dst = append(dst, 50_000+text[i]*31+text[i+1])
			i++
			continue
		}
		dst = append(dst, text[i])
	}
	return dst
}

// render makes the prompt. A wrong template marks messages otherwise.
func (s *session) render(template string, tokenizer bool) []uint32 {
	var out []uint32
	if s.text {
		for _, m := range s.messages {
			out = tokenize(out, m, tokenizer)
		}
		return out
	}
	out = append(out, 1)
	switch template {
	case "constant":
		out = append(out, 60, 61, 62, 63, 64)
	case "date":
		out = append(out, 71)
	default:
		out = append(out, 70)
	}
	for i, m := range s.messages {
		out = append(out, 2, uint32(10+i%2), 3)
		if template == "message" {
			out = append(out, 9)
		}
		out = append(tokenize(out, m, tokenizer), 4, 5)
	}
	if template == "ending" {
		return append(out, 2, 11, 3, 80, 81)
	}
	return append(out, 2, 11, 3)
}

// later runs what is due, in the order of time.
func (w *world) later(at int64, do func()) {
	i, _ := slices.BinarySearchFunc(w.pending, at, func(p pending, at int64) int {
		if p.at <= at {
			return -1
		}
		return 1
	})
	w.pending = slices.Insert(w.pending, i, pending{at, do})
}

func (w *world) advance(to int64) {
	for len(w.pending) > 0 && w.pending[0].at <= to {
		p := w.pending[0]
		w.pending = w.pending[1:]
		w.now = p.at
		p.do()
	}
	w.now = to
}

// request sends the next prompt of some session.
func (w *world) request() {
	o := &w.options
	gap := int64(10_000 + w.random.IntN(600_000))
	if o.burst && w.random.IntN(20) != 0 {
		gap = int64(w.random.IntN(2000))
	} else if o.burst {
		gap = 5_000_000
	}
	w.advance(w.now + gap)
	w.requests++
	n := w.random.IntN(len(w.sessions))
	s := w.sessions[n]
	at := s.replica
	if w.random.Float64() < o.stray {
		at = w.random.IntN(len(w.replicas))
	}
	r := w.replicas[at]

	if (s.salt != "" || !o.saltLost) && (s.lora != "" || !o.loraLost) && (!s.text || o.template == "") && r.wrong {
		w.concerned++
	}
	salt := s.salt
	if o.saltBlind {
		salt = ""
	}
	ours := s.render("", false)
	keys := blockkey.Chain(nil, blockkey.Root("m", s.lora, salt), ours, o.block)
	rec := mismatch.Record{
		DecidedUS: w.now, Replica: r.name, LoRA: s.lora, Salted: s.salt != "", Chat: !s.text, Messages: len(s.messages),
		Source: mismatch.SourceInProcess, Keys: keys, BlockTokens: uint32(o.block), EngineBlockTokens: uint32(o.fleetBlock),
		KVEvents: !o.noEvents, PromptTokens: uint64(len(ours)),
	}
	whole := (len(ours) - 1) / o.block
	matched, guessed := 0, 0
	for matched < min(len(keys), whole) && r.index[keys[matched]] > 0 {
		matched++
	}
	for guessed < min(len(keys), whole) && (r.index[keys[guessed]] > 0 || r.guess[keys[guessed]] > w.now) {
		guessed++
	}
	for _, k := range keys {
		r.guess[k] = w.now + 30_000_000
	}
	rec.Matched, rec.Predicted = uint64(matched*o.block), uint64(guessed*o.block)
	if o.indexed {
		rec.Indexed = mismatch.IndexEmpty
		if len(r.index) > 0 {
			rec.Indexed = mismatch.IndexHolds
		}
	}
	length, cached := w.serve(r, s)
	rec.EnginePromptTokens = &length
	silent := o.usageOff && r.wrong || o.nullOnMiss && cached == 0
	if !silent {
		rec.CachedTokens = &cached
	}
	took := int64(50_000 + w.random.IntN(3_000_000))
	rec.FinishedUS = w.now + took
	w.later(rec.FinishedUS, func() {
		events := w.detector.Observe(rec)
		if o.probes && w.detector.WantsProbe(rec) {
			events = append(events, w.detector.Probed(w.ask(rec), w.now)...)
		}
		for _, e := range events {
			w.events = append(w.events, raised{e, w.requests})
		}
	})
	if len(s.messages) > 11 || w.random.Float64() < 0.05 || w.random.Float64() < o.unique {
		w.sessions[n] = w.newSession()
		return
	}
	s.messages = append(s.messages, content(w.random, 5+w.random.IntN(120)), content(w.random, 5+w.random.IntN(120)))
}

// serve computes a prompt at an engine and publishes what changes there.
func (w *world) serve(r *replica, s *session) (length, cached uint64) {
	o := &w.options
	block := o.block
	if r.wrong {
		block = o.engineBlock
	}
	theirs := s.render(o.template, o.tokenizer)
	engineKeys := blockkey.Chain(nil, blockkey.Root("engine", s.lora, s.salt), theirs, block)
	salt, lora := s.salt, s.lora
	if o.saltLost || o.saltBlind {
		salt = ""
	}
	if o.loraLost && lora != "" {
		lora = "adapter-7"
	}
	names := blockkey.Chain(nil, blockkey.Root("m", lora, salt), theirs, block)
	length = uint64(len(theirs))
	if o.caching && r.wrong {
		return length, 0
	}
	hits := 0
	for hits < min(len(engineKeys), (len(theirs)-1)/block) && r.cache.at[engineKeys[hits]] != nil {
		hits++
	}
	silent := o.noEvents || o.eventsOff && r.wrong
	var stored, removed []uint64
	for i := len(engineKeys) - 1; i >= 0; i-- { // so that leaves are older
		k, name := engineKeys[i], names[i]
		if e := r.cache.at[k]; e != nil {
			r.cache.order.MoveToFront(e)
			continue
		}
		r.cache.at[k] = r.cache.order.PushFront(k)
		r.cache.names[k] = name
		stored = append(stored, name)
	}
	for r.cache.order.Len() > r.cache.size {
		k := r.cache.order.Remove(r.cache.order.Back()).(uint64)
		name := r.cache.names[k]
		delete(r.cache.at, k)
		delete(r.cache.names, k)
		if !o.stale {
			removed = append(removed, name)
		}
	}
	if silent {
		stored, removed = nil, nil
	}
	w.later(w.now+20_000+int64(w.random.IntN(60_000)), func() {
		for _, name := range stored {
			r.index[name]++
		}
		for _, name := range removed {
			if r.index[name]--; r.index[name] <= 0 {
				delete(r.index, name)
			}
		}
	})
	return length, uint64(hits * block)
}

// ask compares tokens with an engine's.
func (w *world) ask(rec mismatch.Record) mismatch.Probe {
	w.asked++
	p := mismatch.Probe{Replica: rec.Replica, Chat: rec.Chat, SameText: proto.Bool(!w.options.tokenizer)}
	if rec.Chat {
		p.SameChat = proto.Bool(!w.options.tokenizer && w.options.template == "")
	}
	return p
}

// restart empties the engines and what the index has of them, as a new version does.
func (w *world) restart() {
	w.settle()
	for _, r := range w.replicas {
		r.cache, r.index = newLRU(w.options.cacheBlocks), map[uint64]int{}
	}
}

// run sends requests and lets the last ones end.
func (w *world) run(requests int) {
	for range requests {
		w.request()
	}
}

func (w *world) settle() { w.advance(w.now + 60_000_000) }
