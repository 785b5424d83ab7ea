"""A ZODB storage on a Plimsoll store: `pip install plimsoll-db[zodb]`.

    import ZODB
    from plimsoll.zodb import PlimsollStorage

    db = ZODB.DB(PlimsollStorage("app.plimsoll", memory="256MB", blob_dir="blobs"))

In ZConfig, `%import plimsoll.zodb` and a section `<plimsoll>`; for zodburi, `plimsoll:///path?memory=256MB`.
"""

from .storage import PlimsollStorage

PlimsollStorage.__module__ = __name__

__all__ = ["PlimsollStorage"]
