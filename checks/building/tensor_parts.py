"""The parts on tensors: names, shapes, dtypes of adapters, what is trained, computed buffers."""

from collections.abc import Iterator

from checks.building.adapted_names import is_adapter
from checks.building.case import BuildCase
from checks.loading.buffers import is_computed, unlike_reference
from checks.loading.kinds import listed
from checks.loading.parts import dtypes_part, not_applicable
from checks.records.model_records import Recorded
from checks.references.checkpoints.formats import FORMATS, TORCH_NAMES
from checks.rules import MAX_PROBLEMS_LISTED
from checks.verdict import Coverage, Outcome, Part, Place, Problem, part_of


def names_part(case: BuildCase) -> Part:
    """The model has every parameter and persistent buffer that the configuration implies, and no other."""
    model, implied, known = case.base(), case.implied, case.release.expected
    problems = [_missing(case, name) for name in implied if name not in model]
    problems += [
        _unexpected(case, name, held[0]) for name, held in sorted(model.items()) if name not in implied
    ]
    skipped = [name for name in known if name not in implied and name not in model]
    notes = (
        (f"of the release, neither the reference nor the model builds {listed(skipped)}",) if skipped else ()
    )
    judged = sum(name in model for name in implied)
    coverage = Coverage(judged=judged, total=len(implied), unit="tensors")
    return part_of("names", problems, coverage=coverage, notes=notes, limit=MAX_PROBLEMS_LISTED)


def _missing(case: BuildCase, name: str) -> Problem:
    return Problem(
        code="tensor-missing",
        outcome=case.misfit,
        message=f"{name} {list(case.implied[name])} follows from the configuration, and the model has none",
        place=Place(tensor=name),
        next_step="look at which option or module leaves it out; if the framework names it otherwise, its"
        " pack's names.toml has to say so",
    )


def _unexpected(case: BuildCase, name: str, entry: Recorded) -> Problem:
    held = name in case.release.expected
    return Problem(
        code="tensor-beyond-reference" if held else "tensor-unexpected",
        outcome=Outcome.INCONCLUSIVE if held else case.misfit,
        message=f"{name} {list(entry.line.shape)} is in the model; the configuration implies none"
        + (", though the release holds it: the reference does not build this module" if held else ""),
        place=Place(tensor=name),
        next_step="look at which option adds the module; if the framework names a tensor otherwise, its"
        " pack's names.toml has to say so",
    )


def shapes_part(case: BuildCase) -> Part:
    """Every tensor has the shape that the configuration implies."""
    known = [(name, held[0]) for name, held in sorted(case.base().items()) if name in case.implied]
    problems = [
        Problem(
            code="shape-differs",
            outcome=case.misfit,
            message=f"{name} is {list(entry.line.shape)}, the configuration implies"
            f" {list(case.implied[name])}",
            place=Place(tensor=name, rank=entry.rank),
            expected=str(list(case.implied[name])),
            found=str(list(entry.line.shape)),
            next_step="look at the configuration that the model was built from, or at how it is padded",
        )
        for name, entry in known
        if entry.line.shape != case.implied[name]
    ]
    coverage = Coverage(judged=len(known), total=len(known), unit="tensors")
    return part_of("shapes", problems, coverage=coverage, limit=MAX_PROBLEMS_LISTED)


def build_dtypes_part(case: BuildCase) -> Part:
    """The model's tensors as the load check wants them; an adapter's in float32 or in the recipe's dtype."""
    part = dtypes_part(case)
    allowed = {"F32", TORCH_NAMES.get(case.recipe or case.release.dtype, "F32")}
    wrong = [
        Problem(
            code="adapter-dtype-differs",
            message=f"{name} is {entry.dtype}; an adapter is kept in {' or '.join(sorted(allowed))}",
            place=Place(tensor=name, rank=entry.rank),
            expected=" or ".join(sorted(allowed)),
            found=entry.dtype,
            next_step="look at what casts the adapter after it is made",
        )
        for name, held in sorted(case.loadable().items())
        if is_adapter(name)
        for entry in held[:1]
        if entry.dtype not in allowed
    ]
    if not wrong:
        return part
    return part_of(
        "dtypes", [*part.problems, *wrong], coverage=part.coverage, measurements=part.measurements,
        notes=part.notes, limit=MAX_PROBLEMS_LISTED,
    )  # fmt: skip


def trained_part(case: BuildCase) -> Part:
    """Every parameter requires a gradient exactly where the recipe trains it."""
    problems, judged, total = list[Problem](), 0, 0
    for name, held in sorted(case.loadable().items()):
        if held[0].line.kind != "parameter" or not _is_float(held[0]):
            continue
        total += 1
        wanted = case.trained.trained(name)
        judged += wanted is not None
        wrong = next((e for e in held if wanted is not None and e.line.requires_grad != wanted), None)
        if wrong is not None:
            problems.append(_trained(name, wrong))
    unknown = total - judged
    if unknown:
        problems.append(
            Problem(
                code="trained-set-unknown",
                outcome=Outcome.INCONCLUSIVE,
                message=f"the recipe does not say whether {unknown} parameters are trained (lora bias)",
                next_step="give lora a bias of none, or judge these parameters by hand",
            )
        )
    coverage = Coverage(judged=judged, total=total, unit="parameters")
    return part_of("trained", problems, coverage=coverage, limit=MAX_PROBLEMS_LISTED)


def _is_float(entry: Recorded) -> bool:
    fmt = FORMATS.get(entry.dtype)
    return fmt is not None and fmt.is_float and fmt.bits >= 16


def _trained(name: str, entry: Recorded) -> Problem:
    is_trained = entry.line.requires_grad
    return Problem(
        code="trained-though-frozen" if is_trained else "frozen-though-trained",
        message=f"{name} {'requires a gradient' if is_trained else 'requires no gradient'}, and the recipe"
        f" {'freezes' if is_trained else 'trains'} it",
        place=Place(tensor=name, rank=entry.rank),
        expected=f"requires_grad {not is_trained}",
        found=f"requires_grad {is_trained}",
        next_step="look at what sets requires_grad while the model is built",
    )


def buffers_part(case: BuildCase) -> Part:
    """Buffers that the model computes (rotary frequencies) are what the configuration makes of them."""
    held = {name: rows for name, rows in case.holders(case.moment).items() if is_computed(rows[0])}
    if not held:
        return not_applicable("buffers", "the model has no buffer beside those of the release")
    problems = [problem for name, rows in sorted(held.items()) for problem in _buffer(case, name, rows)]
    unknown = [name for name in held if name not in case.computed]
    if unknown:
        why = case.not_computed or "the reference has no buffer of that name"
        problems.append(
            Problem(
                code="buffer-unknown",
                outcome=Outcome.NOT_EVALUATED,
                message=f"{len(unknown)} of {len(held)} computed buffers have no reference: {why}",
                next_step="judge these buffers by the first step's loss",
            )
        )
    coverage = Coverage(judged=len(held) - len(unknown), total=len(held), unit="buffers")
    return part_of("buffers", problems, coverage=coverage, limit=MAX_PROBLEMS_LISTED)


def _buffer(case: BuildCase, name: str, held: list[Recorded]) -> Iterator[Problem]:
    for entry in held if name in case.computed else ():
        message = unlike_reference(case.computed[name], entry)
        if message:
            yield Problem(
                code="buffer-differs",
                message=f"{name} on rank {entry.rank}, which the model computes: {message}",
                place=Place(tensor=name, rank=entry.rank),
                next_step="look at base and scaling of the rotary embedding that the model was built with",
            )
            return
