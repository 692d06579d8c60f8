"""Classes of bad approvals. Each is a way to get a ticket accepted, once as it should be and then never.

A class is a function of a world, a generator of random numbers and whether to be honest: it returns when the
use was accepted and raises `Refused` when not. Whoever cheats may be an agent that calls the functions, or
the owner of the database file, who writes rows and recomputes the log.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from approvals.statement import Action, Statement
from approvals.trust import TrustRoots
from tests.approvals import attacks
from tests.approvals.reviewers import Queue, Reviewer, new_queue, request, signed, trusting

Class = Callable[["World", random.Random, bool], None]
CLASSES: dict[str, Class] = {}

FIRST, SECOND = "c3" * 32, "d4" * 32
NAMESPACE = "plumbline-approval@v1"


def bad_class(function: Class) -> Class:
    """Register a class under its function's name."""
    CLASSES[function.__name__.replace("_", " ")] = function
    return function


@dataclass
class World:
    """Two queues with everything that an attack needs, made once; attacks work on copies."""

    folder: Path
    ada: Reviewer
    grace: Reviewer
    mallory: Reviewer

    def __post_init__(self) -> None:
        self.trust = trusting(self.folder / "solo", "solo", self.ada, self.grace)
        self.queue = new_queue(self.trust)
        self.approved = self._ask("approved", self.ada)
        self.by_grace = self._ask("by grace", self.grace)
        self.task = self._ask("task", self.ada, action=Action.TASK, node_millihours=9000)
        self.under = self._ask("under", self.ada, under=self.task)
        self.rejected = self._ask("rejected", self.ada)
        self.queue.approve(self.rejected, self.grace, decision="reject")
        self.withdrawn = self._ask("withdrawn", self.ada)
        self.queue.approvals.withdraw(self.withdrawn, "agent")
        self.used = self._ask("used", self.ada)
        use(self.queue, self.used)
        self.pending, self.others = self._ask("pending"), [self._ask(f"other {n}") for n in range(3)]
        self.statement = self.queue.approvals.draft(self.pending, "approve", "ada", "as discussed")
        self.signature = signed(self.statement, self.ada, NAMESPACE)
        self._ask("last", self.grace)  # her signature holds the head that follows all of the above
        self._make_team()
        self._make_others()

    def _ask(self, title: str, *reviewers: Reviewer, **changed: object) -> str:
        ticket = self.queue.approvals.request(request(content={"title": title, "steps": 100}, **changed))
        self.queue.clock.now += 10
        return self.queue.approve(ticket, *reviewers).id

    def _make_team(self) -> None:
        self.team = new_queue(trusting(self.folder / "team", "team", self.ada, self.grace))
        approvals = self.team.approvals
        self.check = approvals.request(request(action=Action.CHECK, content="a check")).id
        self.own = approvals.request(request(requester="ada", content="ada's plan")).id

    def _make_others(self) -> None:
        example = TrustRoots.example(self.folder / "example")
        self.example = new_queue(example)
        self.example_key = Reviewer("example", example.key_of("example"), example.key_of("example"))
        self.example_ticket = self.example.approvals.request(request()).id
        self.neighbour = new_queue(self.trust)
        ticket = self.neighbour.approvals.request(request(content={"title": "pending", "steps": 100}))
        self.neighbours_ticket = self.neighbour.approve(ticket, self.ada).id
        self.revoked = [
            self._changed(n, lambda trust, name=name: trust.revoke(name))
            for n, name in enumerate(("grace", self._fingerprint()))
        ]
        self.policies = [
            self._changed(10, lambda trust: trust.use_policy("team")),
            self._changed(11, lambda trust: append(trust.policy_file, "\n# looser\n")),
            self._changed(12, lambda trust: trust.policy_file.unlink()),
        ]
        self.outdated = [
            self._changed(20 + n, lambda trust, day=day: dated(trust, day))
            for n, day in enumerate(("20270101", "20270114", "20280101"))
        ]
        self.doubled = trusting(self.folder / "doubled", "team", self.ada)
        (line,) = self.doubled.allowed_signers.read_text().splitlines()
        append(self.doubled.allowed_signers, line.replace("ada ", "lovelace ", 1) + "\n")

    def _fingerprint(self) -> str:
        return self.trust.signers_of("grace")[0].key.fingerprint

    def _changed(self, number: int, change: Callable[[TrustRoots], object]) -> TrustRoots:
        trust = trusting(self.folder / f"trust-{number}", "solo", self.ada, self.grace)
        change(trust)
        return trust


