"""The build check: the model that training starts with is the released model, adapted as the recipe says."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import Field, JsonValue

from checks.building import planted
from checks.building.adapted_names import without_wrappers
from checks.building.adapter_part import adapters_part
from checks.building.case import BuildCase
from checks.building.reference import implied, reference_of
from checks.building.refused_part import refused_part
from checks.building.tensor_parts import (
    buffers_part,
    build_dtypes_part,
    names_part,
    shapes_part,
    trained_part,
)
from checks.building.value_parts import computation_part, config_part, modes_part
from checks.check import Check, Context, InjectedFault, Inputs, Progress
from checks.errors import BadInput, NotEvaluated
from checks.loading.buffers import reference_buffers
from checks.loading.case import BUILT
from checks.loading.expected import read_release, stated_dtype
from checks.loading.opening import environment_of, last_recorded, recipe_dtype, version_run
from checks.loading.parts import ranks_part, replicas_part, ties_part
from checks.loading.ranks import rank_problems
from checks.records.built_models import read_built, read_refusals
from checks.records.model_records import read_models
from checks.records.run_ends import refuse_cancelled, refuse_refused
from checks.records.runs import RunFolder
from checks.references.checkpoints.formats import TORCH_NAMES
from checks.references.checkpoints.sources import evidence, open_reference
from checks.references.names import load_names
from checks.references.packs import load_pack, pack_evidence
from checks.references.recipe import read_trained_set
from checks.verdict import Outcome, Part

PARTS = (
    "ranks", "config", "computation", "names", "shapes", "dtypes", "trained", "adapters", "modes", "buffers",
    "ties", "replicas", "refused",
)  # fmt: skip
_UNFOLLOWED = ("exclude_modules", "layers_to_transform", "layers_pattern", "target_parameters")
"""Fields of peft's LoraConfig that also decide which layers are adapted."""
_RECORDS = ("/model.jsonl", "/built.jsonl", "/refusals.jsonl", "/environment.json")


class BuildInputs(Inputs):
    """What a build check compares."""

    run: Path = Field(description="run folder of the procedure build, or its id")
    model: Path = Field(description="folder of the released checkpoint that the run built from")
    framework: str | None = Field(
        None, description="connection pack whose name map is used; by default that of the run's job"
    )


