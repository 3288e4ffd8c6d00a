package bench

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// machine is what figures were measured on.
type machine struct {
	Go     string `json:"go"`
	OS     string `json:"os"`
	Arch   string `json:"arch"`
	CPU    string `json:"cpu"`
	CPUs   int    `json:"cpus"`
	Procs  int    `json:"gomaxprocs"`
	Race   bool   `json:"race"`
	Rounds int    `json:"rounds"`
	Quick  bool   `json:"quick"`
}

func thisMachine() machine {
	m := machine{
		Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH, CPU: cpuModel(),
		CPUs: runtime.NumCPU(), Procs: runtime.GOMAXPROCS(0),
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			m.Race = m.Race || s.Key == "-race" && s.Value == "true"
		}
	}
	return m
}

func (m machine) String() string {
	text := fmt.Sprintf("# %s %s/%s, %s, %d cpus, GOMAXPROCS %d, %d rounds", m.Go, m.OS, m.Arch, m.CPU, m.CPUs, m.Procs, m.Rounds)
	if m.Race {
		text += ", race detector: figures mean nothing"
	}
	if m.Quick {
		text += ", quick: sizes are small and bounds not judged"
	}
	return text
}

// cpuModel is what Linux says of the first processor.
func cpuModel() string {
	file, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return "unknown cpu"
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if name, value, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "unknown cpu"
}

// pair is a figure and its floor over several rounds.
type pair struct{ values, floors []float64 }

// interleave measures floor and ours in turns, so that what disturbs the machine
// for a while disturbs both. The garbage of one is gone before the other begins.
func interleave(rounds int, floor, ours func() float64) pair {
	var p pair
	for range rounds {
		runtime.GC()
		below := floor()
		runtime.GC()
		p.add(below, ours())
	}
	return p
}

// add takes what both came to in a round.
func (p *pair) add(floor, value float64) {
	p.floors, p.values = append(p.floors, floor), append(p.values, value)
}

// figure is the median of both, and of the rounds' ratios. Where there are not as
// many of one as of the other, the ratio is that of the medians.
func (p pair) figure(name, unit string) Figure {
	f := Figure{Name: name, Value: median(p.values), Unit: unit}
	if len(p.floors) == 0 {
		return f
	}
	floor := median(p.floors)
	f.Floor = &floor
	if slices.Contains(p.floors, 0) {
		return f
	}
	ratio := f.Value / floor
	if len(p.floors) == len(p.values) {
		ratios := slices.Clone(p.values)
		for i := range ratios {
			ratios[i] /= p.floors[i]
		}
		ratio = median(ratios)
	}
	f.Ratio = &ratio
	return f
}

func median(v []float64) float64 { return quantile(v, 0.5) }

// quantile returns the value below which a share q of v lies: the nearest there
// is, or the mean of the middle two for an even median. v is not changed.
func quantile(v []float64, q float64) float64 {
	if len(v) == 0 {
		return 0
	}
	sorted := slices.Clone(v)
	slices.Sort(sorted)
	if q == 0.5 && len(v)%2 == 0 {
		return (sorted[len(v)/2-1] + sorted[len(v)/2]) / 2
	}
	return sorted[min(int(q*float64(len(v))), len(v)-1)]
}

// heapBytes is what lives on the heap now.
func heapBytes() float64 {
	runtime.GC() // finishes a cycle that runs and sweeps it
	runtime.GC() // takes what the first one's finalizers and pools kept
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

// allocations is how often f allocates, on average over n calls after a first
// one, whole: the remainder is the runtime's own.
func allocations(n int, f func()) float64 {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	f()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range n {
		f()
	}
	runtime.ReadMemStats(&after)
	return float64((after.Mallocs - before.Mallocs) / uint64(n))
}

// seconds is how long f takes.
func seconds(f func()) float64 {
	began := time.Now()
	f()
	return time.Since(began).Seconds()
}

func nanoseconds(f func()) float64 { return seconds(f) * 1e9 }
