"""The three lists of the queue: what waits, what was decided, what is over without a decision."""

from enum import StrEnum

from approvals.queue import Approvals
from approvals.statement import Action
from approvals.ticket import Ticket, TicketState

_PAGE = 100
MAX_SHOWN = 500
"""Tickets of one state in a list; the verbs page through more."""


class Section(StrEnum):
    """A list."""

    WAITING = "Waiting"
    DECIDED = "Decided"
    EXPIRED = "Expired"


STATES = {
    Section.WAITING: (TicketState.PENDING,),
    Section.DECIDED: (TicketState.APPROVED, TicketState.REJECTED, TicketState.USED),
    Section.EXPIRED: (TicketState.EXPIRED, TicketState.WITHDRAWN),
}

_RISK = (
    Action.VERSION,
    Action.CHECK,
    Action.TOKEN,
    Action.FIX,
    Action.DEPARTURE,
    Action.FINDING,
    Action.TASK,
    Action.PLAN,
    Action.RERUN,
)
"""What changes how everything is judged comes first, then what counts, then what runs."""


def load(approvals: Approvals, section: Section) -> list[Ticket]:
    """The tickets of a section: waiting ones by risk, cost and age, the others newest first."""
    found = [ticket for state in STATES[section] for ticket in _of_state(approvals, state)]
    if section is Section.WAITING:
        return sorted(found, key=_urgency)
    return sorted(found, key=lambda ticket: (-_changed(ticket), ticket.id))


def count(approvals: Approvals, section: Section) -> int:
    """How many tickets a section has."""
    return sum(approvals.count(state) for state in STATES[section])


def fits(ticket: Ticket, words: str) -> bool:
    """Whether a ticket has all these words in its id, action, title, requester, state or rule."""
    request = ticket.request
    text = " ".join((ticket.id, request.action, request.title, request.requester, ticket.state, ticket.rule))
    return all(word in text.lower() for word in words.lower().split())


def _of_state(approvals: Approvals, state: TicketState) -> list[Ticket]:
    found: list[Ticket] = []
    while len(found) < MAX_SHOWN:
        page = approvals.tickets(state, _PAGE, found[-1].id if found else None)
        found += page
        if len(page) < _PAGE:
            break
    return found


def _urgency(ticket: Ticket) -> tuple[int, int, int, str]:
    request = ticket.request
    return _RISK.index(request.action), -request.node_millihours, ticket.created, ticket.id


def _changed(ticket: Ticket) -> int:
    return max((each.issued for each in ticket.decisions), default=ticket.created)
