"""The parts of an export verdict that rest on small files, and the reload in the reference implementation."""

from collections.abc import Callable

from checks.check import Progress, silent
from checks.errors import NotEvaluated
from checks.references.checkpoints import configs
from checks.references.checkpoints.expectation import Expectation, is_tied
from checks.references.checkpoints.folder import VOCABULARIES, Checkpoint
from checks.references.checkpoints.header import Unreadable
from checks.references.checkpoints.reload import Reloaded, reload
from checks.references.checkpoints.side_files import compare_processors
from checks.references.checkpoints.tokenizer_files import (
    chat_templates,
    compare_chat_templates,
    compare_tokenizers,
    left_to_the_class,
    lost_tokenizer,
)
from checks.references.checkpoints.tokenizer_loading import compare_loaded
from checks.rules import MAX_PROBLEMS_LISTED
from checks.verdict import Coverage, Measurement, Outcome, Part, Place, Problem, part_of

_READ_STEP = "compare the export's config.json and weight files with the release's, and export again"
_Judge = Callable[[Checkpoint, Checkpoint, Expectation], Part]


def part(
    name: str,
    problems: list[Problem],
    coverage: Coverage | None = None,
    measurements: tuple[Measurement, ...] = (),
    notes: list[str] | tuple[str, ...] = (),
    reason: str = "",
) -> Part:
    """`part_of` with the product's limit on what is listed."""
    return part_of(
        name,
        problems,
        coverage=coverage,
        measurements=measurements,
        notes=tuple(notes)[:MAX_PROBLEMS_LISTED],
        reason=reason,
        limit=MAX_PROBLEMS_LISTED,
    )


def not_applicable(name: str, reason: str) -> Part:
    """A part that does not apply to this input."""
    return Part(name=name, outcome=Outcome.NOT_EVALUATED, applicable=False, reason=reason)


def document_parts(
    original: Checkpoint, export: Checkpoint, expected: Expectation, progress: Progress = silent
) -> list[Part]:
    """config, generation_config, tokenizer, chat_template and processor."""
    judges: dict[str, _Judge] = {
        "config": _config,
        "generation_config": _generation_config,
        "tokenizer": _tokenizer,
        "chat_template": _chat_template,
        "processor": _processor,
    }
    parts = []
    for number, (name, judge) in enumerate(judges.items()):
        progress(number, len(judges), f"file {number + 1} of {len(judges)}: comparing {name}")
        parts.append(_readable(name, judge, original, export, expected))
    return parts


def _readable(
    name: str, judge: _Judge, original: Checkpoint, export: Checkpoint, expected: Expectation
) -> Part:
    """The original's files were parsed when it was opened: what cannot be read here is the export's."""
    try:
        return judge(original, export, expected)
    except Unreadable as error:
        place = Place(file=error.file)
        step = "look at how the exporter wrote this file, and export again"
        return part(name, [Problem(code="file-unreadable", message=str(error), place=place, next_step=step)])


def _missing(file: str) -> Problem:
    return Problem(
        code="file-missing",
        message=f"the export has no {file}",
        place=Place(file=file),
        next_step=f"have the exporter write {file}, or copy the release's into the export",
    )


def _config(original: Checkpoint, export: Checkpoint, expected: Expectation) -> Part:
    left, right = original.json("config.json"), export.json("config.json")
    if left is None:
        return Part(name="config", outcome=Outcome.NOT_EVALUATED, reason="the original has no config.json")
    if right is None:
        return part("config", [_missing("config.json")])
    result = configs.compare_config(
        left,
        right,
        quantization_dropped=expected.quantization_dropped,
        untied=expected.untied_by_adapter and is_tied(left),
        generates_by_file="generation_config.json" in export.documents,
    )
    return part(
        "config",
        result.problems,
        Coverage(judged=len(left), total=len(left), unit="fields"),
        notes=result.notes,
    )


def _generation_config(original: Checkpoint, export: Checkpoint, _: Expectation) -> Part:
    name, file = "generation_config", "generation_config.json"
    left, right = original.json(file), export.json(file)
    if left is None and right is None:
        return not_applicable(name, f"neither has a {file}")
    if right is None:
        return part(name, [_missing(file)])
    if left is not None:
        result = configs.compare_generation_config(left, right)
    else:
        added = configs.compare_added_generation_config(original.json("config.json") or {}, right)
        if added is None:
            reason = f"the release has no {file}, and the reference does not know its architecture"
            return Part(name=name, outcome=Outcome.NOT_EVALUATED, reason=reason)
        result = added
    total = max(1, len(left or right))
    return part(name, result.problems, Coverage(judged=total, total=total, unit="fields"), notes=result.notes)


def _tokenizer(original: Checkpoint, export: Checkpoint, expected: Expectation) -> Part:
    files = sorted({*VOCABULARIES, "tokenizer_config.json"} & set(original.documents))
    if not files:
        return not_applicable("tokenizer", "the original has no tokenizer files")
    problems, notes, compared = compare_tokenizers(original, export)
    if expected.whole and not any(problem.code == "file-missing" for problem in problems):
        loaded = compare_loaded(original, export)
        default = [name for name in left_to_the_class(original, export) if name in loaded.roles]
        if default:
            notes.append(f"one side alone names {', '.join(default)}; both load to the same, by their class")
        problems = [problem for problem in problems if problem.place.field not in default]
        known = {problem.place.field for problem in problems} - {None}
        problems += [problem for problem in loaded.problems if problem.place.field not in known]
        notes += loaded.notes
    coverage = Coverage(judged=compared, total=len(files), unit="files")
    return part("tokenizer", problems, coverage, notes=notes)


