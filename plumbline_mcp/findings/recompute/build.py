"""The question of the check *build*, answered anew: is the model that training starts with the released one?

The check builds the reference implementation; nothing is built here. Tensors follow from the release's own
files, values of modules from its ``config.json`` in closed form. What a configuration leaves to the defaults
of a model's class is ``inconclusive``.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from plumbline_mcp.findings.questions import Question, Submission
from plumbline_mcp.findings.recompute.adapted import adapter_flaws
from plumbline_mcp.findings.recompute.answer import Answer, Flaw, unknown
from plumbline_mcp.findings.recompute.built_record import (
    BuiltRank,
    is_added,
    read_built,
    read_launches,
    unwrapped,
)
from plumbline_mcp.findings.recompute.built_values import (
    DROPOUTS,
    SHAPING,
    UNKNOWN,
    Config,
    Module,
    alike,
    decoder,
    told,
)
from plumbline_mcp.findings.recompute.decoding import TORCH
from plumbline_mcp.findings.recompute.frequencies import inverse_frequencies
from plumbline_mcp.findings.recompute.load_reference import (
    EMBEDDINGS,
    HEADS,
    recipe_dtype,
    reference_of,
    require_readable,
)
from plumbline_mcp.findings.recompute.model_parts import (
    ROTARY,
    Held,
    against_formula,
    dtype_flaws,
    name_flaws,
    rank_flaws,
    replica_flaws,
    shape_flaws,
    tie_flaws,
)
from plumbline_mcp.findings.recompute.model_record import distributions, read_moments
from plumbline_mcp.findings.recompute.names_map import NamesMap
from plumbline_mcp.findings.recompute.reading import Cannot, Record, first_record, number, place_in
from plumbline_mcp.findings.recompute.recipe import Recipe, pack_file, pack_folder
from plumbline_mcp.findings.recompute.release import Weights, is_wide, stated_dtype

PARTS = (
    "ranks", "config", "computation", "names", "shapes", "dtypes", "trained", "adapters", "modes", "buffers",
    "ties", "replicas", "refused",
)  # fmt: skip
BUILT = ("built",)


@dataclass(frozen=True)
class _Build(Held):
    """``held``: the model without its adapters; ``added``: the adapters' tensors."""

    added: dict[str, Any] = field(repr=False)
    built: list[BuiltRank] = field(repr=False)
    recipe: Recipe = field(repr=False)

    @property
    def official(self) -> Config:
        """config.json of the release."""
        return self.reference.weights.config

    @property
    def dropout(self) -> float | None:
        """The dropout that the recipe sets in place of the configuration's."""
        found = self.recipe.settings.get("dropout")
        return None if isinstance(found, str) else number(found)


def recompute(folder: Path, question: Question) -> Submission:
    """Answer the question on the first record. Raises `Cannot`."""
    record = first_record(folder, question)
    if record.job.get("procedure") != "build":
        raise Cannot("the record is no run of the procedure build")
    record.refuse_cancelled()
    if "model" not in question.files:
        raise Cannot("the question names no release (files: model)")
    weights = Weights.open(place_in(folder, question.files["model"]))
    require_readable(weights)
    moments = read_moments(record)
    answer = Answer(PARTS)
    answer.add(rank_flaws(record, moments, BUILT))
    built = read_built(record)
    if "built" not in moments or not built:
        answer.add([unknown("names", "nothing-recorded", "no rank recorded a built model")])
        return answer.submission("")
    pack = pack_folder(folder, question, record)
    versions = distributions(record)
    names = NamesMap.of(pack, str(weights.config.get("model_type", "")), versions)
    every = unwrapped(moments["built"])
    reference = reference_of(weights, names, record.settings.get("dtype"), every)
    base = {name: entries for name, entries in every.items() if not is_added(name)}
    added = {name: entries for name, entries in every.items() if is_added(name)}
    build = _Build(record, base, reference, added, built, Recipe(record.settings))
    _judge(answer, build)
    answer.add(_refused(record, pack, versions))
    return answer.submission(f"{len(build.loadable)} tensors and {len(built[0].modules)} modules")


