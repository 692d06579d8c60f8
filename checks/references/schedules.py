"""The learning rate of each step in closed form.

Source: the documentation of ``transformers.get_scheduler`` (release 5.24.0,
main_classes/optimizer_schedules): warm-up rises linearly from 0 over ``warmup_steps``; then constant,
linear to 0, or half a cosine to 0. Step n (counted from 1) is taken at schedule position n - 1.
"""

import math

from checks.references.recipe import Recipe


def learning_rate(recipe: Recipe, step: int, total: int) -> float:
    """The learning rate that optimizer step ``step`` (from 1) of ``total`` is taken with."""
    return recipe.learning_rate * _factor(recipe.schedule, step - 1, recipe.warmup(total), total)


def _factor(schedule: str, position: int, warmup: int, total: int) -> float:
    if schedule == "constant":
        return 1.0
    if position < warmup:
        return position / max(1, warmup)
    if schedule == "constant_with_warmup":
        return 1.0
    done = (position - warmup) / max(1, total - warmup)
    if schedule == "linear":
        return max(0.0, 1.0 - done)
    return max(0.0, 0.5 * (1.0 + math.cos(math.pi * done)))
