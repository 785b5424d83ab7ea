// The two stores and the walk over them: the access pattern that is measured, and nothing else.
//
// The value store maps 0x40|LLSN to a payload, the commit store maps 0x80|GLSN to the value store's key (0x40|LLSN); numbers are big
// endian. A scan by GLSN is an iterator on the commit store and, opened at the first entry, one on the value store; both
// move in lock step, which is right because LLSNs are as dense and as sorted as GLSNs. Each payload is copied to a fresh
// buffer: the caller owns it.

package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"
	"sync"

	"github.com/cockroachdb/pebble"
)

const (
	valuePrefix  = 0x40
	commitPrefix = 0x80
	keyBytes     = 9

	// The page sizes of Varlog's storage.
	blockBytes      = 32 << 10
	indexBlockBytes = 256 << 10

	memTableBytes = 64 << 20
	loadBatch     = 1000
)

var errOutOfStep = errors.New("commit store and value store are out of step")

type key [keyBytes]byte

func keyOf(prefix byte, number uint64) key {
	var k key
	k[0] = prefix
	binary.BigEndian.PutUint64(k[1:], number)
	return k
}

// stores is one log: the pair of Pebble databases.
type stores struct {
	values  *pebble.DB
	commits *pebble.DB
	cache   *pebble.Cache
}

// openStores opens or makes the pair below dir; both share one block cache.
func openStores(dir string, cacheBytes int64) (*stores, error) {
	s := &stores{cache: pebble.NewCache(cacheBytes)}
	var err error
	if s.values, err = openOne(filepath.Join(dir, "values"), s.cache); err != nil {
		return nil, err
	}
	if s.commits, err = openOne(filepath.Join(dir, "commits"), s.cache); err != nil {
		return nil, err
	}
	return s, nil
}

func openOne(dir string, cache *pebble.Cache) (*pebble.DB, error) {
	options := &pebble.Options{
		Cache:              cache,
		FormatMajorVersion: pebble.FormatNewest,
		MemTableSize:       memTableBytes,
		DisableWAL:         true,
		Logger:             quiet{},
		Levels:             make([]pebble.LevelOptions, 7),
	}
	for i := range options.Levels {
		options.Levels[i].BlockSize = blockBytes
		options.Levels[i].IndexBlockSize = indexBlockBytes
	}
	return pebble.Open(dir, options.EnsureDefaults())
}

func (s *stores) close() error {
	err := errors.Join(s.values.Close(), s.commits.Close())
	s.cache.Unref()
	return err
}

// growMemTables brings the memtable to its full size. Pebble starts with 256 KiB and doubles it each time that one is full, so the
// first entries of a load would end up in small tables on disk. The keys it uses are gone from the store afterwards.
func (s *stores) growMemTables() error {
	filler := make([]byte, 64<<10)
	for _, db := range []*pebble.DB{s.values, s.commits} {
		for written := 0; written < memTableBytes+memTableBytes/8; written += len(filler) {
			if err := db.Set([]byte{0}, filler, pebble.NoSync); err != nil {
				return err
			}
		}
		if err := db.Delete([]byte{0}, pebble.NoSync); err != nil {
			return err
		}
		if err := db.Flush(); err != nil {
			return err
		}
		if err := db.Compact([]byte{0}, []byte{1}, false); err != nil {
			return err
		}
	}
	return nil
}

// load writes entries 1 to count; GLSN and LLSN of an entry are the same number.
func (s *stores) load(count uint64, payload func(number uint64, into []byte) []byte) error {
	var buffer []byte
	for first := uint64(1); first <= count; first += loadBatch {
		values, commits := s.values.NewBatch(), s.commits.NewBatch()
		for number := first; number < first+loadBatch && number <= count; number++ {
			buffer = payload(number, buffer[:0])
			valueKey, commitKey := keyOf(valuePrefix, number), keyOf(commitPrefix, number)
			if err := values.Set(valueKey[:], buffer, nil); err != nil {
				return err
			}
			if err := commits.Set(commitKey[:], valueKey[:], nil); err != nil {
				return err
			}
		}
		if err := values.Commit(pebble.NoSync); err != nil {
			return err
		}
		if err := commits.Commit(pebble.NoSync); err != nil {
			return err
		}
	}
	return nil
}

// settle moves everything to compacted tables at the lowest level.
func (s *stores) settle() error {
	for _, db := range []*pebble.DB{s.values, s.commits} {
		if err := db.Flush(); err != nil {
			return err
		}
		if err := db.Compact([]byte{0}, []byte{0xff}, false); err != nil {
			return err
		}
	}
	return nil
}

// checkPlace says whether the data is where the variant wants it: in one memtable, or in the lowest level.
func (s *stores) checkPlace(inMemTable bool) error {
	for _, db := range []*pebble.DB{s.values, s.commits} {
		metrics := db.Metrics()
		total, lowest := metrics.Total(), metrics.Levels[6]
		if inMemTable && (total.NumFiles != 0 || metrics.MemTable.Count != 1) {
			return fmt.Errorf("want one memtable and no table: have %d and %d", metrics.MemTable.Count, total.NumFiles)
		}
		if !inMemTable && total.NumFiles != lowest.NumFiles {
			return fmt.Errorf("want all tables in the lowest level: have %d of %d", lowest.NumFiles, total.NumFiles)
		}
	}
	return nil
}

// scanner walks entries by GLSN.
type scanner struct {
	stores *stores
	commit *pebble.Iterator
	value  *pebble.Iterator
	bounds [2]key
}

var scanners = sync.Pool{New: func() any { return new(scanner) }}

// scan starts at GLSN begin and ends before GLSN end.
func (s *stores) scan(begin, end uint64) (*scanner, error) {
	walk := scanners.Get().(*scanner)
	walk.stores = s
	walk.bounds = [2]key{keyOf(commitPrefix, begin), keyOf(commitPrefix, end)}
	commit, err := s.commits.NewIter(&pebble.IterOptions{LowerBound: walk.bounds[0][:], UpperBound: walk.bounds[1][:]})
	if err != nil {
		return nil, err
	}
	walk.commit = commit
	commit.First()
	return walk, nil
}

var valuesEnd = []byte{valuePrefix + 1}

// entry is the payload of the entry that the walk stands on, in a buffer of its own.
func (walk *scanner) entry() ([]byte, error) {
	valueKey := walk.commit.Value()
	if walk.value == nil {
		value, err := walk.stores.values.NewIter(&pebble.IterOptions{LowerBound: valueKey, UpperBound: valuesEnd})
		if err != nil {
			return nil, err
		}
		walk.value = value
		value.First()
	}
	if !walk.value.Valid() || !bytes.Equal(walk.value.Key(), valueKey) {
		return nil, errOutOfStep
	}
	stored, err := walk.value.ValueAndErr()
	if err != nil {
		return nil, err
	}
	owned := make([]byte, len(stored))
	copy(owned, stored)
	return owned, nil
}

func (walk *scanner) valid() bool { return walk.commit.Valid() }

func (walk *scanner) next() {
	walk.commit.Next()
	if walk.value != nil {
		walk.value.Next()
	}
}

func (walk *scanner) close() error {
	err := walk.commit.Close()
	if walk.value != nil {
		err = errors.Join(err, walk.value.Close())
	}
	*walk = scanner{}
	scanners.Put(walk)
	return err
}

type quiet struct{}

func (quiet) Infof(string, ...any)  {}
func (quiet) Errorf(string, ...any) {}
func (quiet) Fatalf(format string, args ...any) {
	panic(fmt.Sprintf(format, args...))
}
