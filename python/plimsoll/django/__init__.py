"""A cache backend for Django.

    CACHES = {
        "default": {
            "BACKEND": "plimsoll.django.PlimsollCache",
            "LOCATION": "/var/cache/site",
            "OPTIONS": {"size_limit": 10**9, "memory": "64MB"},
        }
    }

OPTIONS are those of `plimsoll.Cache`. Django's caches of pages and sessions store objects:
`"serializer": "pickle"` permits that, for a folder that only trusted programs can write to. Without
it, safe text (`mark_safe`, `{% cache %}`) is restored as safe text, and a lazy translation as text
in the language active when it was stored. Worker processes share the folder.

A worker opens the store at its first use of the cache and keeps it open, with its cached data,
until it ends.
"""

from ._backend import PlimsollCache

PlimsollCache.__module__ = __name__

__all__ = ["PlimsollCache"]
