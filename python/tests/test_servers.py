"""Programs with greenlets, and servers that create a cache before they fork their workers."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import plimsoll

# The program that all kinds of workers run. It creates its caches once, at module level.
APPLICATION = """
import os, plimsoll

cache = plimsoll.Cache(os.environ["FOLDER"] + "/cache", memory="16MiB")
parts = plimsoll.FanoutCache(os.environ["FOLDER"] + "/parts", shards=2, timeout=60, memory="16MiB")
jobs = plimsoll.Deque((), os.environ["FOLDER"] + "/jobs", memory="16MiB")
cache.set("made", os.getpid())

@cache.memoize()
def square(number):
    return number * number

def application(environ, start_response):
    number = int(environ["PATH_INFO"][1:])
    cache[number] = bytes(1000)
    parts.set(number, number, retry=True)
    jobs.append(number)
    with cache.transact(retry=True):
        cache.incr("visits", retry=True)
    assert square(number % 5) == (number % 5) ** 2 and parts[number] == number and cache[number] == bytes(1000)
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [str(os.getpid()).encode()]
"""

GREENLETS = """
from gevent import monkey
monkey.patch_all()
import os, sys, gevent, plimsoll, transaction, ZODB
from gevent import pywsgi, socket
from plimsoll.zodb import PlimsollStorage
from application import application, cache, jobs, parts

# A store, alone in the process: nothing else could wake a greenlet that waits.
with plimsoll.open(sys.argv[1] + "/store", memory="16MiB") as db:
    db.transact(lambda tx: tx.put(b"a", b"1"))
    db.sync(), db.flush(), db.compact()
    assert db.watch().next(timeout=0.01) is None and db.verify().ok

# While one greenlet has the turn, others run, and those that want to write wait.
order = []
def first():
    with cache.transact():
        cache["x"] = 1
        gevent.sleep(0.2)
        order.append("first")
def second():
    gevent.sleep(0.05)
    cache.set("x", 2)
    order.append("second")
def beside():
    gevent.sleep(0.1)
    assert cache.get("x") is None
    order.append("beside")
gevent.joinall([gevent.spawn(run) for run in (first, second, beside)], raise_error=True)
assert order == ["beside", "first", "second"] and cache["x"] == 2, order

def count():
    for _ in range(20):
        with cache.transact(retry=True):
            seen = cache.get("count", 0)
            gevent.sleep(0)
            cache["count"] = seen + 1
gevent.joinall([gevent.spawn(count) for _ in range(8)], raise_error=True)
assert cache["count"] == 160

storage = ZODB.DB(PlimsollStorage(sys.argv[1] + "/zodb", memory="16MiB"))
def commit(number):
    for _ in range(5):
        with storage.transaction() as connection:
            connection.root()[number] = connection.root().get(number, 0) + 1
            gevent.sleep(0)
def commit_in_turn():
    for number in range(4):
        commit(number)
gevent.spawn(commit_in_turn).get()
with storage.transaction() as connection:
    assert dict(connection.root()) == dict.fromkeys(range(4), 5)
storage.close()

server = pywsgi.WSGIServer(("127.0.0.1", 0), application, log=None)
server.start()
def ask(number):
    with socket.create_connection(("127.0.0.1", server.server_port)) as connection:
        connection.sendall(b"GET /%d HTTP/1.0\\r\\n\\r\\n" % number)
        answer = b""
        while piece := connection.recv(4096):
            answer += piece
    assert b" 200 OK" in answer, answer
gevent.joinall([gevent.spawn(ask, number) for number in range(40)], raise_error=True)
server.stop()
assert cache["visits"] == 40 and sorted(jobs) == list(range(40)) and cache.check() == parts.check() == []
print("done")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "application.py").write_text(APPLICATION)
    return tmp_path


def environment(folder: Path) -> dict[str, str]:
    inherited = os.environ.get("PYTHONPATH")
    return {**os.environ, "FOLDER": str(folder), "PYTHONPATH": os.pathsep.join([str(folder), *([inherited] if inherited else [])])}


def test_an_application_of_greenlets_waits_for_the_store_and_for_its_own_writers(folder: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", GREENLETS, str(folder)]
    done = subprocess.run(command, env=environment(folder), capture_output=True, text=True, timeout=200, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("done\n", "", 0)


def ask(server: str, number: int) -> tuple[int, int]:
    """The status of an answer, and the process that sent it."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(60)
        connection.connect(server)
        connection.sendall(b"GET /%d HTTP/1.0\r\n\r\n" % number)
        response = http.client.HTTPResponse(connection)
        response.begin()
        body = response.read()
        return response.status, int(body) if response.status == 200 else 0


@pytest.mark.parametrize(
    "options", [["--preload"], ["--preload", "-k", "gthread", "--threads", "4"], ["-k", "gevent"], ["--preload", "-k", "gevent"]]
)
def test_the_workers_of_gunicorn_share_a_cache_that_was_made_before_they_were_forked(folder: Path, options: list[str]) -> None:
    server, log = str(folder / "s"), folder / "log"
    command = [sys.executable, "-W", "ignore", "-m", "gunicorn", "--bind", f"unix:{server}", "--workers", "3", *options]
    with log.open("w") as output:
        process = subprocess.Popen(
            [*command, "application:application"], env=environment(folder), cwd=folder, stdout=output, stderr=output
        )
    try:
        end = time.monotonic() + 60
        while log.read_text().count("Booting worker") < 3 or not os.path.exists(server):
            assert process.poll() is None and time.monotonic() < end, log.read_text()
            time.sleep(0.05)
        with ThreadPoolExecutor(6) as pool:
            answers = list(pool.map(lambda number: ask(server, number), range(60)))
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    assert [status for status, _ in answers] == [200] * 60, log.read_text()
    with plimsoll.Cache(folder / "cache", memory="16MiB") as cache:
        assert cache["visits"] == 60 and cache.check() == []
        made, workers = cache["made"], {worker for _, worker in answers}
        assert ("--preload" in options) == (made == process.pid) and process.pid not in workers
    with plimsoll.FanoutCache(folder / "parts", shards=2, memory="16MiB") as parts:
        assert sorted(parts) == list(range(60)) and parts.check() == []
    assert sorted(plimsoll.Deque((), folder / "jobs", memory="16MiB")) == list(range(60))
