"""Reviewers with real keys, and queues to sign in. Signing is ssh-keygen's; nothing is stood in for."""

import shutil
import sqlite3
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from approvals import tables
from approvals.audit import AuditLog
from approvals.origin import origin
from approvals.queue import Approvals
from approvals.signatures import sign
from approvals.statement import Action, Request, Statement
from approvals.ticket import Ticket
from approvals.trust import TrustRoots

PASSPHRASE = "correct horse"
START = 1_800_000_000
"""When the tests' clocks begin, seconds since 1970."""


class Clock:
    """A clock that is set."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> float:
        return self.now


@dataclass
class Reviewer:
    """A name and two files of one key: with its passphrase, for enrolment, and opened, to sign quickly."""

    name: str
    locked: Path
    opened: Path

    @property
    def public(self) -> Path:
        return self.locked.with_name(f"{self.locked.name}.pub")


def ssh_keygen(*arguments: str, data: bytes = b"") -> str:
    """The program as a person starts it; it has to succeed."""
    done = subprocess.run(["/usr/bin/ssh-keygen", *arguments], input=data, capture_output=True, check=True)
    return done.stdout.decode()


def make_reviewer(name: str, folder: Path) -> Reviewer:
    """A key with a passphrase, and a copy that has none."""
    locked, opened = folder / name, folder / f"{name}-opened"
    ssh_keygen("-q", "-t", "ed25519", "-N", PASSPHRASE, "-C", name, "-f", str(locked))
    shutil.copyfile(locked, opened)
    opened.chmod(0o600)
    ssh_keygen("-q", "-p", "-P", PASSPHRASE, "-N", "", "-f", str(opened))
    return Reviewer(name, locked, opened)


def request(**changed: object) -> Request:
    """A plan of two jobs."""
    values = {
        "action": Action.PLAN,
        "title": "train the recipe",
        "content": {"jobs": [{"name": "first", "steps": 100}, {"name": "second", "lr": 0.001}]},
        "subjects": {"model/weights.safetensors": "a1" * 32, "pack": "b2" * 32},
        "requester": "agent",
        "node_millihours": 1500,
        "uses": ("c3" * 32, "d4" * 32),
        "attempts": 2,
    }
    return Request.model_validate(values | changed)


@dataclass
class Queue:
    """A workspace's database with the trust roots that its reviewers have."""

    connection: sqlite3.Connection
    trust: TrustRoots
    clock: Clock = field(default_factory=Clock)

    @property
    def approvals(self) -> Approvals:
        found = origin(self.connection)
        return Approvals(self.connection, self.trust, found.id, found.kind, self.clock)

    def copy(self) -> "Queue":
        """The same queue in a database of its own."""
        connection = connect(":memory:")
        self.connection.backup(connection)
        clock = Clock()
        clock.now = self.clock.now
        return Queue(connection, self.trust, clock)

    def approve(self, ticket: Ticket | str, *reviewers: Reviewer, decision: str = "approve") -> Ticket:
        """Draft, sign and record, by each in turn."""
        identifier = ticket if isinstance(ticket, str) else ticket.id
        for reviewer in reviewers:
            statement = self.approvals.draft(identifier, decision, reviewer.name, "as discussed")
            self.approvals.record(identifier, statement, signed(statement, reviewer, self.trust.namespace))
        return self.approvals.ticket(identifier)


def signed(statement: Statement | bytes, reviewer: Reviewer, namespace: str) -> str:
    """The signature of a reviewer."""
    data = statement if isinstance(statement, bytes) else statement.bytes()
    return sign(data, reviewer.opened, namespace, tty=False)


def connect(path: Path | str) -> sqlite3.Connection:
    """A connection as the workspace opens one."""
    connection = sqlite3.connect(path, isolation_level=None, timeout=30)
    for pragma in ("busy_timeout=30000", "trusted_schema=off", "foreign_keys=on", "synchronous=full"):
        connection.execute(f"pragma {pragma}")
    return connection


def new_queue(trust: TrustRoots, path: Path | str = ":memory:") -> Queue:
    """An empty queue."""
    connection = connect(path)
    AuditLog(connection).create()
    tables.create(connection)
    queue = Queue(connection, trust)
    origin(connection, "example" if trust.is_example else "real")
    return queue


def trusting(folder: Path, policy: str, *reviewers: Reviewer) -> TrustRoots:
    """Trust roots in which these are enrolled."""
    trust = TrustRoots(folder)
    for reviewer in reviewers:
        trust.enrol(reviewer.name, reviewer.public)
    trust.use_policy(policy)
    return trust
