"""Compares a framework's files with a git checkout: an editable installation, or a wheel with its source."""

from dataclasses import dataclass, field
from pathlib import Path

from checks.errors import NotEvaluated
from checks.records.bytecode import Bytecode
from checks.records.probe import Distribution, EnvironmentProbe, FileState
from checks.references import git_tree

_LAYOUTS = ("src/", "", "python/", "lib/")
"""Where checkouts keep their package folder."""


@dataclass(frozen=True)
class FilesCase:
    """Recorded and measured digests of the framework's files, and what the digests come from."""

    reference: str
    files: tuple[FileState, ...] = ()
    unrecorded: tuple[str, ...] = ()
    unhashed: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    """Absolute paths of the code files: an import may run their cached byte code instead."""
    bytecode: Bytecode = field(default_factory=Bytecode)
    missing_record: str | None = None
    """Why there is nothing to compare with, when there is nothing."""


def editable_files(probe: EnvironmentProbe, framework: Distribution, checkout: Path) -> FilesCase:
    """The framework's package folders against the commit that is checked out."""
    origin = probe.module.origin or next((f"{folder}/." for folder in probe.module.folders), None)
    if origin is None:
        return FilesCase("git tree", missing_record=f"the module {probe.module.name} is not importable")
    try:
        commit, root = git_tree.head(checkout), git_tree.top(checkout)
        package = Path(origin).resolve().parent
        found = [
            git_tree.tree_files(root, commit, folder)
            for folder in _packages(root, commit, package, framework)
        ]
    except NotEvaluated as reason:
        return FilesCase("git tree", missing_record=f"installed editable, and {reason.message}")
    except ValueError:
        return FilesCase("git tree", missing_record=f"{origin} lies outside the checkout {checkout}")
    files = tuple(state for states, _ in found for state in states)
    unknown = tuple(name for _, names in found for name in names)
    sources = tuple(str(root / state.name) for state in files if state.name.endswith(".py"))
    return FilesCase(
        f"git tree of {commit[:12]}", git_tree.with_sample(files, root), unknown, sources=sources
    )


def _packages(root: Path, commit: str, package: Path, framework: Distribution) -> list[Path]:
    """The package that carries the code and its sister packages: what ``top_level.txt`` names; without it
    every package in the same folder, committed or not, because they are importable with it.
    """
    beside = package.parent
    if framework.top_level:
        names = set(framework.top_level)
    else:
        prefix = "" if beside == root else f"{beside.relative_to(root).as_posix()}/"
        committed = (name.removeprefix(prefix) for name in git_tree.blobs(root, commit, prefix or "."))
        names = {name.split("/")[0] for name in committed if name.split("/")[1:] == ["__init__.py"]}
        names |= {init.parent.name for init in beside.glob("*/__init__.py")}
    folders = {beside / name for name in names if name.isidentifier()} | {package}
    return sorted(folder for folder in folders if folder == package or not folder.is_symlink())


def differs_from_source(
    module: str, probe: EnvironmentProbe, framework: Distribution, source: Path, commit: str
) -> tuple[str, ...] | None:
    """Files of the packages that are not those of the commit; None when it has no such package.

    An installed file differs when the commit has another one of its name, or, for code, none. A module of the
    commit differs when it is not installed though others of its folder are: a wheel may leave out whole
    folders (tests), no single module. What a build makes (compiled code) is in no commit.
    """
    blobs = git_tree.blobs(git_tree.top(source), commit)
    prefix = next((layout for layout in _LAYOUTS if f"{layout}{module}/__init__.py" in blobs), None)
    if prefix is None:
        return None
    names = {state.name for entry in probe.framework for state in entry.files}
    tops = {name.split("/")[0] for name in names if f"{prefix}{name.split('/')[0]}/__init__.py" in blobs}
    installed = {name for name in names if name.split("/")[0] in tops}
    root = Path(framework.location)
    changed = {name for name in installed if _differs(root / name, blobs.get(prefix + name))}
    folders = {name.rpartition("/")[0] for name in installed if name.endswith(".py")}
    modules = {
        name.removeprefix(prefix) for name in blobs if name.startswith(prefix) and name.endswith(".py")
    }
    lost = {name for name in modules - installed if name.rpartition("/")[0] in folders}
    return tuple(sorted(changed | lost))


def _differs(path: Path, blob: str | None) -> bool:
    if blob is None:
        return path.suffix == ".py"
    return git_tree.blob_of_file(path, blob) != blob
