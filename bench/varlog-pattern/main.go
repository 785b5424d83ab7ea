// varlog-pattern measures scans by global sequence number with the access pattern of Varlog's storage: two Pebble databases and two
// iterators in lock step. It prints one JSON line for each series.
//
// Without -serve it runs all variants. With -serve it reads requests from standard input, "VARIANT N SLICES", and answers each
// with one line, so that another program can alternate with it.
//
// Variants: "sst" (compacted tables, all of them in a cache of 256 MiB), "memtable", and "small-cache" (the same tables with a
// cache of 1 MiB over a warm page cache). Pebble checks a block's checksum whenever it loads it.

package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

var variants = []string{"sst", "memtable", "small-cache"}

type settings struct {
	dir     string
	entries uint64
	size    int
	slices  int
	slice   time.Duration
	ns      []int
	chosen  []string
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "varlog-pattern:", err)
		os.Exit(1)
	}
}

func run() error {
	var s settings
	var ns, chosen string
	flag.StringVar(&s.dir, "dir", "", "folder for the databases (default: a new one, removed at the end)")
	flag.Uint64Var(&s.entries, "entries", 200_000, "entries in the log")
	flag.IntVar(&s.size, "bytes", 128, "bytes of each payload")
	flag.IntVar(&s.slices, "slices", 150, "slices of each series")
	flag.DurationVar(&s.slice, "slice", 2*time.Millisecond, "length of a slice")
	flag.StringVar(&ns, "n", "1,10,100,1000", "entries of a scan")
	flag.StringVar(&chosen, "variants", strings.Join(variants, ","), "what to run")
	serve := flag.Bool("serve", false, "answer requests from standard input")
	flag.Parse()

	for _, text := range strings.Split(ns, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || uint64(n) > s.entries {
			return fmt.Errorf("-n wants numbers from 1 to %d, not %q", s.entries, text)
		}
		s.ns = append(s.ns, n)
	}
	s.chosen = strings.Split(chosen, ",")
	if s.dir == "" {
		dir, err := os.MkdirTemp("", "varlog-pattern-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		s.dir = dir
	}
	stage := &stage{settings: s}
	defer stage.close()
	if *serve {
		return stage.serve(os.Stdin, os.Stdout)
	}
	return stage.runAll(os.Stdout)
}

// stage holds the variant that is open now.
type stage struct {
	settings
	variant string
	subject *subject
}

func (s *stage) runAll(out io.Writer) error {
	encoder := json.NewEncoder(out)
	for _, variant := range s.chosen {
		for _, n := range s.ns {
			result, err := s.measure(variant, n, s.slices)
			if err != nil {
				return err
			}
			result.NsOfEachSlice = nil
			if err := encoder.Encode(result); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *stage) serve(in io.Reader, out io.Writer) error {
	encoder := json.NewEncoder(out)
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		var variant string
		var n, slices int
		if _, err := fmt.Sscanf(lines.Text(), "%s %d %d", &variant, &n, &slices); err != nil {
			return fmt.Errorf("request %q: %w", lines.Text(), err)
		}
		result, err := s.measure(variant, n, slices)
		if err != nil {
			return err
		}
		if err := encoder.Encode(result); err != nil {
			return err
		}
	}
	return lines.Err()
}

func (s *stage) measure(variant string, n, slices int) (result, error) {
	if n < 1 || uint64(n) > s.entries || slices < 1 {
		return result{}, fmt.Errorf("no series of %d slices with scans of %d from %d entries", slices, n, s.entries)
	}
	if err := s.show(variant); err != nil {
		return result{}, fmt.Errorf("%s: %w", variant, err)
	}
	return s.subject.measure(variant, n, slices, s.slice)
}

// show opens a variant, unless it is open already, checks its content and warms it.
func (s *stage) show(variant string) error {
	if s.variant == variant {
		return nil
	}
	if err := s.close(); err != nil {
		return err
	}
	stores, err := s.open(variant)
	if err != nil {
		return err
	}
	s.variant = variant
	s.subject = &subject{stores: stores, entries: s.entries, size: s.size, random: rand.New(rand.NewPCG(1, 2))}
	if err := stores.checkPlace(variant == "memtable"); err != nil {
		return err
	}
	if err := s.subject.check(); err != nil {
		return err
	}
	_, err = s.subject.scan(1, int(s.entries))
	return err
}

func (s *stage) open(variant string) (*stores, error) {
	switch variant {
	case "memtable":
		return s.openMemTable()
	case "sst":
		return s.openTables(256 << 20)
	case "small-cache":
		return s.openTables(1 << 20)
	}
	return nil, fmt.Errorf("no such variant; there are %s", strings.Join(variants, ", "))
}

func (s *stage) openMemTable() (*stores, error) {
	dir := filepath.Join(s.dir, "memtable")
	if err := os.RemoveAll(dir); err != nil {
		return nil, err
	}
	stores, err := openStores(dir, 256<<20)
	if err != nil {
		return nil, err
	}
	if err := stores.growMemTables(); err != nil {
		return nil, err
	}
	return stores, stores.load(s.entries, s.payload)
}

// openTables opens the compacted tables; the first call makes them.
func (s *stage) openTables(cacheBytes int64) (*stores, error) {
	dir := filepath.Join(s.dir, "tables-"+strconv.FormatUint(s.entries, 10)+"-"+strconv.Itoa(s.size))
	if _, err := os.Stat(filepath.Join(dir, "settled")); err != nil {
		if err := s.makeTables(dir); err != nil {
			return nil, err
		}
	}
	if err := readWhole(dir); err != nil {
		return nil, err
	}
	return openStores(dir, cacheBytes)
}

func (s *stage) makeTables(dir string) error {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	stores, err := openStores(dir, 8<<20)
	if err != nil {
		return err
	}
	if err := stores.load(s.entries, s.payload); err != nil {
		return err
	}
	if err := stores.settle(); err != nil {
		return err
	}
	if err := stores.close(); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "settled"), nil, 0o644)
}

func (s *stage) payload(number uint64, into []byte) []byte { return payload(number, s.size, into) }

func (s *stage) close() error {
	if s.subject == nil {
		return nil
	}
	err := s.subject.stores.close()
	s.variant, s.subject = "", nil
	return err
}

// readWhole brings every file below dir into the page cache.
func readWhole(dir string) error {
	return filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		file, err := os.Open(path)
		if err != nil {
			return err
		}
		defer file.Close()
		_, err = io.Copy(io.Discard, file)
		return err
	})
}
