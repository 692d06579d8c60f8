"""Opens what the data check compares: settings, template, recipe and rows."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from checks.check import Context, Progress
from checks.conversations.alignment import Terms
from checks.conversations.cutting import cut_documents
from checks.conversations.inputs import DataInputs
from checks.conversations.rows_case import Recipe, Rows
from checks.conversations.splitting import join_pieces
from checks.conversations.wrapping import unwrap
from checks.errors import BadInput
from checks.records.documents import aligned
from checks.records.rows import Dump
from checks.records.runs import RunFolder, file_evidence
from checks.records.workload import Conversation
from checks.references.expected import Reference, Supervise, Templates
from checks.references.packs import load_pack
from checks.references.rendering import (
    ChatTemplate,
    RenderError,
    read_template,
    render_whole,
    template_source,
)
from checks.references.tokenization import ReleaseTokenizer, StopTokens
from checks.verdict import Evidence


@dataclass(frozen=True)
class Settings:
    """The inputs, completed from the run's own settings where a run folder is judged."""

    inputs: DataInputs
    job: Mapping[str, JsonValue]

    def value(self, name: str, default: Any = None) -> Any:
        """The caller's value, else the run's, else the default."""
        given = getattr(self.inputs, name, None)
        if given is None or given == {}:
            given = self.job.get(name)
        return default if given is None else given

    def packing(self) -> Any:
        """How the recipe packs: a run may only say that it does, and by which strategy of its framework."""
        packing = self.value("packing", "none")
        if not isinstance(packing, bool):
            return packing
        wrapped = self.job.get("packing_strategy") == "wrapped"
        return "none" if not packing else "wrapped" if wrapped else "documents"

    def resolved(self) -> dict[str, JsonValue]:
        """Every setting that decides the right answer, as used."""
        return {
            "columns": self.value("columns", {}),
            "template_kwargs": self.value("template_kwargs", {}),
            "date": self.value("date"),
            "max_length": self.value("max_length"),
            "packing": self.packing(),
            "shuffle": bool(self.value("shuffle", False)),
            "supervise": self.inputs.supervise or "all",
            "labels": self.value("labels", "aligned"),
            "epochs": self.job.get("epochs"),
        }


def pack_note(framework: str | None) -> str:
    """The connection pack in words; empty when none is named. Raises `BadInput`."""
    if framework is None:
        return ""
    pack = load_pack(framework)
    return f"{pack.about.title} (pack {pack.name}, {pack.digest[:12]})"


def run_date(run: RunFolder) -> str | None:
    """The day on which the run made its rows; None when it ran over midnight or did not say."""
    days = {moment[:10] for ended in run.exits() for moment in (ended.started, ended.ended) if moment}
    return next(iter(days)) if len(days) == 1 else None


def column_names(value: Any, name: str) -> dict[str, str]:
    """A mapping of column names. Raises `BadInput`."""
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise BadInput(f"{name} is {value!r}, not a mapping of names")
    return {str(key): item for key, item in value.items()}


def _date(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text)
    except ValueError as error:
        raise BadInput(f"the date {text!r} is not one", "write it as 2026-01-31") from error


def templates_of(
    inputs: DataInputs,
    used: dict[str, JsonValue],
    tokenizer: ReleaseTokenizer,
    conversations: list[Conversation],
) -> Templates:
    """The templates to render: the caller's, else the release's (never what a run trained with).

    A release may have another for conversations that offer tools.
    """

    def template(tools: bool) -> ChatTemplate:
        if inputs.template is not None:
            source, origin = read_template(inputs.template), str(inputs.template)
        else:
            source, origin = template_source(inputs.model, tokenizer.configuration, tools)
        return _template(source, origin, used, tokenizer)

    with_tools = {row.tools is not None for row in conversations}
    made = {tools: template(tools) for tools in sorted(with_tools)}
    plain, tooled = made.get(False), made.get(True)
    if plain is None or tooled is None or plain.source == tooled.source:
        return Templates.of(next(iter(made.values())))
    return Templates(plain, tooled)


