"""Policies as data: the first rule that fits decides, and what no rule fits is refused."""

import hashlib
from pathlib import Path

import pytest

from approvals.errors import Refused
from approvals.policy import Policy, shipped
from approvals.statement import Action
from approvals.trust import TrustRoots
from tests.approvals.reviewers import Reviewer, request, trusting

RULE = """
[[rule]]
name = "one"
actions = ["plan"]
signers = 1
reviewers = "enrolled"
requester_may_sign = false
expires_s = 60
"""
HEAD = 'format = 1\nname = "own"\n'


def written(tmp_path: Path, text: str) -> Policy:
    path = tmp_path / "policy.toml"
    path.write_text(text)
    return Policy.load(path)


@pytest.mark.parametrize("name", ["solo", "team"])
def test_what_ships_has_a_rule_for_every_action(name: str) -> None:
    policy = Policy.load(shipped()[name])
    assert policy.name == name
    assert policy.sha256 == hashlib.sha256(shipped()[name].read_bytes()).hexdigest()
    for action in Action:
        assert policy.rule_for(request(action=action)).signers >= 1


def test_in_a_team_the_requester_never_signs_and_two_sign_how_it_judges() -> None:
    team = Policy.load(shipped()["team"])
    assert not any(rule.requester_may_sign for rule in team.rules)
    two = {action for action in Action if team.rule_for(request(action=action)).signers == 2}
    assert two == {Action.CHECK, Action.VERSION}
    for action in (Action.PLAN, Action.FIX):  # a fix runs jobs, so it costs what a plan costs
        assert team.rule_for(request(action=action, node_millihours=1_000_001)).signers == 2


def test_alone_one_signs_everything() -> None:
    solo = Policy.load(shipped()["solo"])
    assert {rule.signers for rule in solo.rules} == {1}
    assert all(rule.requester_may_sign for rule in solo.rules)


def test_the_first_rule_that_fits_decides_by_action_and_cost(tmp_path: Path) -> None:
    cheap = RULE.replace('"one"', '"cheap"') + "max_node_hours = 2\n"
    policy = written(tmp_path, HEAD + cheap + RULE)
    names = [policy.rule_for(request(node_millihours=cost)).name for cost in (0, 2000, 2001)]
    assert names == ["cheap", "cheap", "one"]
    with pytest.raises(Refused, match=r"no rule of the policy 'own' allows finding at 1.5 node-hours"):
        policy.rule_for(request(action="finding"))


def test_a_rule_may_name_its_reviewers(tmp_path: Path, ada: Reviewer, grace: Reviewer) -> None:
    from tests.approvals.reviewers import new_queue

    trust = trusting(tmp_path / "trust", "solo", ada, grace)
    trust.policy_file.write_text(HEAD + RULE.replace('"enrolled"', '["grace"]'))
    queue = new_queue(trust)
    ticket = queue.approvals.request(request())
    with pytest.raises(Refused, match="ada is no reviewer of rule 'one'"):
        queue.approvals.draft(ticket.id, "approve", "ada")
    assert queue.approve(ticket, grace).state == "approved"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "format"),
        (HEAD, "rule"),
        (HEAD + RULE.replace("signers = 1", "signers = 0"), "rule.0.signers"),
        (HEAD + RULE.replace('["plan"]', '["everything"]'), "rule.0.actions.0"),
        (HEAD + RULE.replace('"enrolled"', '"anybody"'), "rule.0.reviewers"),
        (HEAD + RULE.replace('"enrolled"', "[]"), "rule.0.reviewers"),
        (HEAD + RULE + "signer = 2\n", "rule.0.signer"),
        (HEAD + RULE + "max_node_hours = 0.5\n", "rule.0.max_node_hours"),
        (HEAD + RULE + RULE, "have one name"),
        (HEAD.replace("1", "2") + RULE, "format"),
        ("no toml", "is not TOML"),
        (HEAD + "#" * 2**18, "is larger than"),
    ],
)
def test_a_file_that_is_no_policy_is_refused_and_the_place_named(
    tmp_path: Path, text: str, said: str
) -> None:
    with pytest.raises(Refused, match=said) as refused:
        written(tmp_path, text)
    assert refused.value.next_step


def test_without_a_policy_the_refusal_says_how_to_choose(tmp_path: Path, ada: Reviewer) -> None:
    trust = TrustRoots(tmp_path / "trust")
    trust.enrol("ada", ada.public)
    with pytest.raises(Refused, match="there is no policy") as refused:
        trust.policy()
    assert "plumbline policy use solo" in refused.value.next_step
    with pytest.raises(Refused, match="there is no policy 'lax'"):
        trust.use_policy("lax")