def append(path: Path, text: str) -> None:
    path.write_text(path.read_text() + text)


def dated(trust: TrustRoots, day: str) -> None:
    """Let grace's key count until a day."""
    text = trust.allowed_signers.read_text()
    before = f'grace namespaces="{NAMESPACE}"'
    trust.allowed_signers.write_text(text.replace(before, f'{before},valid-before="{day}Z"'))


def use(queue: Queue, ticket: str, digest: str = FIRST, attempt: int = 1, **subjects: str) -> None:
    """Verify and consume, as whoever starts a job does."""
    queue.approvals.verify(ticket)
    queue.approvals.consume(ticket, digest, attempt, subjects)


def submit(queue: Queue, ticket: str, statement: Statement, signature: str, rng: random.Random) -> None:
    """Bring a decision in, by the front door or by writing rows and log, then use it."""
    if rng.random() < 0.5:
        queue.approvals.record(ticket, statement, signature)
    else:
        attacks.plant(queue.connection, ticket, statement, signature)
    use(queue, ticket)


def flipped(rng: random.Random, digest: str) -> str:
    """The digest with one digit changed."""
    at = rng.randrange(len(digest))
    return digest[:at] + rng.choice([d for d in "0123456789abcdef" if d != digest[at]]) + digest[at + 1 :]


@bad_class
def forged(world: World, rng: random.Random, honest: bool) -> None:
    """No signature over this statement: changed, cut, empty, of other bytes, or repeated text."""
    lines = world.signature.splitlines(keepends=True)
    body = rng.randrange(1, len(lines) - 1)
    at = rng.randrange(20 if body == 1 else 0, len(lines[body]) - 3)
    old = lines[body][at]
    lines[body] = lines[body][:at] + ("A" if old != "A" else "B") + lines[body][at + 1 :]
    other = world.queue.approvals.ticket(world.approved).decisions[0].signature
    bad = rng.choice(["".join(lines), "", world.signature[: rng.randrange(300)], other, "x" * 20_000])
    submit(world.queue.copy(), world.pending, world.statement, world.signature if honest else bad, rng)


@bad_class
def replayed(world: World, rng: random.Random, honest: bool) -> None:
    """A use again, with its row or log entry removed or not; or an old statement on a new ticket."""
    queue = world.queue.copy()
    if honest:
        use(queue, world.used, attempt=2)
        return
    kind = rng.randrange(4)
    if kind == 1:
        attacks.disarm(queue.connection)
        queue.connection.execute("delete from uses")
    if kind == 2:
        attacks.disarm(queue.connection)
        queue.connection.execute("delete from uses")
        first = attacks.seq_of(queue.connection, "approval_used", world.used)
        attacks.rewrite_log(queue.connection, first, lambda e: None if e.event == "approval_used" else e)
    if kind == 3:
        old = queue.approvals.ticket(world.used).decisions[0]
        queue.approvals.withdraw(world.used, "agent")
        again = queue.approvals.request(queue.approvals.ticket(world.used).request).id
        submit(queue, again, Statement.parse(old.statement), old.signature, rng)
    use(queue, world.used)


@bad_class
def expired(world: World, rng: random.Random, honest: bool) -> None:
    """The clock is past the end; or the end was moved, in the row or in row and log."""
    queue = world.queue.copy()
    end = queue.approvals.ticket(world.approved).expires
    queue.clock.now = end - 1 if honest else end + rng.choice([0, 1, rng.randrange(10**8)])
    if not honest and (later := rng.randrange(3)):
        far = queue.clock.now + 1000
        attacks.edit(queue.connection, "requests", "expires", far, f"id = '{world.approved}'")
        if later == 2:
            first = attacks.seq_of(queue.connection, "approval_requested", world.approved)
            attacks.rewrite_log(
                queue.connection,
                first,
                lambda e: attacks.with_detail(e, "approval_requested", world.approved, expires=far),
            )
    use(queue, world.approved)


