"""Which weights float32 arithmetic would certainly move: those beyond what rounding can have done to a move.

The share of them that did not move is a measured value, so its edge is drawn as the rule draws it: a move
counts when it exceeds two float32 neighbours of the weight by more than twice its running error (Higham 2002,
section 3.3), each operation in the parameter's dtype, a scalar
factor rounded to it first. Only optimizers with a closed form here have one.
"""

import math

import numpy as np

from plumbline_mcp.findings.recompute.decoding import Floats
from plumbline_mcp.findings.recompute.recipe import Recipe
from plumbline_mcp.findings.recompute.updates import TINY, Start

SLACK = 2.0


def running_error(recipe: Recipe, start: Start) -> Floats | None:
    """First-order bound on the rounding of each element's move; None without a closed form here."""
    if recipe.optimizer in ("adam", "adamw"):
        return _adam(recipe, start)
    return _sgd(recipe, start) if recipe.optimizer == "sgd" else None


def _gradient(recipe: Recipe, start: Start, unit: float) -> tuple[Floats, Floats]:
    """The gradient with coupled decay, and its error."""
    plain = np.zeros_like(start.gradient)
    if recipe.optimizer == "adamw" or not start.decay:
        return start.gradient, plain
    added = start.before * start.decay
    whole = start.gradient + added
    return whole, 2 * unit * np.abs(added) + unit * np.abs(whole)


def _adam(recipe: Recipe, start: Start) -> Floats:
    unit, (one, two) = start.unit(), recipe.betas
    gradient, error = _gradient(recipe, start, unit)
    zeros = np.zeros(start.before.shape)
    first, first_error = _mixed(start.state.get("exp_avg", zeros), gradient, error, one, unit)
    square = gradient * gradient
    square_error = 2 * np.abs(gradient) * error + error**2 + unit * square
    second, second_error = _mixed(start.state.get("exp_avg_sq", zeros), square, square_error, two, unit)
    second_error = second_error + TINY
    root = np.sqrt(np.maximum(second, 0))
    above = np.sqrt(np.maximum(second, 0) + second_error) - root
    below = root - np.sqrt(np.maximum(second - second_error, 0))
    share = 1 / math.sqrt(1 - two**start.number)
    divisor = root * share
    divisor_error = (np.maximum(above, below) + unit * root) * share + 2 * unit * divisor
    divisor_error = divisor_error + unit * recipe.epsilon + unit * (divisor + recipe.epsilon)
    divisor = divisor + recipe.epsilon
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = first / divisor
        least = divisor - divisor_error
        found = np.where(least > 0, (first_error + np.abs(ratio) * divisor_error) / least, np.inf)
    still = (first == 0) & (first_error == 0)
    ratio, found = np.where(still, 0.0, ratio), np.where(still, 0.0, found)
    rate = start.rate / (1 - one**start.number)
    return np.asarray((found + unit * np.abs(ratio)) * rate + 2 * unit * np.abs(ratio * rate))


def _mixed(old: Floats, new: Floats, error: Floats, kept: float, unit: float) -> tuple[Floats, Floats]:
    """An exponential average of a recorded and a computed number, and its error."""
    left, right = old * kept, new * (1.0 - kept)
    rounding = 2 * unit * np.abs(left) + error * (1.0 - kept) + 2 * unit * np.abs(right)
    return left + right, rounding + unit * np.abs(left + right)


def _sgd(recipe: Recipe, start: Start) -> Floats:
    unit, momentum = start.unit(), recipe.number("momentum")
    gradient, error = _gradient(recipe, start, unit)
    if momentum and "momentum_buffer" in start.state:
        kept = start.state["momentum_buffer"] * momentum
        buffer = kept + gradient
        buffer_error = 2 * unit * np.abs(kept) + error + unit * np.abs(buffer)
    else:
        buffer, buffer_error = gradient, error
    if momentum and recipe.flag("nesterov"):
        more = buffer * momentum
        whole = gradient + more
        error = error + buffer_error * momentum + 2 * unit * np.abs(more) + unit * np.abs(whole)
        gradient = whole
    elif momentum:
        gradient, error = buffer, buffer_error
    return np.asarray(error * start.rate + 2 * unit * np.abs(gradient * start.rate))
