// Measuring: many slices of about two milliseconds each, of scans that begin at random entries.

package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"time"
)

// payload is the content of entry number: the same bytes in every program that takes part in the comparison (splitmix64, little endian).
func payload(number uint64, size int, into []byte) []byte {
	state := number
	for len(into) < size {
		state += 0x9e3779b97f4a7c15
		z := state
		z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9
		z = (z ^ (z >> 27)) * 0x94d049bb133111eb
		into = binary.LittleEndian.AppendUint64(into, z^(z>>31))
	}
	return into[:size]
}

// result is what one series of slices says. Times are per scan.
type result struct {
	Variant       string    `json:"variant"`
	N             int       `json:"n"`
	NsMedian      float64   `json:"ns_median"`
	NsMin         float64   `json:"ns_min"`
	NsQuartile1   float64   `json:"ns_quartile_1"`
	NsQuartile3   float64   `json:"ns_quartile_3"`
	Slices        int       `json:"slices"`
	ScansPerSlice int       `json:"scans_per_slice"`
	AllocsPerScan float64   `json:"allocs_per_scan"`
	BytesPerScan  float64   `json:"bytes_per_scan"`
	NsOfEachSlice []float64 `json:"ns_of_each_slice,omitempty"`
}

// subject is a pair of stores with what is known of its entries.
type subject struct {
	stores  *stores
	entries uint64
	size    int
	random  *rand.Rand
}

func (s *subject) randomStart(n int) uint64 {
	return 1 + s.random.Uint64N(s.entries-uint64(n)+1)
}

// scan reads n entries from begin on and returns how many bytes it saw.
func (s *subject) scan(begin uint64, n int) (int, error) {
	walk, err := s.stores.scan(begin, begin+uint64(n))
	if err != nil {
		return 0, err
	}
	seen, count := 0, 0
	for ; walk.valid(); walk.next() {
		entry, err := walk.entry()
		if err != nil {
			return 0, err
		}
		seen += len(entry)
		count++
	}
	if count != n {
		return 0, fmt.Errorf("scan of %d entries from %d saw %d", n, begin, count)
	}
	return seen, walk.close()
}

// check compares some entries with what was written.
func (s *subject) check() error {
	const n = 100
	for range 50 {
		begin := s.randomStart(n)
		walk, err := s.stores.scan(begin, begin+n)
		if err != nil {
			return err
		}
		for number := begin; number < begin+n; number++ {
			entry, err := walk.entry()
			if err != nil {
				return err
			}
			if !bytes.Equal(entry, payload(number, s.size, nil)) {
				return fmt.Errorf("entry %d is not what was written", number)
			}
			walk.next()
		}
		if err := walk.close(); err != nil {
			return err
		}
	}
	return nil
}

// slice times scans scans of n entries; nanoseconds per scan.
func (s *subject) slice(n, scans int) (float64, error) {
	start := time.Now()
	for range scans {
		if _, err := s.scan(s.randomStart(n), n); err != nil {
			return 0, err
		}
	}
	return float64(time.Since(start).Nanoseconds()) / float64(scans), nil
}

// scansPerSlice is how many scans fill the wanted time; it warms up on the way.
func (s *subject) scansPerSlice(n int, wanted time.Duration) (int, error) {
	scans := 1
	for {
		ns, err := s.slice(n, scans)
		if err != nil {
			return 0, err
		}
		if total := ns * float64(scans); total >= float64(wanted)/4 {
			return max(1, int(float64(wanted)/ns)), nil
		}
		scans *= 2
	}
}

// measure runs count slices. A slice in which the collector ran is kept: its cost belongs to the buffers that the scan hands out.
func (s *subject) measure(variant string, n, count int, wanted time.Duration) (result, error) {
	scans, err := s.scansPerSlice(n, wanted)
	if err != nil {
		return result{}, err
	}
	var before, after runtime.MemStats
	times := make([]float64, 0, count)
	runtime.ReadMemStats(&before)
	for range count {
		ns, err := s.slice(n, scans)
		if err != nil {
			return result{}, err
		}
		times = append(times, ns)
	}
	runtime.ReadMemStats(&after)
	all := float64(count * scans)
	sorted := slices.Sorted(slices.Values(times))
	return result{
		Variant: variant, N: n, Slices: count, ScansPerSlice: scans,
		NsMedian:      sorted[len(sorted)/2],
		NsMin:         sorted[0],
		NsQuartile1:   sorted[len(sorted)/4],
		NsQuartile3:   sorted[len(sorted)*3/4],
		AllocsPerScan: float64(after.Mallocs-before.Mallocs) / all,
		BytesPerScan:  float64(after.TotalAlloc-before.TotalAlloc) / all,
		NsOfEachSlice: times,
	}, nil
}
