"""Plays the fault corpus: each entry through the scan that a user would run, then scored."""

import time
from collections.abc import Sequence
from pathlib import Path

import anyio

from checks.check import Progress, silent
from checks.errors import CheckError
from checks.verdict import Frozen
from plumbline_mcp.errors import PlumblineError, UsageError
from plumbline_mcp.scan.embedded import scan_embedded
from plumbline_mcp.scan.fault_entries import Corpus, FaultEntry, load_corpus
from plumbline_mcp.scan.fault_scoring import GOOD, EntryResult, Score, score
from plumbline_mcp.scan.scanning import Shared
from plumbline_mcp.workspace import Workspace


class FaultsResult(Frozen):
    """The played entries and their totals."""

    corpus: Path
    results: tuple[EntryResult, ...]
    faults: int
    faults_found: int
    clean: int
    false_alarms: int
    totals: dict[str, int]
    seconds: float

    @property
    def good(self) -> bool:
        """Whether every fault was found at its place and alone, and every clean entry stayed quiet."""
        return all(result.score in GOOD for result in self.results)


def chosen(corpus: Corpus, pattern: int | None, ids: Sequence[str], quick: bool) -> list[FaultEntry]:
    """The entries that a call asks for. Raises `UsageError` when an id is unknown or nothing is left."""
    named = [corpus.entry(entry_id) for entry_id in ids]
    entries = [
        entry
        for entry in named or corpus.entries
        if (pattern is None or entry.pattern == pattern) and (entry.quick or not quick)
    ]
    if not entries:
        raise UsageError(
            f"no fault entry in {corpus.folder} fits", "leave out --pattern, --id or --quick to play more"
        )
    return entries


async def run(
    workspace: Workspace,
    corpus: Path | None = None,
    *,
    pattern: int | None = None,
    ids: Sequence[str] = (),
    quick: bool = False,
    jobs: int = 1,
    progress: Progress | None = None,
) -> FaultsResult:
    """Play the entries, ``jobs`` at a time, and score each.

    An entry whose scan could not be run is ``not played``, never counted as found.
    """
    if jobs < 1:
        raise UsageError(f"--jobs is {jobs}", "give 1 or more")
    loaded = load_corpus(corpus)
    entries = chosen(loaded, pattern, ids, quick)
    started = time.monotonic()
    player = _Player(workspace, loaded, len(entries), progress or silent)
    limiter = anyio.CapacityLimiter(jobs)
    async with anyio.create_task_group() as group:
        for entry in entries:
            group.start_soon(player.play, entry, limiter)
    results = tuple(player.results[entry.id] for entry in entries)
    return _summed(loaded, results, time.monotonic() - started)


class _Player:
    """Plays entries and keeps their results."""

    def __init__(self, workspace: Workspace, corpus: Corpus, total: int, report: Progress) -> None:
        self._workspace, self._corpus, self._total, self._report = workspace, corpus, total, report
        self._shared = Shared()
        self.results: dict[str, EntryResult] = {}

    async def play(self, entry: FaultEntry, limiter: anyio.CapacityLimiter) -> None:
        """Play one entry when its turn comes."""
        async with limiter:
            self._report(len(self.results), self._total, entry.id)
            self.results[entry.id] = result = await self._played(entry)
            self._report(len(self.results), self._total, f"{entry.id}: {result.score}")

    async def _played(self, entry: FaultEntry) -> EntryResult:
        started = time.monotonic()

        def told(done: float, total: float | None, message: str) -> None:
            self._report(len(self.results), self._total, f"{entry.id}: {message}")

        try:
            scanned = await scan_embedded(
                self._workspace, entry, self._corpus, progress=told, shared=self._shared
            )
        except (CheckError, PlumblineError, TimeoutError) as error:
            return EntryResult(
                id=entry.id,
                clean=entry.clean,
                pattern=entry.pattern,
                score=Score.NOT_PLAYED,
                expected=tuple(str(expected) for expected in entry.expect),
                reason=f"{type(error).__name__}: {error}",
                seconds=round(time.monotonic() - started, 1),
            )
        return score(entry, scanned, time.monotonic() - started)


def _summed(corpus: Corpus, results: tuple[EntryResult, ...], seconds: float) -> FaultsResult:
    faults = [result for result in results if not result.clean]
    return FaultsResult(
        corpus=corpus.folder,
        results=results,
        faults=len(faults),
        faults_found=sum(result.score is Score.FOUND for result in faults),
        clean=len(results) - len(faults),
        false_alarms=sum(result.score is Score.FALSE_ALARM for result in results),
        totals={kind.value: sum(result.score is kind for result in results) for kind in Score},
        seconds=round(seconds, 1),
    )
