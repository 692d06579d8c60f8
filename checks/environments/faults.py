"""The faults that check image injects: version lowered, package removed, commit changed, file edited."""

import base64
from dataclasses import replace

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from checks.check import InjectedFault, NotApplicable
from checks.environments.case import ImageCase
from checks.environments.judging import judge_requirements
from checks.records.probe import Distribution
from checks.references.declarations import Declared, expand

_LOWERED = "0"


def smallest(case: ImageCase) -> ImageCase:
    """The same environment; of the framework's files only the one whose bytes are at hand."""
    sample = tuple(state for state in case.files.files if state.content is not None)
    return replace(case, files=replace(case.files, files=sample, unrecorded=()))


def _satisfied(case: ImageCase) -> list[tuple[SpecifierSet, Distribution]]:
    """Direct requirements that are met now, with what meets them."""
    installed = {canonicalize_name(found.name): found for found in case.probe.distributions}
    broken = {problem.place.package for problem in judge_requirements(case).problems}
    extras = case.pack.about.framework.extras
    return [
        (item.requirement.specifier, installed[canonicalize_name(item.requirement.name)])
        for item in expand(case.probe, case.framework.name, extras, case.source)
        if isinstance(item, Declared) and item.direct and item.requirement.name not in broken
    ]


def _with(case: ImageCase, old: Distribution, new: Distribution | None) -> ImageCase:
    distributions = [found for found in case.probe.distributions if found is not old]
    distributions += [new] if new is not None else []
    return replace(case, probe=case.probe.model_copy(update={"distributions": tuple(distributions)}))


def _lower_a_version(case: ImageCase) -> ImageCase:
    for specifier, found in _satisfied(case):
        if not specifier.contains(_LOWERED):
            return _with(case, found, found.model_copy(update={"version": _LOWERED}))
    raise NotApplicable("no requirement has a lower bound")


def _remove_a_package(case: ImageCase) -> ImageCase:
    for _, found in _satisfied(case):
        return _with(case, found, None)
    raise NotApplicable("the framework declares no requirement that is met")


def _change_the_commit(case: ImageCase) -> ImageCase:
    if case.commit is None or case.expected_commit is None:
        raise NotApplicable("no commit was named, or the installation records none")
    first = "0" if case.commit[0] != "0" else "1"
    return replace(case, commit=first + case.commit[1:])


def _change_the_version(case: ImageCase) -> ImageCase:
    if case.expected_version is None and case.probe.module.version is None:
        raise NotApplicable("no version was named, and the code states none")
    return replace(case, framework=case.framework.model_copy(update={"version": "0.dev0"}))


def _edit_a_file(case: ImageCase) -> ImageCase:
    if not case.files.files:
        raise NotApplicable("no small code file of the framework is intact")
    state = case.files.files[0]
    content = bytearray(base64.b64decode(state.content or ""))
    content[len(content) // 2] ^= 1
    edited = state.model_copy(update={"content": base64.b64encode(bytes(content)).decode()})
    return replace(case, files=replace(case.files, files=(edited,)))


FAULTS = (
    InjectedFault("a required version lowered", "requirements", "requirement-unsatisfied", _lower_a_version),
    InjectedFault("a required package removed", "requirements", "requirement-missing", _remove_a_package),
    InjectedFault("another commit installed", "commit", "commit-differs", _change_the_commit),
    InjectedFault("another version installed", "commit", "version-differs", _change_the_version),
    InjectedFault("a bit of a framework file flipped", "files", "file-edited", _edit_a_file),
)