def _judge(answer: Answer, build: _Build) -> None:
    answer.add(_config(build))
    answer.add(_computation(build))
    answer.add(name_flaws(build))
    answer.add(_beyond(build))
    answer.add(shape_flaws(build))
    answer.add(dtype_flaws(answer, build))
    answer.add(_adapter_dtypes(build))
    answer.add(_trained(build))
    answer.add(adapter_flaws(build.recipe, build.built, _linear(build)))
    answer.add(_modes(build))
    answer.add(_buffers(build))
    answer.add(tie_flaws(build))
    whole = Held(build.record, {**build.held, **build.added}, build.reference)
    answer.add(replica_flaws(whole))


def _linear(build: _Build) -> dict[str, bool]:
    """Layers of the release that have a matrix, by name: whether every linear layer includes it.

    Embedding and head have one too, and are left out where a recipe names all.
    """
    found = {
        name.removesuffix(".weight"): not name.endswith((*EMBEDDINGS, *HEADS))
        for name, wanted in build.reference.wanted.items()
        if name.endswith(".weight") and len(wanted.shape) == 2
    }
    has_router = any("experts" in name for name in build.reference.wanted)  # a matrix, and no linear layer
    return dict.fromkeys(found, False) if has_router else found


def _config(build: _Build) -> Iterator[Flaw]:
    """The configuration in memory says what the official one states."""
    official, seen, ranks = told(build.official), set[str](), 0
    for each in build.built:
        if each.config is None:
            continue
        ranks += 1
        live = told(each.config)
        for key, stated in official.items():
            wanted = build.dropout if key in DROPOUTS and build.dropout is not None else stated
            if key in live and not alike(wanted, live[key]) and key not in seen:
                seen.add(key)
                where = {"field": key, "rank": each.rank}
                yield Flaw("config", "config-differs", where, str(live[key])[:120])
        more = [key for key in live.keys() - official.keys() if live[key] is not None]
        lost = [key for key in official.keys() - live.keys() if official[key] is not None]
        for key in sorted({*more, *lost} - seen):
            seen.add(key)
            why = f"{key} is stated by only one of config.json and the model's configuration"
            yield unknown("config", "config-unknown", why, field=key)
    if not ranks:
        yield unknown("config", "config-unknown", "no rank recorded the configuration of the model")


def _computation(build: _Build) -> Iterator[Flaw]:
    """What modules hold themselves is what the official configuration gives them."""
    config = decoder(build.official)
    shapes = {name: wanted.shape for name, wanted in build.reference.wanted.items()}
    wrong: dict[tuple[str, str], list[tuple[int, Any]]] = {}
    without: dict[str, str] = {}
    for each in build.built:
        for name, attribute, value in each.values():
            if attribute not in SHAPING:
                continue
            wanted = Module(name, config, shapes, build.dropout).expected(attribute)
            if wanted is UNKNOWN:
                without.setdefault(attribute, name)
            elif not (value in wanted if isinstance(wanted, tuple) else alike(wanted, value)):
                wrong.setdefault((name, attribute), []).append((each.rank, value))
    for (name, attribute), found in sorted(wrong.items()):
        everywhere = len(found) == len(build.built)
        where = {"tensor": name or None, "field": attribute, "rank": None if everywhere else found[0][0]}
        yield Flaw("computation", "value-differs", where, str(found[0][1])[:120])
    for attribute, name in sorted(without.items()):
        why = f"{attribute} of {name or 'the model'} has no closed form here"
        yield unknown("computation", "value-unknown", why, tensor=name or None, field=attribute)
    yield from _unheld(build, config)


def _unheld(build: _Build, config: Config) -> Iterator[Flaw]:
    """A stated value that no module holds decides nothing."""
    held = {attribute for each in build.built for _, attribute, _ in each.values()}
    epsilons = {"variance_epsilon", "eps", "epsilon"}
    for key, names in (("rms_norm_eps", epsilons), ("rope.rope_theta", {"rope_type"})):
        if key in told(config) and not held & names:
            yield unknown("computation", "value-unknown", f"no module holds what {key} gives", field=key)


