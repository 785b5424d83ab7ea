"""Follows the changes of a prefix in an event loop, and stores its position. Run: python
change_feed.py [FOLDER]."""

import asyncio
import sys

import plimsoll

ORDERS = 20


async def mail(db: plimsoll.Db) -> None:
    """Handles each order once, even after an interruption: the commit that marks it also stores the
    position."""
    start = int(db.get(b"mail/next", b"1"))
    async with db.watch_async(b"order/", start=start) as changes:
        async for change in changes:
            print(f"mail to {change.value().decode()} about {change.key.decode()} (GLSN {change.glsn})")
            db[b"mail/next"] = b"%d" % (change.glsn + 1)
            if change.key == b"order/%03d" % (ORDERS - 1):
                return


async def sell(db: plimsoll.Db) -> None:
    for number in range(ORDERS):
        await asyncio.to_thread(db.put, b"order/%03d" % number, b"ada@example.org")


async def main(folder: str) -> None:
    with plimsoll.open(folder, memory="64MB") as db:
        await asyncio.gather(mail(db), sell(db))


asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "orders.plimsoll"))
