"""Gradients recomputed from what passed through a linear layer; their norm, and what clipping did."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from plumbline_mcp.findings.recompute.answer import Flaw, unknown
from plumbline_mcp.findings.recompute.decoding import DTYPES, Floats, round_to
from plumbline_mcp.findings.recompute.reading import MAX_ELEMENTS, Cannot, lengths, number
from plumbline_mcp.findings.recompute.recipe import Recipe
from plumbline_mcp.findings.recompute.step_record import Full, Line, Run
from plumbline_mcp.findings.recompute.tokens import UNIT32, Tokens

DEVIATIONS = 4.0
"""Rounding of a gradient in root mean squares: errors are of mean zero, so their norm stays close to one."""
NORM = 4.0 * 2.0**13 * UNIT32
"""Relative rounding of a norm in float32: half of 8 sqrt(n / 16) units with n = 2^30."""
BLIND = 0.25
"""A bound from which a lost contribution could hide: of two contributions one is 0.7 of the whole."""
CLIP_TINY = 1e-6
"""What torch.nn.utils.clip_grad_norm_ adds to the norm (its documentation)."""


@dataclass(frozen=True)
class Witness:
    """A weight's recorded gradient G beside S, the sum of grad_output^T input: G = ``factor`` S.

    ``beside``: ||G - factor S|| / ||factor S||; ``bound`` the largest that rounding leaves.
    """

    tensor: str
    rank: int
    factor: float
    beside: float
    bound: float


def holders_of(run: Run, step: int) -> list[tuple[str, list[tuple[int, Full]]]]:
    """Every distinct part of every parameter with a gradient, and the ranks that hold it."""
    found = list(run.pieces(step))
    more: dict[str, list[tuple[int, Full]]] = {}
    for rank, full in run.files(step):
        for name in full.file.entries:
            if name.startswith("grad.raw.") and not full.has(f"before.{name[9:]}"):
                more.setdefault(name[9:], []).append((rank, full))
    return [*found, *more.items()]


def witnesses(run: Run, step: int) -> list[Witness]:
    """Every linear layer of a step whose gradient can be recomputed."""
    found = []
    modules = {module for _, full in run.files(step) for module in full.modules}
    for parameter, holders in holders_of(run, step):
        model, (rank, full) = run.model_name(parameter), holders[0]
        module = model.removesuffix(".weight")
        if f"{module}.weight" != model or module not in modules or not full.has(f"grad.raw.{parameter}"):
            continue
        if parameter != model and full.has(f"grad.raw.{model}"):
            continue
        one = _witness(run, step, module, parameter, rank, full)
        found += [one] if one else []
    return found


def _witness(run: Run, step: int, module: str, parameter: str, rank: int, holder: Full) -> Witness | None:
    name = f"grad.raw.{parameter}"
    gradient = holder.array(name).reshape(-1)
    unit = DTYPES[holder.file.dtype(name)].unit
    about = run.parameters.get(run.model_name(parameter))
    shape = lengths(about.get("shape"), parameter) if about else None
    total, noise = np.zeros(0), 0.0
    files = run.files(step)
    for _, full in files:
        running = np.zeros(0)
        for given, slope, computed in _passes(full, module):
            part = _product(holder, parameter, given, slope, shape)
            if part is None or len(part) != len(gradient):
                return None
            running = part if not running.size else running + part
            squares = float(((slope**2).sum(1) * (given**2).sum(1)).sum())
            share = part.size / (slope.shape[1] * given.shape[1])
            noise += max(unit, computed) ** 2 * (float(part @ part) + float(running @ running))
            noise += UNIT32**2 * len(given) * squares * share
        if not running.size:
            return None
        total = running if not total.size else total + running
    size = float(np.sqrt(total @ total)) if total.size else 0.0
    if size == 0 or len(files) != run.record.world_size:
        return None
    noise += unit**2 * len(files) * size**2
    factor = float(gradient @ total) / size**2
    rest = float(np.linalg.norm(gradient - factor * total))
    beside = rest / (abs(factor) * size) if factor else math.inf
    return Witness(f"{module}.weight", rank, factor, beside, DEVIATIONS * math.sqrt(noise) / size)


def _passes(full: Full, module: str) -> Iterator[tuple[Floats, Floats, float]]:
    """(input [n, in], output gradient [n, out], unit roundoff of their product) of each micro-batch."""
    for batch in range(full.batches):
        names = [f"micro.{batch}.witness.{module}.{part}" for part in ("input", "grad_output")]
        if not all(full.has(name) for name in names):
            continue
        given, slope = (full.array(name) for name in names)
        kinds = [DTYPES[full.file.dtype(name)] for name in names]
        if not given.ndim or not slope.ndim or given.size // given.shape[-1] != slope.size // slope.shape[-1]:
            raise Cannot(f"the input and the output gradient of {module[:200]} do not belong together")
        if kinds[1].unit > kinds[0].unit and kinds[1].bits >= 16:
            given = round_to(given, full.file.dtype(names[1]))  # autocast rounds what goes into a layer
        given, slope = given.reshape(-1, given.shape[-1]), slope.reshape(-1, slope.shape[-1])
        unit = max(kind.unit for kind in kinds)
        yield (slope, given, unit) if module in full.transposed else (given, slope, unit)


def _product(
    holder: Full, parameter: str, given: Floats, slope: Floats, shape: tuple[int, ...] | None
) -> Floats | None:
    """grad_output^T input on the elements that were recorded of the gradient, flat."""
    if shape is not None and (slope.shape[1], given.shape[1]) != shape:
        return None
    if slope.shape[1] * given.shape[1] > MAX_ELEMENTS:
        raise Cannot(f"{parameter[:200]} is too large to recompute its gradient")
    if holder.is_lost(parameter):
        return None
    offset = holder.offset(parameter)
    if offset is not None:
        local = lengths(holder.placements[parameter].get("local_shape"), parameter)
        if len(offset) != 2 or len(local) != 2:
            return None
        slope = slope[:, offset[0] : offset[0] + local[0]]
        given = given[:, offset[1] : offset[1] + local[1]]
    product = np.einsum("no,ni->oi", slope, given, optimize=True).reshape(-1)
    return np.asarray(product[:: holder.strides.get(f"grad.raw.{parameter}", 1)])


def gradient_flaws(run: Run, step: int, found: list[Witness]) -> Iterator[Flaw]:
    """Finite gradients that are the sum of every contribution, alike on all ranks that hold them."""
    for _, line in run.lines(step):
        wrong = [name for name, value in line["squares"].items() if not value < math.inf]
        if wrong:
            yield Flaw("gradient", "gradient-not-finite", {"step": step, "tensor": wrong[0]})
            break
    if not found:
        yield unknown("gradient", "no-witness", "no linear layer was recorded to recompute", step=step)
    for one in found:
        where = {"step": step, "rank": one.rank, "tensor": one.tensor}
        if one.bound >= BLIND:
            yield unknown("gradient", "blind", f"rounding of {one.bound:.2g} may hide a lost part", **where)
        elif not one.beside <= one.bound:
            yield Flaw("gradient", "contribution-lost", where, one.beside, one.bound)
    for parameter, holders in holders_of(run, step):
        yield from replica_flaws("gradient", step, parameter, holders, [f"grad.raw.{parameter}"])


def replica_flaws(
    part: str, step: int, parameter: str, holders: list[tuple[int, Full]], names: list[str]
) -> Iterator[Flaw]:
    """Ranks that hold one part hold the same bytes."""
    for name in names if len(holders) > 1 else ():
        digests = [(rank, full.file.digest(name) if full.has(name) else "") for rank, full in holders]
        for rank, digest in digests[1:]:
            if digest != digests[0][1]:
                where = {"step": step, "rank": rank, "tensor": parameter}
                yield Flaw(part, "replicas-differ", where, digest[:12], digests[0][1][:12])


def clips_unseen(run: Run, recipe: Recipe, step: int) -> bool:
    """Whether the recipe clips and no call of a clipping function was recorded."""
    return recipe.number("max_grad_norm") > 0 and all(not line.get("clip") for _, line in run.lines(step))


def global_norm(run: Run, step: int) -> tuple[float, float] | None:
    """(norm over every gradient element of every rank once, relative rounding); None where unknown."""
    squares: dict[tuple[str, tuple[int, ...] | None], float] = {}
    unit = UNIT32
    for rank in run.ranks:
        line, full = rank.lines.get(step), rank.full.get(step)
        if line is None or full is None or not line["squares"]:
            return None
        for name, value in _all_squares(full, line["squares"]).items():
            if full.is_lost(name):
                return None
            squares.setdefault((name, full.offset(name)), value)
            if full.has(f"grad.raw.{name}"):
                unit = max(unit, DTYPES[full.file.dtype(f"grad.raw.{name}")].unit)
    total = math.fsum(squares.values()) if all(map(math.isfinite, squares.values())) else math.nan
    return (math.sqrt(total), NORM + (3 * unit if unit > UNIT32 else 0.0)) if math.isfinite(total) else None


def _all_squares(full: Full, squares: dict[str, float]) -> dict[str, float]:
    """The squares of the model's gradients, of those too that the optimizer does not hold itself."""
    others = [n for n in full.file.entries if n.startswith("grad.raw.") and n not in full.strides]
    left = [name for name in others if name[9:] not in squares]
    own = {n: value for n, value in squares.items() if not (left and n.startswith("unowned."))}
    return own | {name[9:]: float((full.array(name) ** 2).sum()) for name in left}