@bad_class
def altered_argument(world: World, rng: random.Random, honest: bool) -> None:
    """The content, cost or title of what was signed is another."""
    changes: list[dict[str, object]] = [
        {"content": {"title": "approved", "steps": rng.randrange(101, 10**6)}},
        {"content": {"title": "approved", "steps": 100, "more": rng.random()}},
        {"content": {"title": "approved", "steps": "100"}},
        {"node_millihours": rng.randrange(1501, 10**9)},
        {"attempts": rng.randrange(3, 100)},
        {"title": "train something else"},
        {"requester": "somebody"},
    ]
    queue = world.queue.copy()
    changed = {} if honest else rng.choice(changes)
    attacks.edit_request(queue.connection, world.approved, not honest and rng.random() < 0.7, **changed)
    use(queue, world.approved)


@bad_class
def altered_job_text(world: World, rng: random.Random, honest: bool) -> None:
    """The digest of the job that is to run is not one of those that were signed."""
    queue, other = world.queue.copy(), flipped(rng, FIRST)
    if not honest and rng.random() < 0.5:
        thorough = rng.random() < 0.5
        attacks.edit_request(queue.connection, world.approved, thorough, uses=(FIRST, SECOND, other))
    use(queue, world.approved, FIRST if honest else other)


@bad_class
def swapped_model_file(world: World, rng: random.Random, honest: bool) -> None:
    """A file that it acts on has another digest now; or the digest in the request was changed to fit."""
    queue, name = world.queue.copy(), "model/weights.safetensors"
    measured = "a1" * 32 if honest else flipped(rng, "a1" * 32)
    if not honest and rng.random() < 0.5:
        subjects = {name: measured, "pack": "b2" * 32}
        attacks.edit_request(queue.connection, world.approved, rng.random() < 0.5, subjects=subjects)
    if not honest and rng.random() < 0.2:
        name = "model/other.safetensors"
    use(queue, world.approved, FIRST, 1, **{name: measured})


@bad_class
def self_signed(world: World, rng: random.Random, honest: bool) -> None:
    """Signed with a key that is not enrolled, in somebody's name."""
    name = "ada" if honest else rng.choice(["ada", "grace", "mallory", "agent"])
    statement = world.statement.model_copy(update={"signer": name, "reason": f"fine {rng.random()}"})
    signature = signed(statement, world.ada if honest else world.mallory, NAMESPACE)
    submit(world.queue.copy(), world.pending, statement, signature, rng)


@bad_class
def wrong_namespace(world: World, rng: random.Random, honest: bool) -> None:
    """An enrolled key signed these bytes for another purpose."""
    others = ["file", "git", "plumbline-approval@v2", "plumbline-example@v1", "Plumbline-approval@v1"]
    signature = signed(world.statement, world.ada, NAMESPACE if honest else rng.choice(others))
    submit(world.queue.copy(), world.pending, world.statement, signature, rng)


@bad_class
def revoked_key(world: World, rng: random.Random, honest: bool) -> None:
    """The key was revoked before the use, or before the decision was recorded."""
    queue = world.queue.copy()
    statement = queue.approvals.draft(world.pending, "approve", "grace", "as discussed")
    signature = signed(statement, world.grace, NAMESPACE)
    queue.trust = world.trust if honest else rng.choice(world.revoked)
    if rng.random() < 0.5:
        submit(queue, world.pending, statement, signature, rng)
    else:
        use(queue, world.by_grace)


@bad_class
def wrong_ticket(world: World, rng: random.Random, honest: bool) -> None:
    """A good statement about one ticket is brought in for another."""
    ticket = world.pending if honest else rng.choice(world.others)
    statement = world.statement
    if not honest and rng.random() < 0.5:
        statement = statement.model_copy(update={"ticket": ticket})
    submit(world.queue.copy(), ticket, statement, world.signature, rng)


@bad_class
def altered_statement(world: World, rng: random.Random, honest: bool) -> None:
    """A field of what was signed is another one."""
    changes: list[dict[str, object]] = [
        {"reason": "another reason"},
        {"issued": world.statement.issued + 1},
        {"expires": world.statement.expires + rng.randrange(1, 10**6)},
        {"tier": rng.choice(["T0", "T2", "T3"])},
        {"signer": "grace"},
        {"log_length": world.statement.log_length - 1},
        {"log_head": flipped(rng, world.statement.log_head)},
        {"nonce": flipped(rng, world.statement.nonce)},
        {"rule": "large-run"},
    ]
    statement = world.statement if honest else world.statement.model_copy(update=rng.choice(changes))
    submit(world.queue.copy(), world.pending, statement, world.signature, rng)
