"""More classes of bad approvals: edited rows and logs, missing signatures, other keys and policies."""

import random
from typing import Any

from approvals.errors import Refused
from approvals.statement import Action
from tests.approvals import attacks
from tests.approvals.bad_approvals import NAMESPACE, World, bad_class, submit, use
from tests.approvals.reviewers import Queue, request, signed

_EDITS: list[tuple[str, str, Any]] = [
    ("requests", "nonce", "0" * 32),
    ("requests", "sha256", "1" * 64),
    ("requests", "created", 1),
    ("requests", "expires", 2**40),
    ("requests", "rule", "judge"),
    ("requests", "policy_sha256", "2" * 64),
    ("requests", "tier", "T3"),
    ("requests", "prefix", "A-0123456789"),
    ("requests", "n", 7),
    ("requests", "request", "{}"),
    ("requests", "request", "no json"),
    ("decisions", "signer", "grace"),
    ("decisions", "decision", "reject"),
    ("decisions", "statement", "{}"),
    ("decisions", "statement", "no json"),
    ("decisions", "sha256", "3" * 64),
    ("decisions", "signature", "-----BEGIN SSH SIGNATURE-----\nAAAA\n-----END SSH SIGNATURE-----\n"),
    ("decisions", "ticket", "A-0123456789-1"),
    ("workspace", "id", "4" * 32),
]


@bad_class
def edited_database_row(world: World, rng: random.Random, honest: bool) -> None:
    """One column of one row is another value, or a row is gone."""
    queue, ticket = world.queue.copy(), world.approved
    attacks.disarm(queue.connection)
    if not honest and rng.random() < 0.1:
        queue.connection.execute("delete from decisions where ticket = ?", (ticket,))
    elif not honest:
        table, column, value = rng.choice(_EDITS)
        where = {"requests": f"id = '{ticket}'", "decisions": f"ticket = '{ticket}'", "workspace": "1"}
        attacks.edit(queue.connection, table, column, value, where[table])
    use(queue, ticket)


@bad_class
def kind_of_workspace_changed(world: World, rng: random.Random, honest: bool) -> None:
    """A real workspace is made to look like an example, whose throwaway key then signs."""
    queue = (world.example if honest else world.queue).copy()
    ticket = world.example_ticket if honest else rng.choice([world.pending, *world.others])
    if not honest:
        attacks.edit(queue.connection, "workspace", "kind", "example")
        queue.trust = world.example.trust
        if rng.random() < 0.5:
            attacks.rewrite_log(
                queue.connection,
                1,
                lambda e: (
                    e.model_copy(update={"detail": {"kind": "example"}})
                    if e.event == "workspace_created"
                    else e
                ),
            )
    queue.approve(ticket, world.example_key)
    use(queue, ticket)


@bad_class
def truncated_log(world: World, rng: random.Random, honest: bool) -> None:
    """The end of the log, or a piece of it, is gone."""
    queue = world.queue.copy()
    attacks.disarm(queue.connection)
    (length,) = queue.connection.execute("select max(seq) from audit").fetchone()
    first = rng.randrange(1, length + 1)
    last = length if rng.random() < 0.7 else rng.randrange(first, length + 1)
    if not honest:
        queue.connection.execute("delete from audit where seq between ? and ?", (first, last))
    use(queue, world.approved)


@bad_class
def recomputed_log(world: World, rng: random.Random, honest: bool) -> None:
    """Before a signed head an entry was changed, and every hash after it recomputed."""
    queue = world.queue.copy()
    (head,) = queue.connection.execute(
        "select max(json_extract(statement, '$.log_length')) from decisions"
    ).fetchone()
    first = rng.randrange(1, head + 1)
    if not honest:
        attacks.rewrite_log(
            queue.connection,
            first,
            lambda e: (
                e.model_copy(update={"at": f"2020-01-01T00:00:00.{rng.randrange(1000):03}+00:00"})
                if e.seq == first
                else e
            ),
        )
    use(queue, world.approved)


@bad_class
def example_key_in_a_real_workspace(world: World, rng: random.Random, honest: bool) -> None:
    """The throwaway key signs, in either namespace and any name, where it does not count."""
    if honest:
        queue = world.example.copy()
        queue.approve(world.example_ticket, world.example_key)
        use(queue, world.example_ticket)
        return
    statement = world.statement.model_copy(update={"signer": rng.choice(["ada", "example", "agent"])})
    namespace = rng.choice([NAMESPACE, "plumbline-example@v1"])
    signature = signed(statement, world.example_key, namespace)
    submit(world.queue.copy(), world.pending, statement, signature, rng)


@bad_class
def too_few_signers(world: World, rng: random.Random, honest: bool) -> None:
    """Two have to sign that a check changes: one did, or one did twice, or one key has two names."""
    queue = world.team.copy()
    reviewers = [world.ada, world.grace]
    rng.shuffle(reviewers)
    if honest:
        queue.approve(world.check, *reviewers)
    elif rng.random() < 0.3:
        _one_key_two_names(world, queue)
        return
    else:
        queue.approve(world.check, reviewers[0])
        if rng.random() < 0.7:
            _sign_again(world, queue, rng, reviewers[0].name)
    use(queue, world.check)


def _sign_again(world: World, queue: Queue, rng: random.Random, name: str) -> None:
    """A second decision of the same reviewer."""
    (text,) = queue.connection.execute("select statement from decisions").fetchone()
    first = type(world.statement).parse(text)
    again = first.model_copy(update={"reason": f"again {rng.random()}"})
    reviewer = world.ada if name == "ada" else world.grace
    attacks.plant(queue.connection, world.check, again, signed(again, reviewer, NAMESPACE))