def setting_flaws(run: Run, recipe: Recipe) -> Iterator[Flaw]:
    """Every clipping call takes the recipe's maximum, and where one step clips every step does."""
    wanted = recipe.number("max_grad_norm")
    calls: dict[int, bool] = {}
    for step in run.steps:
        lines = [line for _, line in run.lines(step)]
        calls[step] = all(line.get("clip") for line in lines)
        given = [number(line["clip"].get("max_norm")) for line in lines if _is_norm(line)]
        other = [
            g
            for g in given
            if g is not None and math.isfinite(g) and abs(g - wanted) > 1e-6 * max(abs(g), abs(wanted))
        ]
        if other:
            yield Flaw("clip", "max-norm-differs", {"step": step}, other[0], wanted)
    left_out = [step for step, called in calls.items() if not called]
    if wanted and left_out and any(calls.values()):
        yield Flaw("clip", "not-clipped", {"step": left_out[0]}, len(left_out), 0.0)


def _is_norm(line: Line) -> bool:
    return bool(line.get("clip")) and line["clip"].get("kind") != "clip_grad_value_"


def clip_flaws(
    run: Run, recipe: Recipe, tokens: Tokens, found: list[Witness], norm: tuple[float, float] | None
) -> Iterator[Flaw]:
    """What was reported as the norm, and that every gradient was scaled by the one norm."""
    step = tokens.step
    if norm is None:
        yield unknown("clip", "norm-unknown", "the gradients have no known finite norm", step=step)
        return
    yield from _reports(run, step, norm)
    overall = tokens.mean(np.ones(tokens.count, bool))
    whole = scale_of(tokens, found, run.record.world_size)
    if clips_unseen(run, recipe, step) and whole is not None and overall is not None:
        low, high = _factors(recipe, (norm[0] / whole[0], norm[1]))
        for one in found:
            if one.beside > one.bound:
                continue
            scaled, slack = one.factor * overall[0] * tokens.count, one.bound + overall[1]
            if not low - slack <= scaled <= high + slack:
                code = "not-clipped" if abs(scaled - 1) <= slack else "clip-differs"
                where = {"step": step, "rank": one.rank, "tensor": one.tensor}
                yield Flaw("clip", code, where, scaled, (low + high) / 2)
        return
    yield from _scalings(run, step, _factors(recipe, norm))


