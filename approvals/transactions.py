"""The one way the approvals write: inside the caller's write transaction, or in one of their own."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def write_transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Join the open transaction, which must be a write transaction, or take the write lock for a new one.

    ``begin immediate`` takes the lock before anything is read: a deferred transaction that reads first would
    decide on what another process is just changing.
    """
    if connection.in_transaction:
        yield
        return
    connection.execute("begin immediate")
    try:
        yield
        connection.execute("commit")
    except BaseException:
        connection.rollback()
        raise


@contextmanager
def read_transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Everything read inside is of one moment: join the open transaction, or begin one that only reads."""
    if connection.in_transaction:
        yield
        return
    connection.execute("begin")
    try:
        yield
    finally:
        connection.rollback()
