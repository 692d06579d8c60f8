"""How well requester and reviewer are kept apart. It is written into each statement and shown everywhere.

* T0: the example's key, or nothing keeps them apart;
* T1: one operating-system user, but the key needs a passphrase: an approval cannot be forged, yet a program
  of that user could change this program, or talk the passphrase out of the reviewer;
* T2: the requester is another user, who cannot write the database;
* T3: T2 with a key in a token, which wants a touch.
"""

import grp
import os
import pwd
from enum import StrEnum
from pathlib import Path

from approvals.origin import EXAMPLE


class Tier(StrEnum):
    """See the module."""

    T0 = "T0"
    T1 = "T1"
    T2 = "T2"
    T3 = "T3"


def request_tier(kind: str, database: Path | None, requester_uid: int | None) -> Tier:
    """The tier as far as it is known before anybody signs.

    ``requester_uid`` None: nobody knows who asks, so it may be the user that runs this. ``database`` None: it
    lies in memory.
    """
    if kind == EXAMPLE:
        return Tier.T0
    if requester_uid is None or requester_uid in (0, os.geteuid()) or database is None:
        return Tier.T1
    folders = [database.parent, *Path(os.path.realpath(database)).parents]
    beside = [database, *(database.with_name(f"{database.name}{suffix}") for suffix in ("-wal", "-shm"))]
    reachable = any(_can_write(path, requester_uid) for path in (*beside, *folders) if path.exists())
    return Tier.T1 if reachable else Tier.T2


def statement_tier(requested: str, hardware: bool) -> Tier:
    """The tier with the key that signs."""
    return Tier.T3 if requested == Tier.T2 and hardware else Tier(requested)


def _can_write(path: Path, uid: int) -> bool:
    """Whether a user can change a file, or what a folder holds (sticky folders: only own things)."""
    found = path.stat()
    if found.st_uid == uid:
        return True
    if path.is_dir() and found.st_mode & 0o1000:
        return False
    in_group = found.st_gid in _groups(uid)
    return bool(found.st_mode & 0o002 or (in_group and found.st_mode & 0o020))


def _groups(uid: int) -> set[int]:
    try:
        user = pwd.getpwuid(uid)
    except KeyError:  # a number without an account: only what the mode gives to everybody
        return set()
    named = {group.gr_gid for group in grp.getgrall() if user.pw_name in group.gr_mem}
    return named | {user.pw_gid}