def _beyond(build: _Build) -> Iterator[Flaw]:
    """Modules of multi-token prediction that the model has are not worked out here."""
    found = sorted(build.reference.unbuilt & build.loadable.keys())
    if found:
        why = f"{found[0][:200]} is of multi-token prediction, which is not worked out here"
        yield unknown("names", "tensor-beyond-reference", why, tensor=found[0])


def _adapter_dtypes(build: _Build) -> Iterator[Flaw]:
    """Adapters are in float32, or in the dtype of the recipe or the release."""
    config = build.official
    named = recipe_dtype(build.record.settings.get("dtype"), {**build.held, **build.added}, config)
    allowed = {"F32", TORCH.get(named or stated_dtype(config) or "", "F32")}
    for name, entries in sorted(build.added.items()):
        if entries[0].dtype not in allowed:
            where = {"tensor": name, "rank": entries[0].rank}
            bound = " or ".join(sorted(allowed))
            yield Flaw("dtypes", "adapter-dtype-differs", where, entries[0].dtype, bound)


def _trained(build: _Build) -> Iterator[Flaw]:
    """Every parameter requires a gradient exactly where the recipe trains it."""
    unsure = 0
    for name, entries in sorted({**build.held, **build.added}.items()):
        if entries[0].line.get("kind") != "parameter" or not is_wide(entries[0].dtype):
            continue
        wanted = build.recipe.trains(name)
        unsure += wanted is None
        other = [entry for entry in entries if bool(entry.line.get("requires_grad")) is not wanted]
        if wanted is not None and other:
            code = "frozen-though-trained" if wanted else "trained-though-frozen"
            yield Flaw("trained", code, {"tensor": name, "rank": other[0].rank})
    if unsure:
        yield unknown("trained", "trained-set-unknown", f"of {unsure} biases the recipe does not say it")


def _modes(build: _Build) -> Iterator[Flaw]:
    """Every module is in training mode."""
    for each in build.built:
        still = [name for name, line in each.modules.items() if line.get("training") is not True]
        if still:
            yield Flaw("modes", "not-in-training", {"tensor": still[0] or None, "rank": each.rank})


def _buffers(build: _Build) -> Iterator[Flaw]:
    """Rotary frequencies are what the configuration gives; other computed buffers have no formula here."""
    frequencies, blank = inverse_frequencies(build.official), list[str]()
    for name, entries in sorted(build.held.items()):
        if entries[0].loadable:
            continue
        reasons = [against_formula(e, frequencies) if name.endswith(ROTARY) else None for e in entries]
        wrong = next((e for e, reason in zip(entries, reasons, strict=True) if reason), None)
        if wrong is not None:
            yield Flaw("buffers", "buffer-differs", {"tensor": name, "rank": wrong.rank})
        elif None in reasons:
            blank.append(name)
    if blank:
        why = f"{len(blank)} computed buffers have no formula here: {blank[0]}"[:300]
        yield unknown("buffers", "buffer-unknown", why, tensor=blank[0])


def _refused(record: Record, pack: Path | None, versions: dict[str, str]) -> Iterator[Flaw]:
    """Each launch of settings that the pack cites as unsupported ended with the cited sentence."""
    framework = pack_file(pack, "pack.toml").get("framework") or {}
    version = versions.get(str((framework.get("distributions") or [""])[0]), "")
    launches = read_launches(record)
    for cited in pack_file(pack, "settings.toml").get("refusal", []):
        name = str(cited["name"])
        if cited.get("versions") and not _holds(str(cited["versions"]), version):
            continue
        line = launches.get(name)
        if line is None:
            yield unknown("refused", "refusal-not-launched", f"{name} was not launched", field=name)
        elif line.get("code") == 0 and not line.get("timed_out"):
            yield Flaw("refused", "accepted-though-refused", {"field": name})
        elif line.get("timed_out") or not fnmatchcase(str(line.get("said", "")), str(cited["says"])):
            yield unknown("refused", "refused-otherwise", f"{name} ended with other words", field=name)


def _holds(specifier: str, version: str) -> bool:
    try:
        return Version(version) in SpecifierSet(specifier, prereleases=True)
    except (InvalidVersion, InvalidSpecifier):
        return True
