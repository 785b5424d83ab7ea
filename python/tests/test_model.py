"""Any sequence of calls returns the same results as a model: dictionaries, one for each commit."""

from __future__ import annotations

import tempfile

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import plimsoll

KEYS = st.binary(max_size=3) | st.sampled_from([b"", b"a", b"a\0", b"b" * 4_000, b"\xff", b"\xff\xff"])
VALUES = st.binary(max_size=20) | st.integers(0, 3_000).map(lambda size: b"v" * size) | st.just(b"w" * 100_000)
Rows = dict[bytes, bytes]


class Store(RuleBasedStateMachine):
    """A store on disk beside its model."""

    @initialize()
    def open(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.path = f"{self.folder.name}/store"
        self.db = plimsoll.open(self.path, memory="16MiB", durability="buffered")
        self.now: Rows = {}
        self.past: dict[int, Rows] = {self.db.newest: {}}
        self.tx: plimsoll.Transaction | None = None
        self.own: Rows = {}

    def note(self, glsn: int | None) -> None:
        assert glsn == self.db.newest
        self.past[self.db.newest] = dict(self.now)

    @rule(key=KEYS, value=VALUES)
    def put(self, key: bytes, value: bytes) -> None:
        self.now[key] = value
        self.note(self.db.put(key, value))

    @rule(key=KEYS)
    def delete(self, key: bytes) -> None:
        self.now.pop(key, None)
        self.note(self.db.delete(key))

    @rule(rows=st.dictionaries(KEYS, VALUES, max_size=20), bulk=st.booleans())
    def put_many(self, rows: Rows, bulk: bool) -> None:
        if rows:
            self.now.update(rows)
            self.note(self.db.bulk_load(rows) if bulk else self.db.put_many(rows))

    @rule(start=KEYS, stop=KEYS)
    def delete_range(self, start: bytes, stop: bytes) -> None:
        gone = [key for key in self.now if start <= key < stop]
        if start >= stop:
            with pytest.raises(plimsoll.InvalidInput):
                self.db.delete_range(start, stop)
            return
        self.db.delete_range(start, stop)
        for key in gone:
            del self.now[key]
        self.past[self.db.newest] = dict(self.now)

    @rule(key=KEYS, default=VALUES)
    def setdefault(self, key: bytes, default: bytes) -> None:
        assert self.db.setdefault(key, default) == self.now.setdefault(key, default)
        self.past[self.db.newest] = dict(self.now)

    @rule(first=st.booleans())
    def pop(self, first: bool) -> None:
        found = self.db.pop_first() if first else self.db.pop_last()
        key = min(self.now, default=None) if first else max(self.now, default=None)
        assert found == (None if key is None else (key, self.now.pop(key)))
        self.past[self.db.newest] = dict(self.now)

    @precondition(lambda self: self.tx is None)
    @rule()
    def begin(self) -> None:
        self.tx, self.own, self.begun = self.db.transaction(), dict(self.now), self.db.newest
        self.wrote = False

    @precondition(lambda self: self.tx is not None)
    @rule(key=KEYS, value=st.none() | VALUES)
    def write_in_transaction(self, key: bytes, value: bytes | None) -> None:
        assert self.tx is not None
        self.wrote = True
        if value is None:
            self.own.pop(key, None)
            self.tx.delete(key)
        else:
            self.own[key] = value
            self.tx[key] = value

    @precondition(lambda self: self.tx is not None)
    @rule(commit=st.booleans())
    def end(self, commit: bool) -> None:
        assert self.tx is not None
        assert self.tx.scan() == sorted(self.own.items())
        tx, self.tx = self.tx, None
        if not commit:
            tx.abort()
        elif not self.wrote:
            # It has only read its snapshot, so nothing can conflict with it.
            before = self.db.newest
            tx.commit()
            assert self.db.newest == before
        elif self.db.newest == self.begun:
            glsn = tx.commit()
            self.now = self.own
            self.past[self.db.newest] = dict(self.now)
            assert glsn == self.db.newest
        else:
            # It has read everything. It conflicts if any key differs from its snapshot.
            before = self.db.newest
            try:
                tx.commit()
            except plimsoll.Conflict:
                assert self.db.newest == before
            else:
                assert self.past[self.begun] == self.now, "a change of what it read is a conflict"
                self.now = self.own
                self.past[self.db.newest] = dict(self.now)

    @rule(data=st.data())
    def look_back(self, data: st.DataObject) -> None:
        glsn = data.draw(st.sampled_from(sorted(self.past)))
        with self.db.at(glsn) as then:
            assert then.scan() == sorted(self.past[glsn].items())

    @rule(start=st.none() | KEYS, stop=st.none() | KEYS, prefix=st.none() | KEYS, reverse=st.booleans(), limit=st.none() | st.integers(0, 5))
    def walk(self, start: bytes | None, stop: bytes | None, prefix: bytes | None, reverse: bool, limit: int | None) -> None:
        wanted = [
            (key, value)
            for key, value in sorted(self.now.items(), reverse=reverse)
            if (start is None or start <= key) and (stop is None or key < stop) and key.startswith(prefix or b"")
        ][:limit]
        found = list(self.db.items(start, stop, prefix=prefix, reverse=reverse, limit=limit))
        assert found == wanted

    @rule(keys=st.lists(KEYS, max_size=8))
    def get_many(self, keys: list[bytes]) -> None:
        assert self.db.get_many(keys) == [self.now.get(key) for key in keys]
        for key in keys:
            assert (self.db.get(key), key in self.db) == (self.now.get(key), key in self.now)

    @rule(how=st.sampled_from(["flush", "compact", "reopen"]))
    def exchange(self, how: str) -> None:
        if how == "flush":
            self.db.flush()
        elif how == "compact":
            self.db.compact()
        elif self.tx is None:
            self.db.close()
            self.db = plimsoll.open(self.path, memory="16MiB", durability="buffered")

    @invariant()
    def counts(self) -> None:
        assert len(self.db) == len(self.now)

    def teardown(self) -> None:
        if hasattr(self, "db"):
            self.db.close()
            self.folder.cleanup()


Store.TestCase.settings = settings(
    max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
test_the_store_answers_as_the_model = Store.TestCase