def _one_key_two_names(world: World, queue: Queue) -> None:
    """The trust roots were edited by hand: one key stands there under two names."""
    queue = Queue(queue.connection, world.doubled, queue.clock)
    ticket = queue.approvals.request(request(action=Action.CHECK, content="doubled")).id
    drafts = [queue.approvals.draft(ticket, "approve", name) for name in ("ada", "lovelace")]
    for statement in drafts:
        attacks.plant(queue.connection, ticket, statement, signed(statement, world.ada, NAMESPACE))
    use(queue, ticket)


@bad_class
def requester_signs(world: World, rng: random.Random, honest: bool) -> None:
    """Under the policy of a team whoever asked signs, by the front door or by writing rows."""
    queue = world.team.copy()
    reviewer = world.grace if honest else world.ada
    statement = queue.approvals.draft(world.own, "approve", "grace", f"{rng.random()}")
    statement = statement.model_copy(update={"signer": reviewer.name})
    submit(queue, world.own, statement, signed(statement, reviewer, NAMESPACE), rng)


@bad_class
def policy_changed(world: World, rng: random.Random, honest: bool) -> None:
    """The policy of today is another one than when it was asked and signed."""
    queue = world.queue.copy()
    queue.trust = world.trust if honest else rng.choice(world.policies)
    if rng.random() < 0.5:
        use(queue, world.approved)
    else:
        submit(queue, world.pending, world.statement, world.signature, rng)


@bad_class
def another_workspace(world: World, rng: random.Random, honest: bool) -> None:
    """The same request was approved in another workspace."""
    if honest:
        use(world.neighbour.copy(), world.neighbours_ticket)
        return
    decision = world.neighbour.approvals.ticket(world.neighbours_ticket).decisions[0]
    statement = type(world.statement).parse(decision.statement)
    if rng.random() < 0.5:
        mine = {"workspace": world.statement.workspace, "ticket": world.pending}
        statement = statement.model_copy(update=mine)
    submit(world.queue.copy(), world.pending, statement, decision.signature, rng)


@bad_class
def rejected(world: World, rng: random.Random, honest: bool) -> None:
    """A reviewer rejected it: it is used all the same, with the row, or row and log entry, removed."""
    queue, kind = world.queue.copy(), rng.randrange(3)
    if not honest:
        attacks.edit(queue.connection, "requests", "state", "approved")
    if not honest and kind:
        queue.connection.execute("delete from decisions where decision = 'reject'")
    if not honest and kind == 2:
        first = attacks.seq_of(queue.connection, "approval_decided", world.rejected)
        attacks.rewrite_log(
            queue.connection, first, lambda e: None if e.detail.get("decision") == "reject" else e
        )
    use(queue, world.approved if honest else world.rejected)


@bad_class
def withdrawn(world: World, rng: random.Random, honest: bool) -> None:
    """Its requester took it back: it is used all the same, with row, or row and log, made to look open."""
    queue, kind = world.queue.copy(), rng.randrange(3)
    if not honest and kind:
        attacks.edit(queue.connection, "requests", "state", "approved")
    if not honest and kind == 2:
        first = attacks.seq_of(queue.connection, "approval_withdrawn", world.withdrawn)
        attacks.rewrite_log(queue.connection, first, lambda e: None if e.event == "approval_withdrawn" else e)
    use(queue, world.approved if honest else world.withdrawn)


@bad_class
def unsigned(world: World, rng: random.Random, honest: bool) -> None:
    """Nobody signed: the state says approved, or a statement stands there without a signature."""
    queue = world.queue.copy()
    ticket = world.approved if honest else rng.choice([world.pending, *world.others])
    attacks.edit(queue.connection, "requests", "state", "approved")
    if not honest and rng.random() < 0.5:
        attacks.plant(queue.connection, world.pending, world.statement, rng.choice(["", "approved", "{}"]))
    use(queue, ticket)


@bad_class
def too_many_attempts(world: World, rng: random.Random, honest: bool) -> None:
    """More uses than were signed."""
    attempt = 2 if honest else rng.choice([0, 3, -1, rng.randrange(3, 10**9), -rng.randrange(1, 10**9)])
    use(world.queue.copy(), world.approved, attempt=attempt)


@bad_class
def key_out_of_date(world: World, rng: random.Random, honest: bool) -> None:
    """The key counted until a day that has passed."""
    queue = world.queue.copy()
    queue.trust = world.outdated[2] if honest else rng.choice(world.outdated[:2])
    use(queue, world.by_grace)


@bad_class
def task_does_not_hold(world: World, rng: random.Random, honest: bool) -> None:
    """A plan is good in itself; the task that it comes under is withdrawn, rejected, or was edited."""
    queue = world.queue.copy()
    kind = rng.randrange(3)
    if not honest and kind == 0:
        queue.approvals.withdraw(world.task, "agent")
    if not honest and kind == 1:
        queue.approve(world.task, world.grace, decision="reject")
    if not honest and kind == 2:
        attacks.edit_request(queue.connection, world.task, False, node_millihours=rng.randrange(10**9))
    use(queue, world.under)


def outcome(world: World, name: str, rng: random.Random, honest: bool) -> str:
    """What a case ends with: "" when it was accepted, else why it was refused."""
    from tests.approvals.bad_approvals import CLASSES

    try:
        CLASSES[name](world, rng, honest)
    except Refused as refusal:
        return f"{refusal.message}; next: {refusal.next_step}"
    return ""
