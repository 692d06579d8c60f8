"""Name maps: which tensors of a release a framework's parameters are made of, and how.

A pack's ``names.toml`` lists rules. One without operations renames, and the rules below it read the new name;
of the others the first one that fits a release's tensor says where it goes. What no rule fits keeps its name.
The operations are a closed set: stack, concat, interleave, transpose, split. A map is data that a user or an
agent may write: an unknown field is refused, and its patterns have placeholders instead of regular
expressions, so that no pattern can run away.

    {layer}   digits: the same number in every pattern of a rule
    {prefix*} any characters, also none
"""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Literal

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version
from pydantic import Field, model_validator

from checks.errors import BadInput, Inconclusive
from checks.references.packs import BUILT_IN, Citation, Pack, Specifier, read_toml
from checks.verdict import Frozen

FILE = "names.toml"
_MAX_ANY = 2
"""``{x*}`` placeholders in one pattern: one more multiplies the steps of a match by the name's length."""

_PLACEHOLDER = re.compile(r"\{([a-z][a-z0-9_]{0,31})(\*?)\}")
_Pattern = Annotated[str, Field(min_length=1, max_length=300)]
_ModelType = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,80}$")]
_Length = tuple[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")] | Annotated[int, Field(ge=1)], ...]


class Operation(Frozen):
    """One step from the release's tensors to parameters.

    ``stack``: tensors of one pattern by their number ``over``, on a new first axis. ``concat`` with ``over``:
    the same along an ``axis`` that they have. ``concat`` and ``interleave``: what the patterns give, in their
    order, along ``axis``. ``transpose``: the last two axes swapped. ``split``: along ``axis`` into the
    parameters of ``to``, equal or of ``sizes`` (products of configuration values and numbers).
    """

    op: Literal["stack", "concat", "interleave", "transpose", "split"]
    over: str = ""
    axis: int = Field(0, ge=0, le=7)
    sizes: tuple[_Length, ...] = ()


class Applies(Frozen):
    """For which models and versions something is said; without either, for all."""

    model_types: tuple[_ModelType, ...] = ()
    versions: Specifier = Field("", description="PEP 440 specifier of the map's distribution, e.g. >=5")
    citation: Citation | None = None

    def fits(self, model_type: str, version: str) -> bool:
        """Whether it is said of a model type at a version. Raises `Inconclusive` for an unknown version."""
        if self.model_types and model_type not in self.model_types:
            return False
        if not self.versions:
            return True
        try:
            return SpecifierSet(self.versions).contains(Version(version), prereleases=True)
        except InvalidVersion as error:
            raise Inconclusive(
                f"the name map of {model_type} depends on the framework's version, which the run records as"
                f" {version[:40]!r}",
                "rerun the procedure with this version's recorder, which writes environment.json",
            ) from error


class Rule(Applies):
    """Tensors of the release (``from``) that make one parameter, or more by a split (``to``).

    Without operations each pattern of ``from`` is renamed to the one of ``to`` in its place.
    """

    sources: tuple[_Pattern, ...] = Field(alias="from", min_length=1, max_length=64)
    to: tuple[_Pattern, ...] = Field(min_length=1, max_length=64)
    operations: tuple[Operation, ...] = Field((), max_length=8)

    @model_validator(mode="after")
    def _consistent(self) -> "Rule":
        if not self.operations:
            return self._renames()
        kinds = [operation.op for operation in self.operations]
        if any(operation.over for operation in self.operations[1:]) or "stack" in kinds[1:]:
            raise ValueError("what goes over a number is the first operation, and there is one at most")
        if bool(self.over) != (kinds[0] == "stack") and kinds[0] != "concat":
            raise ValueError("a stack names what it goes over; only it and a concat can")
        known = set(placeholders(self.sources[0]))
        if any(set(placeholders(pattern)) != known for pattern in self.sources):
            raise ValueError("every pattern of from has the same placeholders")
        over = {self.over} - {""}
        if any(set(placeholders(pattern)) != known - over for pattern in self.to) or not over <= known:
            raise ValueError("placeholders of to are those of from, without the one that is gone over")
        joins = [each.op for each in self.operations if each.op in ("concat", "interleave") and not each.over]
        if (len(self.sources) > 1) != bool(joins):
            raise ValueError("several patterns are joined by one concat or interleave, a single one by none")
        if len(joins) > 1:
            raise ValueError("one concat or interleave at most")
        if (len(self.to) > 1) != ("split" in kinds) or "split" in kinds[:-1]:
            raise ValueError("several names in to need a split, which is the last operation")
        if kinds[-1:] == ["split"] and len(self.operations[-1].sizes) not in (0, len(self.to)):
            raise ValueError("a split has as many sizes as names in to, or none for equal parts")
        return self

    def _renames(self) -> "Rule":
        if len(self.to) != len(self.sources):
            raise ValueError("a rule without operations has a name in to for each pattern of from")
        pairs = zip(self.sources, self.to, strict=True)
        if any(set(placeholders(old)) != set(placeholders(new)) for old, new in pairs):
            raise ValueError("placeholders of to are those of from")
        return self

    @property
    def over(self) -> str:
        """The placeholder that is gone over, empty where nothing is."""
        return self.operations[0].over if self.operations else ""


class Kept(Applies):
    """Parameters that the framework documents to keep in a wider dtype than the recipe's."""

    parameters: tuple[_Pattern, ...] = Field(min_length=1)
    dtype: Literal["float32"] = "float32"
    where: tuple[Literal["bfloat16", "float16"], ...] = Field(min_length=1, description="the recipe's dtype")
    citation: Citation


class NamesFile(Frozen):
    """``names.toml``; ``same_as``: a built-in pack with the map; ``distribution``: whose versions count."""

    format: Literal[1]
    same_as: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")] | None = None
    distribution: str = ""
    covers: tuple[_ModelType, ...] = Field(
        (), description="model types for which the map is known to be whole"
    )
    rule: tuple[Rule, ...] = Field((), max_length=500)
    kept: tuple[Kept, ...] = Field((), max_length=200)

    @model_validator(mode="after")
    def _whole(self) -> "NamesFile":
        if self.same_as and (self.rule or self.kept or self.distribution or self.covers):
            raise ValueError("same_as takes the other map whole; name nothing beside it")
        if not self.distribution and any(entry.versions for entry in (*self.rule, *self.kept)):
            raise ValueError("versions need the distribution that they are of")
        return self


@dataclass(frozen=True)
class Made:
    """One parameter and the release's tensors it is made of: for each pattern, by the number stacked over."""

    name: str
    sources: tuple[tuple[str, ...], ...]
    operations: tuple[Operation, ...] = ()
    part: int = 0
    parts: int = 1

    @property
    def tensors(self) -> tuple[str, ...]:
        """Every tensor of the release that the parameter is made of."""
        return tuple(name for names in self.sources for name in names)


def load_names(pack: Pack) -> NamesFile:
    """The pack's name map, empty where it has none. Raises `BadInput`."""
    names = _read(pack.folder)
    if names.same_as is None:
        return names
    other = _read(BUILT_IN / names.same_as)
    if other.same_as is not None or not (BUILT_IN / names.same_as / FILE).is_file():
        raise BadInput(
            f"{pack.folder / FILE}: same_as names {names.same_as!r}, which has no map of its own",
            "name a built-in pack with a names.toml",
        )
    return other


def _read(folder: Any) -> NamesFile:
    path = folder / FILE
    return read_toml(path, NamesFile) if path.is_file() else NamesFile(format=1)


def arrange(
    names: NamesFile, tensors: Mapping[str, object], model_type: str, version: str
) -> dict[str, Made]:
    """Every parameter that a release's tensors make, by name.

    Raises `Inconclusive` where a rule finds a hole (an expert that the release lacks) or two rules make one
    parameter: then the release and the map do not belong together.
    """
    rules = [rule for rule in names.rule if rule.fits(model_type, version)]
    gathered: dict[tuple[int, tuple[str, ...]], dict[tuple[int, int], str]] = {}
    made: list[Made] = []
    for name in tensors:
        placed = _placed(rules, name)
        if isinstance(placed, str):
            made.append(Made(placed, ((name,),)))
        else:
            number, pattern, index, targets = placed
            gathered.setdefault((number, targets), {})[pattern, index] = name
    for (number, targets), found in gathered.items():
        made += _made(rules[number], targets, found)
    twice = [name for name, count in Counter(entry.name for entry in made).items() if count > 1]
    if twice:
        raise Inconclusive(f"the name map makes {twice[0][:200]} of more than one tensor", _MEND)
    return {entry.name: entry for entry in made}


_MEND = "name the release that was loaded, or mend the pack's names.toml"


def _placed(rules: list[Rule], name: str) -> str | tuple[int, int, int, tuple[str, ...]]:
    """Rule, pattern, number gone over and parameters of a tensor; its new name where it is only renamed."""
    for number, rule in enumerate(rules):
        for position, pattern in enumerate(rule.sources):
            match = compiled(pattern).fullmatch(name)
            if match is None:
                continue
            values = match.groupdict()
            if not rule.operations:
                name = _filled(rule.to[position], values)
                break
            index = int(values.pop(rule.over)) if rule.over else 0
            return number, position, index, tuple(_filled(target, values) for target in rule.to)
    return name


def _made(rule: Rule, targets: tuple[str, ...], found: Mapping[tuple[int, int], str]) -> list[Made]:
    count = 1 + max(index for _, index in found)
    for position, pattern in enumerate(rule.sources):
        for index in range(count):
            if (position, index) not in found:
                raise Inconclusive(
                    f"{targets[0][:200]} is made of {pattern[:200]!r}, and the release has none with"
                    f" {rule.over or 'that name'} {index}",
                    _MEND,
                )
            if len(found) > 2**22:
                raise Inconclusive(f"{targets[0][:200]} would be made of {len(found)} tensors", _MEND)
    sources = tuple(
        tuple(found[position, index] for index in range(count)) for position in range(len(rule.sources))
    )
    return [Made(target, sources, rule.operations, part, len(targets)) for part, target in enumerate(targets)]


def kept_in(names: NamesFile, model_type: str, version: str, recipe: str) -> list[Kept]:
    """What the framework documents to keep wider when the recipe's dtype is ``recipe``."""
    return [kept for kept in names.kept if recipe in kept.where and kept.fits(model_type, version)]


def placeholders(pattern: str) -> list[str]:
    """Names of a pattern's placeholders. Raises `ValueError` for a pattern that is none."""
    compiled(pattern)
    return [match[1] for match in _PLACEHOLDER.finditer(pattern)]


@lru_cache(maxsize=4096)
def compiled(pattern: str) -> re.Pattern[str]:
    """The pattern as a regular expression. Raises `ValueError`."""
    text, position, seen = "", 0, set[str]()
    if sum(1 for match in _PLACEHOLDER.finditer(pattern) if match[2]) > _MAX_ANY:
        raise ValueError(f"{pattern!r} has more than {_MAX_ANY} placeholders for any characters")
    for match in _PLACEHOLDER.finditer(pattern):
        text += re.escape(pattern[position : match.start()])
        if match[1] in seen:
            raise ValueError(f"{pattern!r} has the placeholder {match[1]} twice")
        seen.add(match[1])
        text += f"(?P<{match[1]}>{'.*' if match[2] else '[0-9]{1,6}'})"
        position = match.end()
    text += re.escape(pattern[position:])
    if "{" in _PLACEHOLDER.sub("", pattern) or "}" in _PLACEHOLDER.sub("", pattern):
        raise ValueError(f"{pattern!r}: a placeholder is {{name}} or {{name*}}")
    return re.compile(text)


def _filled(target: str, values: Mapping[str, str]) -> str:
    return _PLACEHOLDER.sub(lambda match: values[match[1]], target)
