"""The check *export*: the export is the trained model in the release's format."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import Field

from checks.check import Check, Context, InjectedFault, Inputs, NotApplicable, Progress
from checks.errors import BadInput, Inconclusive
from checks.records.runs import RunFolder
from checks.references.checkpoints import planted
from checks.references.checkpoints.document_parts import (
    document_parts,
    not_applicable,
    part,
    reload_part,
)
from checks.references.checkpoints.expectation import Expectation, expectation
from checks.references.checkpoints.folder import VOCABULARIES, Checkpoint
from checks.references.checkpoints.header import Unreadable
from checks.references.checkpoints.merging import Adapter, read_adapter
from checks.references.checkpoints.naming import Naming, compare_names
from checks.references.checkpoints.side_files import PROCESSOR_FILES, processors
from checks.references.checkpoints.sources import (
    Opened,
    evidence,
    open_export,
    open_reference,
    refuse_same,
    refuse_shared_weights,
    unexpected_files,
)
from checks.references.checkpoints.tokenizer_files import compare_chat_templates
from checks.references.checkpoints.values import (
    ValuesResult,
    compare_all,
    value_measurements,
    value_problems,
)
from checks.references.packs import Pack, load_pack, pack_evidence
from checks.verdict import Coverage, Evidence, Outcome, Part, Place, Problem

REFERENCE_DISTRIBUTION = "transformers"
"""The distribution that defaults are read from and the export is loaded with."""
PARTS = (
    "files",
    "names",
    "shapes",
    "dtypes",
    "values",
    "adapter",
    "config",
    "generation_config",
    "tokenizer",
    "chat_template",
    "processor",
    "reload",
)


class ExportInputs(Inputs):
    """What an export check compares."""

    original: Path = Field(description="folder of the released checkpoint that training started from")
    export: Path = Field(
        description="folder of the exported checkpoint, or a run folder of an export procedure"
    )
    trained: Path | None = Field(
        None, description="folder of the checkpoint that training ended with, in the release's names"
    )
    adapter: Path | None = Field(
        None, description="folder of the LoRA adapter that the export has to contain"
    )
    framework: str | None = Field(
        None, description="connection pack of the framework: its documented export formats are followed"
    )


@dataclass(frozen=True)
class ExportCase:
    """An export beside what it has to be; ``documents``: its small files, where no weights can be read."""

    original: Checkpoint
    export: Checkpoint | None
    expected: Expectation
    opening: tuple[Problem, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    adapter: Adapter | None = None
    trained: bool = False
    run: RunFolder | None = None
    pack: Pack | None = None
    documents: Checkpoint | None = None


class ExportCheck(Check[ExportInputs, ExportCase]):
    """Is the export the trained model, in the release's format?

    Every tensor is read by Plumbline's own reader. It is held against the released checkpoint bit for bit
    (an export without training), against the checkpoint that training ended with (``--trained``), or against
    W + sBA (``--adapter``); low-precision formats are compared after decoding. Names, shapes and dtypes have
    to be the release's as they lie on disk. Configuration, tokenizer and chat template have to mean the same,
    and the export has to load in the reference implementation with no key missing, unexpected or unfit.

    A special token that one side leaves to its tokenizer class is no difference where both load to the same.
    ``use_cache``, which the Trainer of transformers 5.24.0 writes as false, changes neither logits nor
    generated tokens: beside a generation_config.json, by which generation keeps its cache, it is a note.
    Values that generation takes anyway (``temperature`` 1.0) may be left out of generation_config.json; not
    ``top_k``, without which serving engines sample from all tokens. A chat template that is stated in two
    files has to be one text, since loaders look in one of them alone. Processors (of images, audio, video)
    have to be set as the release's, in files of their own or inside processor_config.json.
    ``output_router_logits``, which TRL 1.16.0 writes as true for mixtures of experts, fails: the model then
    returns another loss where training goes on.
    """

    name = "export"
    title = "Export"
    question = "Is the export the trained model in the release's format?"
    reference = (
        "Plumbline's own reading of the official safetensors; transformers for defaults, tokenizers, reload"
    )
    rule = (
        "every tensor equal bit for bit (-0.0 equals +0.0), merges within derived rounding; names, shapes,"
        " dtypes equal on disk; files equal in meaning; reloads with nothing missing, unexpected or unfit"
    )
    training = "none"
    records = (
        "model.safetensors",
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "chat_template.jinja",
        "preprocessor_config.json",
    )
    pattern = 6
    example = "plumbline check export --original RELEASE --export EXPORTED"
    order = 30
    inputs = ExportInputs

    def __init__(self) -> None:
        self.faults = tuple(_injected_faults())

    def open(self, inputs: ExportInputs, progress: Progress) -> ExportCase:
        """Open both sides and work out what the export has to hold."""
        if inputs.trained is not None and inputs.adapter is not None:
            raise BadInput("--trained and --adapter both say what the values are", "name one of the two")
        progress(0, None, "reading headers")
        original = open_reference(inputs.original, "original")
        opened = open_export(inputs.export)
        framework = inputs.framework or (opened.run.job.framework if opened.run else None)
        pack = load_pack(framework) if framework else None
        adapter = _adapter(inputs.adapter)
        trained = open_reference(inputs.trained, "checkpoint given as --trained") if inputs.trained else None
        _refuse_same(inputs, opened, trained)
        try:
            expected = expectation(original, pack.declared_exports() if pack else (), adapter, trained)
        except Unreadable as error:
            raise Inconclusive(f"the original cannot be decoded: {error}") from error
        sides = (
            (original, "release"),
            (opened.readable, "export"),
            (adapter and adapter.checkpoint, "adapter"),
            (trained, "trained"),
        )
        proof = [item for side, role in sides if side for item in evidence(side, role)]
        proof += pack_evidence(pack) if pack else []
        return ExportCase(
            original,
            opened.checkpoint,
            expected,
            opened.problems,
            tuple(proof),
            adapter,
            trained is not None,
            opened.run,
            pack,
            opened.documents,
        )

    def context(self, inputs: ExportInputs, case: ExportCase) -> Context:
        """Both folders, what they were held against, and the digests of the files."""
        config = case.original.json("config.json") or {}
        target = {
            "original": str(inputs.original),
            "export": str(inputs.export),
            "model_type": str(config.get("model_type", ""))[:80],
            "framework": case.pack.name if case.pack else "",
        }
        settings = inputs.model_dump(mode="json", exclude_none=True)
        settings |= {"pack_digest": case.pack.digest} if case.pack else {}
        return Context(
            target={name: value for name, value in target.items() if value},
            settings=settings,
            evidence=case.evidence,
            reference_shares_code=case.pack is not None and case.pack.is_of(REFERENCE_DISTRIBUTION),
            run_id=case.run.job.run_id if case.run else None,
            confinement=case.run.job.confinement if case.run else "none",
        )

    def judge(self, case: ExportCase, progress: Progress) -> list[Part]:
        """Every part, in the order of `PARTS`."""
        files = _files(case)
        if case.export is None:
            return [files, *_without_weights(case)]
        export = case.export
        try:
            return [
                files,
                *_weights(case, export, progress),
                *document_parts(case.original, export, case.expected, progress),
                _reload(case, export, progress),
            ]
        except OSError as error:
            raise Inconclusive(f"a file could not be read: {error}") from error

    def smallest(self, case: ExportCase) -> ExportCase:
        """Three small tensors, one square matrix and one adapted weight, with the files but no vocabulary."""
        if case.export is None:
            raise NotApplicable("there is no export to inject into")
        expected, export = planted.slice_of(case.expected, case.export)
        documents = {
            name: raw
            for name, raw in case.original.documents.items()
            if name in export.documents or name not in VOCABULARIES
        }
        original = replace(case.original, documents=documents, shards=())
        return replace(case, original=original, expected=expected, export=export)


def _refuse_same(inputs: ExportInputs, opened: Opened, trained: Checkpoint | None) -> None:
    """An export held against itself would prove nothing."""
    sides = {"original": inputs.original, "export": inputs.export, "--trained": inputs.trained}
    if opened.checkpoint is not None:
        sides["export"] = opened.checkpoint.path
    refuse_same({role: folder for role, folder in sides.items() if folder is not None})
    if trained is not None and opened.checkpoint is not None:
        refuse_shared_weights(trained, opened.checkpoint, "checkpoint given as --trained")


def _adapter(folder: Path | None) -> Adapter | None:
    if folder is None:
        return None
    if not folder.is_dir():
        raise BadInput(f"the adapter {folder} is no folder", "name the folder of adapter_config.json")
    try:
        return read_adapter(folder)
    except FileNotFoundError as error:
        raise BadInput(f"the adapter: {error}", "name the folder of adapter_config.json") from error
    except Unreadable as error:
        raise Inconclusive(f"the adapter cannot be read: {error}") from error


def _files(case: ExportCase) -> Part:
    if case.export is None or not case.expected.whole:
        return part("files", list(case.opening))
    count = len(case.export.shards)
    problems, notes = unexpected_files(case.original, case.export)
    return part("files", problems, Coverage(judged=count, total=count, unit="weight files"), notes=notes)


def _without_weights(case: ExportCase) -> list[Part]:
    """The small files judged by themselves; what needs the weights says that there are none to read."""
    judged = document_parts(case.original, case.documents, case.expected) if case.documents else []
    known = {each.name: each for each in judged}
    reason = "no weights can be read (see files)" if judged else "there is no export to read"
    names = [name for name in PARTS[1:] if name != "adapter" or case.adapter]
    return [
        known.get(name) or Part(name=name, outcome=Outcome.NOT_EVALUATED, reason=reason) for name in names
    ]


def _weights(case: ExportCase, export: Checkpoint, progress: Progress) -> list[Part]:
    naming = compare_names(case.expected, case.original, export)
    total = len(case.expected.wanted)
    known = sum(name in export.tensors for name in case.expected.wanted)
    result = _compare(case, export, naming, progress)
    wrong = naming.names or naming.shapes or naming.dtypes
    against_original = not case.trained and case.adapter is None
    problems = value_problems(
        result, may_be_trained=against_original and not wrong, against_original=against_original
    )
    both = Coverage(judged=known, total=known, unit="tensors")
    return [
        part("names", naming.names, Coverage(judged=known, total=total, unit="tensors"), notes=naming.notes),
        part("shapes", naming.shapes, both),
        part("dtypes", naming.dtypes, both, notes=case.expected.notes),
        part(
            "values",
            problems,
            Coverage(judged=result.judged, total=total, unit="tensors"),
            value_measurements(result),
            [*case.expected.notes, *result.notes],
        ),
        _adapter_part(case, result),
    ]


def _compare(case: ExportCase, export: Checkpoint, naming: Naming, progress: Progress) -> ValuesResult:
    total = float(sum(entry.nbytes for entry, _ in naming.pairs.values()))
    done = 0.0

    def tell(nbytes: int, name: str) -> None:
        nonlocal done
        done += nbytes
        progress(min(done, total), total, f"comparing {name}")

    try:
        return compare_all(naming.pairs, export.json("config.json") or {}, tell)
    except Unreadable as error:
        raise Inconclusive(f"a weight file changed while it was read: {error}", "compare again") from error


def _adapter_part(case: ExportCase, result: ValuesResult) -> Part:
    if case.adapter is None:
        return not_applicable("adapter", "no adapter was given")
    idle = set(case.expected.idle)
    problems = [
        Problem(
            code="adapter-without-effect",
            outcome=Outcome.NOT_EVALUATED,
            message=f"nothing was shown for {name}: {why}",
            place=Place(tensor=name),
            next_step="merge an adapter whose A and B were seeded nonzero",
        )
        for name in result.blind
        for why in ["B or A is zero" if name.removesuffix(".weight") in idle else "rounding hides the update"]
    ]
    total = len(case.adapter.updates)
    shown = result.merged - len(result.blind)
    return (
        part("adapter", problems, Coverage(judged=shown, total=total, unit="adapted tensors"))
        if total
        else (
            not_applicable("adapter", "the adapter replaces whole tensors only; they are judged under values")
        )
    )


def _reload(case: ExportCase, export: Checkpoint, progress: Progress) -> Part:
    if not case.expected.whole:
        return not_applicable("reload", "a slice of an export does not load")
    return reload_part(case.original, export, progress)


def _injected_faults() -> list[InjectedFault[ExportCase]]:
    tensors: tuple[tuple[str, str, str, Callable[[Expectation, Checkpoint], Checkpoint]], ...] = (
        ("a dropped tensor", "names", "tensor-missing", planted.dropped),
        ("a renamed tensor", "names", "tensor-renamed", planted.renamed),
        ("a dtype cast", "dtypes", "dtype-differs", planted.cast),
        ("a transposed square matrix", "values", "transposed", planted.transposed),
        ("an unmerged adapter", "values", "adapter-unmerged", planted.unmerged),
    )
    return [
        *(InjectedFault(name, part, code, _plant(change)) for name, part, code, change in tensors),
        InjectedFault(
            "a missing generation config", "generation_config", "file-missing", _drop_generation_config
        ),
        InjectedFault("a lost chat template", "chat_template", "template-missing", _drop_chat_template),
        InjectedFault("a lost processor", "processor", "file-missing", _drop_processor),
    ]


def _plant(change: Callable[[Expectation, Checkpoint], Checkpoint]) -> Callable[[ExportCase], ExportCase]:
    def plant(case: ExportCase) -> ExportCase:
        return replace(case, export=change(case.expected, _export(case)))

    return plant


def _export(case: ExportCase) -> Checkpoint:
    if case.export is None:
        raise NotApplicable("there is no export to inject into")
    return case.export


def _drop_generation_config(case: ExportCase) -> ExportCase:
    export = _export(case)
    if not all("generation_config.json" in side.documents for side in (case.original, export)):
        raise NotApplicable("no generation_config.json is in both")
    return replace(case, export=planted.without_generation_config(export))


def _drop_chat_template(case: ExportCase) -> ExportCase:
    export = _export(case)
    problems, _, count = compare_chat_templates(case.original, export)
    if not count or problems:
        raise NotApplicable("the release has no chat template, or the export has already lost it")
    return replace(case, export=planted.without_chat_template(export))


def _drop_processor(case: ExportCase) -> ExportCase:
    export = _export(case)
    try:
        shared = processors(case.original).keys() & processors(export).keys()
    except Unreadable as error:
        raise NotApplicable(f"a processor's settings cannot be read: {error}") from error
    if not shared:
        raise NotApplicable("no processor is in both")
    documents = {name: raw for name, raw in export.documents.items() if name not in PROCESSOR_FILES}
    return replace(case, export=replace(export, documents=documents))


CHECK = ExportCheck()
