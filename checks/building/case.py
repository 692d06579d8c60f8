"""What the build check judges: the model as every rank built it, beside the one that the release implies."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from checks.building.adapted_names import base_name, is_adapter, is_inside
from checks.building.reference import Reference
from checks.loading.case import BUILT, LoadCase
from checks.records.built_models import BuiltLine, BuiltModel, RefusalLine
from checks.records.model_records import Recorded
from checks.references.recipe import TrainedSet

Shape = tuple[int, ...]


@dataclass(frozen=True)
class BuildCase(LoadCase):
    """``built``: configuration and modules by rank; ``implied``: shapes of what the model has to have.

    Names are those of the model without adapters; an adapter's parts keep theirs. ``unfollowed``: fields of
    the recipe's adapter that decide which layers it is put on and that are not followed here.
    """

    built: tuple[BuiltModel, ...] = field(default=(), repr=False)
    reference: Reference = field(default_factory=Reference, repr=False)
    implied: Mapping[str, Shape] = field(default_factory=dict, repr=False)
    trained: TrainedSet = field(default_factory=TrainedSet)
    dropout: float | None = None
    unfollowed: tuple[str, ...] = ()
    refusals: tuple[RefusalLine, ...] = ()
    framework_version: str = ""

    @property
    def moment(self) -> str:
        """The one moment that is recorded."""
        return BUILT

    def base(self) -> dict[str, list[Recorded]]:
        """The model's parameters and persistent buffers, without those of adapters."""
        return {name: held for name, held in self.loadable().items() if not is_adapter(name)}

    def pairs_implied(self) -> Iterator[tuple[str, list[Recorded]]]:
        """What the configuration implies and the model has, by name, with what the ranks hold of it."""
        for name, held in sorted(self.base().items()):
            if name in self.implied:
                yield name, held

    def modules(self, built: BuiltModel) -> dict[str, BuiltLine]:
        """A rank's modules by their names without adapters: of a wrapped one, what is inside."""
        found: dict[str, BuiltLine] = {}
        for name, line in built.modules.items():
            plain = base_name(name)
            if not is_adapter(plain) and (plain not in found or is_inside(name)):
                found[plain] = line
        return found

    def configs(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """The live configuration of each rank that holds one."""
        for each in self.built:
            if each.model is not None and each.model.config is not None:
                yield each.rank, each.model.config

    def small(self, names: set[str], modules: set[str]) -> "BuildCase":
        """A copy with some tensors and modules alone, of both sides."""
        case = self.only(names)
        assert isinstance(case, BuildCase)  # noqa: S101 - `only` copies what it is called on
        keep = {
            each.rank: {name: line for name, line in each.modules.items() if base_name(name) in modules}
            for each in self.built
        }
        return replace(
            case,
            built=tuple(replace(each, modules=keep[each.rank]) for each in self.built),
            implied={name: shape for name, shape in self.implied.items() if name in names},
            reference=replace(
                self.reference,
                modules={name: part for name, part in self.reference.modules.items() if name in modules},
            ),
        )
