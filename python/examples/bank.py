"""Transfers by several threads preserve the total. Run: python bank.py [FOLDER]."""

import random
import sys
import threading

import plimsoll

ACCOUNTS, TRANSFERS, THREADS, START = 50, 200, 4, 100


def transfer(tx: plimsoll.Transaction, source: bytes, target: bytes, amount: int) -> bool:
    balance = int(tx[source])
    if source == target or balance < amount:
        return False
    tx[source] = b"%d" % (balance - amount)
    tx[target] = b"%d" % (int(tx[target]) + amount)
    return True


def teller(db: plimsoll.Db, number: int) -> None:
    chance = random.Random(number)
    for _ in range(TRANSFERS):
        source, target = (b"account/%02d" % chance.randrange(ACCOUNTS) for _ in range(2))
        db.transact(transfer, source, target, chance.randrange(30))


with plimsoll.open(sys.argv[1] if len(sys.argv) > 1 else "bank.plimsoll", memory="32MB", durability="buffered") as db:
    db.put_many((b"account/%02d" % number, b"%d" % START) for number in range(ACCOUNTS))
    threads = [threading.Thread(target=teller, args=(db, number)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    total = sum(int(balance) for balance in db.values(prefix=b"account/"))
    print(f"{THREADS * TRANSFERS} transfers, {db.newest} commits; {total} in all accounts")
    assert total == ACCOUNTS * START