def other_template(
    run: RunFolder | None,
    templates: Templates,
    used: dict[str, JsonValue],
    tokenizer: ReleaseTokenizer,
    conversations: list[Conversation],
) -> str:
    """The template that a run rendered with, where it gives other text than the reference's; else empty.

    One that only marks what is generated gives the same text; one that cannot be read any more, or renders
    a conversation no longer, counts as another.
    """
    named = run.job.inputs.get("template") if run else None
    if not named:
        return ""
    try:
        source = read_template(Path(named))
        if source in {template.source for template in templates.distinct}:
            return ""
        other = _template(source, named, used, tokenizer)
        return named if any(_differs(templates, other, row) for row in conversations) else ""
    except (BadInput, RenderError):
        return named


def _differs(templates: Templates, other: ChatTemplate, row: Conversation) -> bool:
    """Whether another template gives other text; not where the reference's gives none to compare."""
    own = templates.plain if row.tools is None else templates.tools
    try:
        wanted = render_whole(own, row.messages, row.tools)[1]
    except RenderError:
        return False
    return render_whole(other, row.messages, row.tools)[1] != wanted


def _template(
    source: str, origin: str, used: dict[str, JsonValue], tokenizer: ReleaseTokenizer
) -> ChatTemplate:
    arguments = used["template_kwargs"]
    if not isinstance(arguments, dict):
        raise BadInput(f"template_kwargs is {arguments!r}, not a mapping")
    date = used["date"]
    return ChatTemplate(
        source,
        origin,
        {**tokenizer.special_tokens, **arguments},
        _date(date if isinstance(date, str) else None),
    )


def recipe_of(
    used: dict[str, JsonValue],
    dump: Dump,
    tokenizer: ReleaseTokenizer,
    stops: StopTokens,
    templates: Templates,
    world_size: int,
    supervise: Supervise | None = None,
) -> Recipe:
    """The settings as the judge needs them. Raises `BadInput`."""
    padding = {tokenizer.id_of("pad_token"), tokenizer.id_of("eos_token")}
    length, wrapped = _number(used["max_length"], "max_length"), used["packing"] == "wrapped"
    terms = Terms(
        max_length=None if wrapped else length,
        padding=frozenset(number for number in padding if number is not None),
        stops=stops.ids,
        shifted=used["labels"] == "shifted",
    )
    return Recipe(
        packing=str(used["packing"]),
        sequence_length=length if wrapped else None,
        shuffle=bool(used["shuffle"]),
        epochs=_number(used["epochs"], "epochs"),
        world_size=world_size,
        terms=terms,
        stops_named=stops.named_by_release,
        supervise=supervise,
        labelled=any(sequence.labels is not None for sequence in dump.sequences),
        notes=(*_column_notes(dump), *_argument_notes(used["template_kwargs"], templates)),
    )


def _argument_notes(arguments: JsonValue, templates: Templates) -> tuple[str, ...]:
    """Template arguments that no template looks up: a misspelled one would change nothing, silently."""
    if not isinstance(arguments, dict) or not arguments:
        return ()
    read = frozenset[str]().union(*(template.reads for template in templates.distinct))
    unread = [name for name in arguments if name not in read]
    return (f"the template reads no variable {', '.join(map(repr, unread))}",) if unread else ()


def _column_notes(dump: Dump) -> tuple[str, ...]:
    notes: tuple[str, ...] = ()
    if dump.masked[:1] == ("labels",):
        notes = (f"labels count only where no loss mask is 0: {', '.join(dump.masked[1:])}",)
    return (*notes, *_unread_notes(dump))


def _unread_notes(dump: Dump) -> tuple[str, ...]:
    if not dump.unread:
        return ()
    names = ", ".join(name[:40] for name in dump.unread[:12])
    more = f" and {len(dump.unread) - 12} more" if len(dump.unread) > 12 else ""
    return (f"columns of the rows that are not read: {names}{more}",)


