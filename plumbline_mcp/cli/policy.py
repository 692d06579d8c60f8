"""``plumbline policy``: which action needs how many signatures of whom."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from plumbline_mcp.cli.options import Json
from plumbline_mcp.cli.verbs import add_group

if TYPE_CHECKING:
    from approvals.policy import Policy, Rule

NAME = "policy"

_HELP = """The policy lies beside the reviewers' keys. Its digest is in each signed statement.

Example: plumbline policy show
"""


class PolicyName(StrEnum):
    """The policies that ship."""

    SOLO = "solo"
    TEAM = "team"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    add_group(
        app,
        NAME,
        _HELP,
        "Show or choose who has to sign what.",
        (("show", show, "Show the policy in force."), ("use", use, "Put a policy in force.")),
    )


def show(
    name: Annotated[PolicyName | None, typer.Argument(help="One that ships; without it, yours.")] = None,
    json_output: Json = False,
) -> None:
    """Show the rules, in the order in which they are tried: the first that fits a request decides.

    Example: plumbline policy show team
    """
    from approvals.policy import Policy, shipped
    from approvals.trust import TrustRoots

    found = Policy.load(shipped()[name.value]) if name else TrustRoots().policy()
    _print(found, json_output)


def use(
    name: Annotated[PolicyName, typer.Argument(help="solo: you alone. team: whoever asks never signs.")],
    json_output: Json = False,
) -> None:
    """Put a policy that ships in force, for every workspace of yours.

    What was asked under another policy and is not used yet has to be asked and signed again. For rules of
    your own edit policy.toml beside the keys.

    Example: plumbline policy use solo
    """
    from approvals.trust import TrustRoots

    _print(TrustRoots().use_policy(name.value), json_output)


def _print(found: "Policy", json_output: bool) -> None:
    from plumbline_mcp.cli.screen import console, labelled, print_json, table, untrusted

    if json_output:
        print_json(found)
        return
    cells = ([untrusted(text) for text in _cells(rule)] for rule in found.rules)
    columns = ("rule", "node-hours", "signatures", "who asks may sign", "void after", "actions")
    console().print(table(*columns, rows=cells))
    console().print(labelled("policy ", f"{found.name}, sha256 {found.sha256}"))


def _cells(rule: "Rule") -> tuple[str, ...]:
    cap = "any" if rule.max_node_hours is None else f"up to {rule.max_node_hours:,}"
    who = "" if rule.reviewers == "enrolled" else f" of {', '.join(rule.reviewers)}"
    days = f"{rule.expires_s / 86_400:g} days"
    actions = ", ".join(action.value for action in rule.actions)
    return rule.name, cap, f"{rule.signers}{who}", "yes" if rule.requester_may_sign else "no", days, actions
