"""A store, a transaction, an earlier moment. Run: python quick_start.py [FOLDER]."""

import sys

import plimsoll

with plimsoll.open(sys.argv[1] if len(sys.argv) > 1 else "quick_start.plimsoll", memory="64MB") as db:
    with db.transaction(metadata=b"first names") as tx:
        tx[b"ada"] = b"Ada"
        tx[b"alan"] = b"Alan"
    before = db.newest

    with db.transaction(metadata=b"full names") as tx:
        for key, name in list(tx.items()):
            tx[key] = name + {b"ada": b" Lovelace", b"alan": b" Turing"}[key]

    print("now:   ", dict(db))
    print("before:", dict(db.at(before)))
    for version in db.history(b"ada"):
        commit = db.log.commit(version.glsn)
        print(version.glsn, commit.metadata.decode(), version.value().decode())
    memory = db.stats()["memory"]
    print(f"at most {memory['peak_bytes'] / 1e6:.1f} MB of {memory['limit_bytes'] / 1e6:.1f} MB were in use")
