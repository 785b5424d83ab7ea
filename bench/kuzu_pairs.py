"""Loads pairs of integers into Kùzu with its own bulk load: kuzu_pairs.py CSV STORE BUFFER_POOL_BYTES.

Prints one JSON line: rows, seconds of the load. Any error is the outcome of the row.
"""

import json
import sys
import time

import kuzu

csv, store, pool_bytes = sys.argv[1], sys.argv[2], int(sys.argv[3])
database = kuzu.Database(store, buffer_pool_size=pool_bytes)
connection = kuzu.Connection(database)
connection.execute("CREATE NODE TABLE Pair(key INT64, value INT64, PRIMARY KEY(key))")
start = time.monotonic()
connection.execute(f"COPY Pair FROM '{csv}' (header=false)")
seconds = time.monotonic() - start
rows = connection.execute("MATCH (p:Pair) RETURN count(*)").get_next()[0]
print(json.dumps({"operations": rows, "seconds": seconds}))