class BuildCheck(Check[BuildInputs, BuildCase]):
    """Is the model that training starts with the released model, adapted as the recipe says?

    The run loads the release as a training job does, freezes and adapts it, and every rank records its
    tensors, the configuration that the model holds in memory, and the values that each module holds itself.
    Plumbline builds the reference implementation from the official configuration on the meta device, which
    takes no memory, and compares: the set of parameters and buffers with shapes and dtypes; every value of a
    table of what shapes computation (epsilons, activations, rotary embedding, scalings, windows, soft caps,
    routing), in the configuration and module by module; rotary frequencies; which parameters require a
    gradient; where adapters are, with which rank and factor; what is tied; which modules are in training
    mode; and whether ranks that hold the same part hold the same bytes. The first rank also launches, as dry
    runs, the settings that the pack cites as unsupported: one that starts without a word fails.
    """

    name = "build"
    title = "Build"
    question = "Is the model that training starts with the released model, adapted as the recipe says?"
    reference = (
        "transformers' model of the official configuration on the meta device; the release's own tensors"
        " where the framework arranges them in another way"
    )
    rule = (
        "exact: names, shapes, dtypes, every value that shapes computation, trainable set, adapters' layers,"
        " ranks and factors, ties; replicas equal; rotary frequencies within their rounding; documented"
        " refusals hold"
    )
    training = "none"
    pattern = 2
    records = ("model.jsonl", "built.jsonl", "refusals.jsonl", "environment.json")
    example = "plumbline check build --run RUN --model RELEASE"
    order = 24
    inputs = BuildInputs

    def __init__(self) -> None:
        self.faults = (
            InjectedFault("a parameter that the model lacks", "names", "tensor-missing", planted.dropped),
            InjectedFault("a parameter one row larger", "shapes", "shape-differs", planted.reshaped),
            InjectedFault("a parameter in another dtype", "dtypes", "dtype-differs", planted.recast),
            InjectedFault("a parameter left frozen", "trained", "frozen-though-trained", planted.frozen),
            InjectedFault("a parameter left trained", "trained", "trained-though-frozen", planted.thawed),
            InjectedFault(
                "a value of a module at twice its size", "computation", "value-differs", planted.value_changed
            ),
            InjectedFault(
                "a value of the configuration at twice its size", "config", "config-differs",
                planted.config_changed,
            ),
            InjectedFault("a module in eval mode", "modes", "not-in-training", planted.left_in_eval),
            InjectedFault("an adapter at half scale", "adapters", "scaling-differs", planted.half_scaled),
            InjectedFault(
                "rotary frequencies of another base", "buffers", "buffer-differs", planted.buffer_overwritten
            ),
            InjectedFault("a tied head with memory of its own", "ties", "not-tied", planted.untied),
            InjectedFault(
                "a refused setting that starts", "refused", "accepted-though-refused", planted.accepted
            ),
            InjectedFault(
                "a replica with other values", "replicas", "replicas-differ", planted.replica_changed
            ),
        )  # fmt: skip

    def open(self, inputs: BuildInputs, progress: Progress) -> BuildCase:
        """Read what the ranks recorded, and build the reference on the meta device."""
        progress(0, 2, "reading records")
        run = _run(inputs.run)
        checkpoint = open_reference(inputs.model, "model")
        pack = load_pack(inputs.framework or run.job.framework)
        names = load_names(pack)
        ranks = [without_wrappers(rank) for rank in read_models(run)]
        recorded = last_recorded(ranks, (BUILT,))
        about, config = environment_of(run), checkpoint.json("config.json") or {}
        settings = run.job.settings
        recipe = recipe_dtype(settings.get("dtype"), recorded, config)
        dtypes = {name: entry.dtype for name, entry in recorded.items()}
        release = read_release(checkpoint, names, version_run(about, names.distribution), recipe, dtypes)
        progress(1, 2, "building the reference on the meta device")
        reference = reference_of(checkpoint, recipe or stated_dtype(config) or "")
        if reference.why_not:
            raise NotEvaluated(
                f"there is no reference of this model: {reference.why_not}",
                "name a release whose architecture the pinned transformers knows",
            )
        setting = settings.get("dtype")
        case = BuildCase(
            run,
            release,
            tuple(ranks),
            run.job.world_size,
            tuple(rank_problems(run, ranks, (BUILT,), "built model")),
            recipe if isinstance(setting, str) and setting in TORCH_NAMES else None,
            pack,
            names.distribution,
            tuple(str(each)[:200] for each in about.get("stand_ins", [])[:20]),
            (
                run.evidence("job.json", "job"),
                *(run.evidence(n, "build record") for n in run.files("records/") if n.endswith(_RECORDS)),
                *evidence(checkpoint, "release"),
                *pack_evidence(pack),
            ),
            covered=str(config.get("model_type", "")) in names.covers,
            built=tuple(read_built(run)),
            reference=reference,
            implied=implied(reference, checkpoint, release),
            trained=read_trained_set(settings),
            dropout=_dropout(settings),
            unfollowed=_unfollowed(settings),
            refusals=read_refusals(run),
            framework_version=version_run(about, pack.about.framework.distributions[0]),
        )
        computed, why_not = reference_buffers(case)
        return replace(case, computed=computed, not_computed=why_not)

    def context(self, inputs: BuildInputs, case: BuildCase) -> Context:
        """The release, the run and the pack."""
        config = case.release.checkpoint.json("config.json") or {}
        target = {
            "model": str(inputs.model),
            "run": str(case.run.path),
            "model_type": str(config.get("model_type", ""))[:80],
            "framework": case.pack.name if case.pack else "",
        }
        settings: dict[str, JsonValue] = {**case.run.job.settings}
        settings |= {"pack_digest": case.pack.digest} if case.pack else {}
        return Context(
            target={name: value for name, value in target.items() if value},
            settings=settings,
            evidence=case.evidence,
            reference_shares_code=case.distribution == "transformers",
            stand_ins=case.stand_ins,
            run_id=case.run.job.run_id,
            confinement=case.run.job.confinement,
        )

    def judge(self, case: BuildCase, progress: Progress) -> list[Part]:
        """Every part, in the order of `PARTS`."""
        ranks = ranks_part(case)
        if not case.loadable() or not case.built:
            reason = "no rank recorded a built model"
            return [ranks, *(Part(name=n, outcome=Outcome.NOT_EVALUATED, reason=reason) for n in PARTS[1:])]
        return [
            ranks,
            config_part(case),
            computation_part(case),
            names_part(case),
            shapes_part(case),
            build_dtypes_part(case),
            trained_part(case),
            adapters_part(case),
            modes_part(case),
            buffers_part(case),
            ties_part(case),
            replicas_part(case),
            refused_part(case),
        ]

    def smallest(self, case: BuildCase) -> BuildCase:
        """A few right tensors, the tied pair, an adapter, and modules that hold values of the table."""
        return planted.slice_of(case)


def _run(path: Path) -> RunFolder:
    if not path.is_dir():
        raise BadInput(f"{path} is no run folder", "name a folder under runs/, or the id of a run")
    run = RunFolder.open(path)
    if run.job.procedure != "build":
        raise BadInput(
            f"run {run.job.run_id} is of the procedure {run.job.procedure!r}, not build",
            "name a run of the procedure build: plumbline run build --model RELEASE",
        )
    refuse_cancelled(run)
    refuse_refused(run)
    return run


def _dropout(settings: Mapping[str, Any]) -> float | None:
    value = settings.get("dropout")
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _unfollowed(settings: Mapping[str, Any]) -> tuple[str, ...]:
    lora = settings.get("lora")
    return tuple(name for name in _UNFOLLOWED if isinstance(lora, Mapping) and lora.get(name) is not None)


CHECK = BuildCheck()
