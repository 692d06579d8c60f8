"""The question of the check *optimizer_step*, answered anew from the raw records of a training.

Is the loss the mean over the supervised tokens, and is each update the one that the recipe defines? All in
float64, from the recipe's settings; what a narrower dtype may round is bounded by intervals.
"""

from pathlib import Path

import numpy as np

from plumbline_mcp.findings.questions import Question, Submission
from plumbline_mcp.findings.recompute.answer import Answer, unknown
from plumbline_mcp.findings.recompute.gradients import (
    clip_flaws,
    global_norm,
    gradient_flaws,
    setting_flaws,
    witnesses,
)
from plumbline_mcp.findings.recompute.held import (
    adapter_flaws,
    group_flaws,
    lost_ranks,
    mode_flaws,
    rank_flaws,
    schedule_flaws,
    supervision_flaws,
)
from plumbline_mcp.findings.recompute.moved import moved
from plumbline_mcp.findings.recompute.objective import objective
from plumbline_mcp.findings.recompute.reading import Cannot, first_record
from plumbline_mcp.findings.recompute.recipe import Recipe, pack_folder
from plumbline_mcp.findings.recompute.step_record import Run, read_run
from plumbline_mcp.findings.recompute.tokens import tokens_of

PARTS = (
    "ranks", "supervision", "groups", "modes", "gradient", "weights", "loss", "adapters", "clip", "schedule",
    "update", "state", "lost_updates",
)  # fmt: skip
"""Causes before what follows from them."""


def recompute(folder: Path, question: Question) -> Submission:
    """Answer the question on the first record. Raises `Cannot`."""
    record = first_record(folder, question)
    record.refuse_cancelled()
    recipe = Recipe.of(record.settings, pack_folder(folder, question, record))
    run = read_run(record)
    answer = Answer(PARTS)
    lost = lost_ranks(run)
    answer.add(lost)
    if not run.steps and not lost:
        raise Cannot("the run recorded no training step")
    with np.errstate(invalid="ignore", over="ignore"):
        answer.add(rank_flaws(run, recipe))
        if not lost:
            _judge(answer, run, recipe)
    steps = len(run.full_steps)
    return answer.submission(f"{steps} full steps of {len(run.ranks)} ranks" if steps else "")


def _judge(answer: Answer, run: Run, recipe: Recipe) -> None:
    answer.add(supervision_flaws(run))
    answer.add(mode_flaws(run))
    answer.add(group_flaws(run, recipe))
    answer.add(setting_flaws(run, recipe))
    for step in run.full_steps:
        tokens, found = tokens_of(run, recipe, step), witnesses(run, step)
        answer.add(gradient_flaws(run, step, found))
        if found:
            worst = max(found, key=lambda one: one.beside / one.bound if one.bound else 0.0)
            answer.measured(
                "gradient", f"gradient beside the sum of all contributions, step {step}", worst.beside
            )
        objective(answer, run, recipe, tokens, found)
        norm = global_norm(run, step)
        if norm is not None:
            answer.measured("clip", f"gradient norm over all shards, step {step}", norm[0])
        answer.add(clip_flaws(run, recipe, tokens, found, norm))
    answer.add(schedule_flaws(run, recipe))
    answer.measured("schedule", "learning rate of the recipe", recipe.number("learning_rate"))
    answer.add(adapter_flaws(run, recipe))
    moved(answer, run, recipe)
    if not run.full_steps:
        answer.add([unknown("update", "no-full-step", "no step was recorded in full on every rank")])