def _chat_template(original: Checkpoint, export: Checkpoint, _: Expectation) -> Part:
    problems, notes, count = compare_chat_templates(original, export)
    if lost_tokenizer(original, export) and not chat_templates(export) and problems:
        reason = "the export has no tokenizer, and no chat template follows from that (see tokenizer)"
        return Part(name="chat_template", outcome=Outcome.NOT_EVALUATED, reason=reason)
    if not count and not problems:
        return not_applicable("chat_template", "the original has no chat template")
    coverage = Coverage(judged=count, total=count, unit="templates") if count else None
    return part("chat_template", problems, coverage, notes=notes)


def _processor(original: Checkpoint, export: Checkpoint, _: Expectation) -> Part:
    problems, notes, count = compare_processors(original, export)
    if not count:
        return not_applicable("processor", "the original has no processor's settings")
    return part("processor", problems, Coverage(judged=count, total=count, unit="processors"), notes=notes)


def reload_part(original: Checkpoint, export: Checkpoint, progress: Progress = silent) -> Part:
    """What the reference implementation says when it loads the export."""
    try:
        config = export.json("config.json")
        if config is None:
            reason = "the export has no config.json, and nothing loads without it (see config)"
            return Part(name="reload", outcome=Outcome.NOT_EVALUATED, reason=reason)
        progress(0, None, f"loading the export in transformers, {export.nbytes / 1e6:,.0f} MB")
        loaded = reload(export.path, config, export.nbytes)
        clean = not (loaded.missing or loaded.unexpected or loaded.mismatched or loaded.error)
        before = Reloaded() if clean else _reload_of_release(original, progress)
    except Unreadable as error:
        problem = Problem(
            code="reload-failed", message=str(error), place=Place(file=error.file), next_step=_READ_STEP
        )
        return part("reload", [problem])
    except NotEvaluated as error:
        return Part(name="reload", outcome=Outcome.NOT_EVALUATED, reason=error.message)
    notes = ["loaded on the meta device: keys and shapes, no values"] if loaded.on_meta else []
    alike = sorted(loaded.unexpected & before.unexpected)
    if alike and not before.error:
        notes.append(f"the reference uses these of neither side: {_listed(alike)}")
    return part("reload", _reload_problems(loaded, before), notes=notes)


def _reload_of_release(original: Checkpoint, progress: Progress) -> Reloaded:
    """What the reference reports for the release; where it cannot load it: nothing it lacks, all unused."""
    progress(0, None, f"loading the release in transformers to compare, {original.nbytes / 1e6:,.0f} MB")
    try:
        return reload(original.path, original.json("config.json") or {}, original.nbytes)
    except NotEvaluated:
        return Reloaded(unexpected=frozenset(original.tensors))


def _reload_problems(loaded: Reloaded, before: Reloaded) -> list[Problem]:
    """What the reference reports beyond what it reports for the release itself."""
    groups = (
        (
            "key-missing",
            loaded.missing - before.missing,
            "is missing: the reference re-initialises it",
            "write this tensor under the name that the release gives it",
        ),
        (
            "key-unexpected",
            loaded.unexpected - before.unexpected,
            "is not used by the reference",
            "write the name that the release uses, or leave the tensor out if the release has none",
        ),
    )
    problems = [
        Problem(code=code, message=f"{key} {what}", place=Place(tensor=key), next_step=step)
        for code, keys, what, step in groups
        for key in sorted(keys)
    ]
    problems += [
        Problem(
            code="key-mismatched",
            message=f"{key} does not fit: {shapes}",
            place=Place(tensor=key),
            next_step="compare this tensor's shape and the sizes in config.json with the release's",
        )
        for key, shapes in sorted(loaded.mismatched.items())
        if key not in before.mismatched
    ]
    return problems + _undecided(loaded, before) + _not_loaded(loaded, before)


def _undecided(loaded: Reloaded, before: Reloaded) -> list[Problem]:
    """Weights that the reference finds in neither: a release that does not load whole decides nothing."""
    alike = sorted((loaded.missing & before.missing) | (set(loaded.mismatched) & set(before.mismatched)))
    if not alike:
        return []
    return [
        Problem(
            code="release-incomplete",
            outcome=Outcome.NOT_EVALUATED,
            message=f"release and export alike do not fill {len(alike)} weights: {_listed(alike)}",
            place=Place(tensor=alike[0]),
            next_step="fetch the release again, whole; if it has no more, load it in its own engine",
        )
    ]


def _not_loaded(loaded: Reloaded, before: Reloaded) -> list[Problem]:
    if not loaded.error:
        return []
    if not before.error:
        message = f"the reference cannot load the export: {loaded.error}"
        return [Problem(code="reload-failed", message=message, next_step=_READ_STEP)]
    message = f"the reference loads neither the release nor the export: {loaded.error}"
    return [
        Problem(
            code="reload-failed",
            outcome=Outcome.NOT_EVALUATED,
            message=message,
            next_step="install what the message asks for beside Plumbline, or load both in their own engine",
        )
    ]


def _listed(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
