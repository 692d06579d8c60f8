"""A thousand bad approvals, none of which is accepted, and each class accepted where it is honest."""

import random
from collections import Counter

import pytest

from tests.approvals.bad_approvals import CLASSES, World
from tests.approvals.bad_records import outcome
from tests.approvals.reviewers import Reviewer

CASES = 1000
SEED = 20261130


@pytest.fixture(scope="module")
def world(
    tmp_path_factory: pytest.TempPathFactory, ada: Reviewer, grace: Reviewer, mallory: Reviewer
) -> World:
    return World(tmp_path_factory.mktemp("world"), ada, grace, mallory)


def test_there_are_many_classes() -> None:
    assert len(CLASSES) >= 12


@pytest.mark.parametrize("name", CLASSES)
def test_each_class_is_accepted_in_its_honest_form(world: World, name: str) -> None:
    for seed in range(4):  # the doors that a class chooses by chance
        assert outcome(world, name, random.Random(seed), honest=True) == ""


@pytest.mark.parametrize("name", ["forged", "self signed", "wrong namespace"])
def test_without_the_signature_check_a_class_of_signatures_is_accepted(
    world: World, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cases fail at the signature, not at something that is wrong with them by accident."""
    signer = world.trust.signers_of("ada")[0]
    monkeypatch.setattr("approvals.decisions.verify", lambda *_: signer)
    assert "" in {outcome(world, name, random.Random(seed), honest=False) for seed in range(8)}


def test_of_a_thousand_bad_approvals_none_is_accepted(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    rng, accepted, counts = random.Random(SEED), Counter[str](), Counter[str]()
    reasons: dict[str, Counter[str]] = {name: Counter() for name in CLASSES}
    for number in range(CASES):
        name = list(CLASSES)[number % len(CLASSES)]
        refusal = outcome(world, name, rng, honest=False)
        counts[name] += 1
        accepted[name] += not refusal
        reasons[name][refusal] += 1
    with capsys.disabled():
        print(f"\n{CASES} bad approvals in {len(CLASSES)} classes (seed {SEED}):")
        for name in CLASSES:
            print(f"  {name:34} {counts[name]:4} bad, {accepted[name]} accepted")
        print(f"  accepted in all: {accepted.total()}")
    assert {name: n for name, n in accepted.items() if n} == {}
    assert all(len(counter) >= 1 for counter in reasons.values())
