"""The load check: after the framework loaded the release, every tensor holds what the release says."""

from dataclasses import replace
from pathlib import Path

from pydantic import Field, JsonValue

from checks.check import Check, Context, InjectedFault, Inputs, Progress
from checks.errors import BadInput, Inconclusive
from checks.loading import planted
from checks.loading.buffers import reference_buffers
from checks.loading.case import PASSES, LoadCase
from checks.loading.expected import read_release
from checks.loading.opening import environment_of, last_recorded, recipe_dtype, version_run
from checks.loading.parts import (
    buffers_part,
    dtypes_part,
    filled_part,
    names_part,
    ranks_part,
    replicas_part,
    shapes_part,
    ties_part,
)
from checks.loading.ranks import rank_problems
from checks.loading.values_part import ValuesFound, compare_values_of
from checks.records.model_records import read_models
from checks.records.run_ends import refuse_cancelled, refuse_refused
from checks.records.runs import RunFolder
from checks.references.checkpoints.formats import TORCH_NAMES
from checks.references.checkpoints.sources import evidence, open_reference
from checks.references.names import load_names
from checks.references.packs import load_pack, pack_evidence
from checks.rules import MAX_PROBLEMS_LISTED
from checks.verdict import Coverage, Measurement, Outcome, Part, part_of

PARTS = ("ranks", "names", "shapes", "dtypes", "values", "filled", "buffers", "ties", "replicas")
REFERENCE_DISTRIBUTION = "transformers"
"""The distribution that computed buffers are held against."""


class LoadInputs(Inputs):
    """What a load check compares."""

    run: Path = Field(description="run folder of the procedure load, or its id")
    model: Path = Field(description="folder of the released checkpoint that the run loaded")
    framework: str | None = Field(
        None, description="connection pack whose name map is used; by default that of the run's job"
    )


