"""The parts of an optimizer-step verdict, causes before what follows from them."""

import numpy as np

from checks.check import Progress
from checks.optimization.case import StepCase
from checks.optimization.clip_part import clip_part
from checks.optimization.gradient_parts import StepTokens, gradient_part, weights_part
from checks.optimization.group_parts import adapters_part, groups_part, schedule_part
from checks.optimization.loss_part import loss_part
from checks.optimization.modes_part import modes_part
from checks.optimization.ranks_part import ranks_part, supervision_part
from checks.optimization.tokens import token_batches
from checks.optimization.update_parts import update_parts
from checks.optimization.witnesses import measured
from checks.verdict import Outcome, Part

PARTS = (
    "ranks",
    "supervision",
    "groups",
    "modes",
    "gradient",
    "weights",
    "loss",
    "adapters",
    "clip",
    "schedule",
    "update",
    "state",
    "lost_updates",
)
_WANT_FULL_STEPS = ("loss", "weights", "gradient", "adapters", "clip", "update", "state", "lost_updates")


def judge_steps(case: StepCase, progress: Progress) -> list[Part]:
    """Every part. A rank that died or did not record leaves only what needs no other rank's numbers."""
    with np.errstate(invalid="ignore", over="ignore"):  # records may hold what is not finite
        return _judged(case, progress)


def _judged(case: StepCase, progress: Progress) -> list[Part]:
    ranks = ranks_part(case)
    if case.rank_problems:
        reason = "the run did not finish, or did not record, on every rank"
        return [ranks, *(_unjudged(name, reason) for name in PARTS[1:])]
    tokens = [
        StepTokens(step, tuple(token_batches(case, step)), tuple(measured(case, step)))
        for step in case.full_steps
    ]
    found = [
        ranks,
        supervision_part(case),
        groups_part(case),
        modes_part(case),
        gradient_part(case, tokens),
        weights_part(case, tokens),
        loss_part(case, tokens),
        adapters_part(case),
        clip_part(case, tokens),
        schedule_part(case),
        *update_parts(case, progress),
    ]
    if case.full_steps:
        return found
    reason = "no step was recorded in full on every rank"
    return [_unjudged(p.name, reason) if p.name in _WANT_FULL_STEPS and p.applicable else p for p in found]


def _unjudged(name: str, reason: str) -> Part:
    return Part(name=name, outcome=Outcome.NOT_EVALUATED, reason=reason)