def _number(value: JsonValue, name: str) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value > 0):
        return value
    raise BadInput(f"{name} is {value!r}, no positive number")


def rows_of(
    reference: Reference, conversations: list[Conversation], dump: Dump, recipe: Recipe, progress: Progress
) -> Rows:
    """The documents of the dump beside the rendered workload. Raises `Inconclusive` (see `unwrap`)."""
    rows = tuple(reference.rows(conversations, progress))
    sequences = dump.sequences
    if recipe.terms.shifted:
        sequences = tuple(aligned(sequence) for sequence in sequences)
    if recipe.packing == "wrapped":
        found = unwrap(dump.sequences, sequences, list(rows), recipe.terms, recipe.shuffle)
        return Rows(found.documents, rows, recipe, reference.tokenizer, dump.sequences, found.repeated)
    documents = cut_documents(sequences, list(rows), recipe.packing != "none", recipe.terms)
    if recipe.packing == "none":
        return Rows(documents, rows, recipe, reference.tokenizer)
    joined = join_pieces(documents, rows, recipe.terms)
    if joined.recorded:  # a recipe that splits what is too long cuts nothing off
        recipe = replace(recipe, terms=replace(recipe.terms, max_length=None))
    return Rows(joined.documents, rows, recipe, reference.tokenizer, recorded=joined.recorded)


def context_of(
    inputs: DataInputs,
    run: RunFolder | None,
    dump: Dump,
    used: dict[str, JsonValue],
    templates: Templates,
    stops: str,
    pack: str,
) -> Context:
    """What the verdict says beside its parts."""
    distinct = templates.distinct
    digests = [hashlib.sha256(template.source.encode()).hexdigest() for template in distinct]
    settings: dict[str, JsonValue] = {
        **used,
        "template": ", ".join(template.origin for template in distinct),
        "template_sha256": ", ".join(digests),
        "stop_tokens": stops,
    }
    if run and "template" in run.job.inputs:
        settings["template_of_the_run"] = str(run.job.inputs["template"])
    if documented := _documented(inputs, run):
        settings["documented"] = documented
    if dump.masked:
        settings["labels_from"] = " and ".join(f"column {name}" for name in dump.masked)
    target = {
        "model": inputs.model.name,
        **({"framework": pack} if pack else {}),
        **(run.job.target if run else {}),
    }
    return Context(
        target=target,
        settings={name: value for name, value in settings.items() if value is not None},
        evidence=_evidence(inputs, dump),
        run_id=run.job.run_id if run else None,
        confinement=run.job.confinement if run else "none",
        stand_ins=(f"the template {inputs.template} stands in for the release's own",)
        if inputs.template
        else (),
    )


def _documented(inputs: DataInputs, run: RunFolder | None) -> dict[str, JsonValue]:
    """Settings of the run that are not the framework's defaults, with where it documents them."""
    if inputs.framework is None or run is None:
        return {}
    known = load_pack(inputs.framework).procedure_settings(run.job.procedure)
    return {
        name: f"{run.job.settings[name]} ({setting.citation})"
        for name, setting in known.items()
        if name in run.job.settings and run.job.settings[name] != setting.default
    }


def _evidence(inputs: DataInputs, dump: Dump) -> tuple[Evidence, ...]:
    names = ("tokenizer.json", "chat_template.jinja", "tokenizer_config.json", "generation_config.json")
    files = [(inputs.workload, "workload"), *((inputs.model / name, "release") for name in names)]
    files += [(inputs.template, "template")] if inputs.template else []
    files += [(inputs.rows, "rows")] if inputs.rows.is_file() else []
    if inputs.rows.is_dir() and not dump.evidence:
        files += [(path, "rows") for path in sorted(inputs.rows.rglob("*.arrow"))]
    return (*dump.evidence, *(file_evidence(path, role) for path, role in files if path.is_file()))