class LoadCheck(Check[LoadInputs, LoadCase]):
    """Does every tensor equal the original checkpoint after the framework loaded it?

    The run loads the release twice into memory that was filled before (NaN, and integers with complementary
    values), and every rank records a digest of each parameter and buffer. Plumbline reads the release's
    safetensors itself, decodes low-precision formats with its own decoders, arranges the tensors as the
    pack's name map says, casts them once to the recipe's dtype, and compares digests shard by shard. Where
    they differ, whole values or samples say how: transposed, permuted, wrongly scaled, re-initialised,
    copied in part. A framework that builds the model without memory leaves nothing to fill before the load:
    there torch itself fills the memory that it hands out meanwhile, so that a tensor, or a part of one, that
    the loader made and never wrote shows even where its memory held the right values before.
    """

    name = "load"
    title = "Load"
    question = "Does every tensor equal the original checkpoint after the load?"
    reference = (
        "Plumbline's own reading and decoding of the official safetensors; transformers for buffers that a"
        " model computes"
    )
    rule = (
        "every tensor equal bit for bit after the one declared cast, on every rank; nothing missing,"
        " unexpected or still filled; computed buffers untouched; ties share memory; replicas equal"
    )
    training = "none"
    records = ("model.jsonl", "fills.jsonl", "loaded-*.safetensors", "environment.json")
    pattern = 6
    example = "plumbline check load --run RUN --model RELEASE"
    order = 25
    inputs = LoadInputs

    def __init__(self) -> None:
        self.faults = (
            InjectedFault("a tensor that was left out", "filled", "still-filled", planted.skipped),
            InjectedFault("a transposed square matrix", "values", "transposed", planted.transposed),
            InjectedFault("two experts swapped", "values", "permuted", planted.experts_swapped),
            InjectedFault("a wrong scale of a block", "values", "wrong-scale", planted.wrong_scale),
            InjectedFault("a tensor in another dtype", "dtypes", "dtype-differs", planted.cast),
            InjectedFault("a tensor that the model lacks", "names", "tensor-missing", planted.dropped),
            InjectedFault("a buffer overwritten", "buffers", "buffer-changed", planted.buffer_overwritten),
            InjectedFault("a tied head with memory of its own", "ties", "not-tied", planted.untied),
            InjectedFault(
                "a replica with other values", "replicas", "replicas-differ", planted.replica_changed
            ),
        )

    def open(self, inputs: LoadInputs, progress: Progress) -> LoadCase:
        """Read what the ranks recorded, and work out what the release makes of every parameter."""
        progress(0, None, "reading records")
        if not inputs.run.is_dir():
            raise BadInput(f"{inputs.run} is no run folder", "name a folder under runs/, or the id of a run")
        run = RunFolder.open(inputs.run)
        if run.job.procedure != "load":
            raise BadInput(
                f"run {run.job.run_id} is of the procedure {run.job.procedure!r}, not load",
                "name a run of the procedure load: plumbline run load --model RELEASE",
            )
        refuse_cancelled(run)
        refuse_refused(run)
        checkpoint = open_reference(inputs.model, "model")
        pack = load_pack(inputs.framework or run.job.framework)
        names = load_names(pack)
        ranks = read_models(run)
        problems = rank_problems(run, ranks)
        recorded = last_recorded(ranks, PASSES)
        about, config = environment_of(run), checkpoint.json("config.json") or {}
        setting = run.job.settings.get("dtype")
        recipe = recipe_dtype(setting, recorded, config)
        dtypes = {name: entry.dtype for name, entry in recorded.items()}
        version = version_run(about, names.distribution)
        release = read_release(checkpoint, names, version, recipe, dtypes)
        case = LoadCase(
            run,
            release,
            tuple(ranks),
            run.job.world_size,
            tuple(problems),
            recipe if isinstance(setting, str) and setting in TORCH_NAMES else None,
            pack,
            names.distribution,
            tuple(str(each)[:200] for each in about.get("stand_ins", [])[:20]),
            (
                run.evidence("job.json", "job"),
                *(run.evidence(name, "model record") for name in _records(run)),
                *evidence(checkpoint, "release"),
                *pack_evidence(pack),
            ),
        )
        covered = str(config.get("model_type", "")) in names.covers
        case = replace(case, covered=covered)
        return case.with_computed(*reference_buffers(case))

    def context(self, inputs: LoadInputs, case: LoadCase) -> Context:
        """The release, the run and what they were held together by."""
        config = case.release.checkpoint.json("config.json") or {}
        target = {
            "model": str(inputs.model),
            "run": str(case.run.path),
            "model_type": str(config.get("model_type", ""))[:80],
            "framework": case.pack.name if case.pack else "",
        }
        settings: dict[str, JsonValue] = {**case.run.job.settings, "dtype": case.recipe or case.release.dtype}
        settings |= {"pack_digest": case.pack.digest} if case.pack else {}
        return Context(
            target={name: value for name, value in target.items() if value},
            settings=settings,
            evidence=case.evidence,
            reference_shares_code=bool(case.computed) and case.distribution == REFERENCE_DISTRIBUTION,
            stand_ins=case.stand_ins,
            run_id=case.run.job.run_id,
            confinement=case.run.job.confinement,
        )

    def judge(self, case: LoadCase, progress: Progress) -> list[Part]:
        """Every part, in the order of `PARTS`."""
        ranks = ranks_part(case)
        if not case.loadable():
            reason = "no rank recorded a loaded model"
            return [ranks, *(Part(name=n, outcome=Outcome.NOT_EVALUATED, reason=reason) for n in PARTS[1:])]
        try:
            values = _values(case, progress)
        except OSError as error:
            raise Inconclusive(f"a file could not be read: {error}") from error
        return [
            ranks,
            names_part(case),
            shapes_part(case),
            dtypes_part(case),
            values,
            filled_part(case),
            buffers_part(case),
            ties_part(case),
            replicas_part(case),
        ]

    def smallest(self, case: LoadCase) -> LoadCase:
        """Small clean tensors: plain ones, a square matrix, a stack, a low-precision one, the tied pair."""
        return planted.slice_of(case)


def _records(run: RunFolder) -> list[str]:
    wanted = ("/model.jsonl", "/fills.jsonl", "/environment.json")
    return [name for name in run.files("records/") if name.endswith(wanted)]


def _values(case: LoadCase, progress: Progress) -> Part:
    total = float(sum(expected.size for expected, _ in case.pairs())) or 1.0
    done = 0.0

    def tell(elements: int, name: str) -> None:
        nonlocal done
        done += elements
        progress(min(done, total), total, f"comparing {name}")

    found = compare_values_of(case, tell)
    return part_of(
        "values",
        found.problems,
        coverage=Coverage(judged=found.judged, total=found.total, unit="tensors"),
        measurements=_measurements(found),
        notes=_notes(found),
        limit=MAX_PROBLEMS_LISTED,
    )


def _measurements(found: ValuesFound) -> tuple[Measurement, ...]:
    return (
        Measurement(name="tensors that differ", value=found.differing, bound=0, unit="tensors"),
        Measurement(name="elements compared by digest", value=found.elements, unit="elements"),
    )


def _notes(found: ValuesFound) -> tuple[str, ...]:
    if not found.named_from_samples:
        return ()
    note = (
        f"{found.named_from_samples} differences are named from digests and samples: the ranks wrote no whole"
        " values (record_bytes); that the tensors differ is exact"
    )
    return (note,)


CHECK = LoadCheck()