def _reports(run: Run, step: int, norm: tuple[float, float]) -> Iterator[Flaw]:
    for rank in run.ranks:
        clip = rank.lines.get(step, {}).get("clip") or {}
        said = []
        euclidean = number(clip.get("norm_type")) in (None, 2.0) and clip.get("kind") != "clip_grad_value_"
        if clip and euclidean and not clip.get("returned_placement"):
            said.append((number(clip.get("returned")), 0.0))
        logged = rank.logged.get(step, {}).get("grad_norm")
        said.append((logged, last_place(logged) if logged is not None else 0.0))
        for value, digit in said:
            if value is not None and not abs(value - norm[0]) <= norm[1] * norm[0] + digit:
                yield Flaw("clip", "norm-differs", {"step": step, "rank": rank.number}, value, norm[0])


def last_place(value: float) -> float:
    """Half a unit of the last decimal digit that a number was written with."""
    text, _, power = repr(value).partition("e")
    return float(0.5 * 10.0 ** (int(power or 0) - len(text.partition(".")[2])))


def _factors(recipe: Recipe, norm: tuple[float, float]) -> tuple[float, float]:
    """Smallest and largest factor that clipping by a norm with that rounding gives."""
    largest, (value, rounding) = recipe.number("max_grad_norm"), norm
    if not largest or not value:
        return 1.0, 1.0
    low, high = largest / (value * (1 + rounding) + CLIP_TINY), largest / (value * (1 - rounding))
    return min(1.0, low), min(1.0, high)


def _scalings(run: Run, step: int, factors: tuple[float, float]) -> Iterator[Flaw]:
    low, high = factors
    for parameter, holders in run.pieces(step):
        rank, full = holders[0]
        names = [f"grad.raw.{run.model_name(parameter)}", f"grad.used.{parameter}"]
        if not all(full.has(name) for name in names):
            continue
        raw, used = (full.array(name).reshape(-1) for name in names)
        size = float(raw @ raw)
        if not 0 < size < math.inf or raw.shape != used.shape:
            continue
        unit = max(DTYPES[full.file.dtype(name)].unit for name in names)
        value = float(used @ raw) / size
        rest = max(0.0, float(np.linalg.norm(used - value * raw)) - 2.0**-126 * math.sqrt(raw.size))
        beside = rest / (abs(value) * math.sqrt(size)) if value else math.inf
        if not (low - 2 * unit <= value <= high + 2 * unit and beside <= 2 * unit):
            code = "not-clipped" if high < 1 and abs(value - 1) <= 2 * unit else "clip-differs"
            where = {"step": step, "rank": rank, "tensor": parameter}
            yield Flaw("clip", code, where, value, (low + high) / 2)


def factor_of(found: list[Witness], world_size: int) -> tuple[float, float] | None:
    """(what averaging leaves of each rank's gradient, its relative bound), from the best witness."""
    good = [one for one in found if one.beside <= one.bound]
    if good:
        best = min(good, key=lambda one: one.bound)
        return best.factor, best.bound
    return (1.0, 0.0) if world_size == 1 and not found else None


def scale_of(tokens: Tokens, found: list[Witness], world_size: int) -> tuple[float, float] | None:
    """(token weight x averaging x tokens, bound): 1 for the gradient of the mean over the global batch."""
    overall, factor = tokens.mean(np.ones(tokens.count, bool)), factor_of(found, world_size)
    if overall is None or factor is None:
        return None
    return overall[0] * factor[0] * tokens.count, overall[1] + factor[1]
