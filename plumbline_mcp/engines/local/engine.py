"""The local engine: jobs on this machine, each under a supervisor that outlives whoever started it."""

import contextlib
import os
import secrets
import shutil
import sys
from pathlib import Path

from approvals.trust_folder import TRUST_VARIABLE
from checks.records.runs import Ending, Job, read_json
from plumbline_mcp.engines.admission import Admission
from plumbline_mcp.engines.confinement.choosing import NONE, Chosen, Unavailable, choose
from plumbline_mcp.engines.engine import Approved, State, Status, final_state
from plumbline_mcp.engines.images import runtime_of
from plumbline_mcp.engines.launching import Launch, prepare, write_run
from plumbline_mcp.engines.local import files
from plumbline_mcp.engines.local.files import Cancel, RunFiles
from plumbline_mcp.engines.local.starting import in_background
from plumbline_mcp.engines.local.sweeping import sweep, sweep_run
from plumbline_mcp.errors import BuildError, UsageError
from plumbline_mcp.workspace import RunState, StoredRun, Workspace

_SUPERVISOR = "plumbline_mcp.engines.local.supervisor"
UNSTARTED = "its submission was stopped before it started; start it again: the attempt is still its own"
GONE = "its supervisor was killed; the next run, or plumbline job list, clears up"
_WAITS = ("waiting for a place: other jobs run", "its inputs are read before it starts")
_START_LIMIT_S = 60
_PASSED = (
    "HOME",
    "LD_LIBRARY_PATH",
    "OMP_NUM_THREADS",
    "PYTHONHASHSEED",
    "TMPDIR",
    "XDG_CONFIG_HOME",
    TRUST_VARIABLE,
)
"""What the supervisor needs to start as we did, and to know where the trust roots lie; the job sees what its
script says."""


class LocalEngine:
    """Jobs of one workspace on this machine (see `plumbline_mcp.engines.engine.Engine`)."""

    name = "local"

    def __init__(self, workspace: Workspace, slots: int | None = None) -> None:
        """``slots`` jobs run at once, the others wait: by default as many as there are processors."""
        self._workspace = workspace
        self._slots = slots or os.cpu_count() or 1

    def submit(self, launch: Launch, key: str | None = None, approved: Approved | None = None) -> str:
        """Start a job, or queue it, and return its run's id; without a key each call is a new job.

        A key whose submission was stopped before its job started is started now, under the same id. Under an
        approval the key is that of ticket, job and attempt: what would run is digested now, and consumes the
        attempt in the transaction that stores the submission. Raises `approvals.errors.Refused`.
        """
        prepared = prepare(launch, "unnamed")  # every mistake in the launch is met before an id is taken
        chosen = self._confinement(launch)
        admission = None
        if approved is not None:
            admission = Admission(self._workspace, approved, prepared)
            key = admission.key
        sweep(self._workspace, but=self.find(key) if key else None)
        with contextlib.ExitStack() as stack:
            run, lock = self._claimed(launch, key or secrets.token_hex(16), stack, admission)
            if lock is not None:
                self._start(run, launch, chosen, lock, admission)
        return run.run_id

    def status(self, run_id: str) -> Status:
        """How the job stands; one whose supervisor is gone is swept first."""
        if not self._workspace.run(run_id).state.over:
            sweep_run(self._workspace, run_id)
        return self.seen(run_id)

    def seen(self, run_id: str) -> Status:
        """How the job stands; nothing is changed: one whose supervisor is gone is lost, and left as it is."""
        run = self._workspace.run(run_id)
        if not run.state.over and not RunFiles(self._workspace.runs / run_id).held():
            run = self._workspace.run(run_id)  # it may have ended between the two looks
            if run.state is RunState.SUBMITTING and run.job.approval != "none":
                return Status(run_id=run_id, state=State.QUEUED, reason=UNSTARTED, submitted=run.created)
            if not run.state.over:
                return Status(run_id=run_id, state=State.LOST, reason=GONE, submitted=run.created)
        return self._ended(run) if run.state.over else self._active(run)

    def cancel(
        self, run_id: str, grace_s: float | None = None, *, remove: bool = False, why: str = ""
    ) -> None:
        """Ask the supervisor for the end of the job; with ``remove`` the run folder goes too.

        A submission that was stopped before its job started has no supervisor: its run ends here.
        """
        if self.status(run_id).reason == UNSTARTED:
            self._abandon(run_id, why or "cancelled")
        if not self.status(run_id).state.over:
            wanted = Cancel(why or "cancelled", remove, grace_s)
            request = RunFiles(self._workspace.runs / run_id)
            request.request_cancel(wanted)
            if self._workspace.run(run_id).state.over and not request.held():  # it ended meanwhile
                request.remove()

    def find(self, key: str) -> str | None:
        """The run that was submitted under a key."""
        run = self._workspace.run_of_key(key)
        return None if run is None else run.run_id

    def _abandon(self, run_id: str, why: str) -> None:
        with contextlib.ExitStack() as stack:
            taken: list[int] = []
            _hold(RunFiles(self._workspace.runs / run_id), stack, taken)
            if taken and self._workspace.run(run_id).state is RunState.SUBMITTING:
                self._workspace.end_run(run_id, RunState.REMOVED, f"{why}, before it started")

    def _confinement(self, launch: Launch) -> Chosen:
        inputs = [path.expanduser().absolute() for path in launch.inputs.values()]
        interpreter = launch.interpreter.expanduser().absolute()
        container = runtime_of(interpreter)
        if container is not None:  # its client needs its store and its daemon; the container holds the job
            return Chosen(NONE, f"inside a {container} container")
        try:
            return choose(launch.confinement, self._workspace.runs, interpreter, inputs)
        except Unavailable as error:
            raise UsageError(
                f"the job cannot be confined by {launch.confinement}: {error}", "choose another confinement"
            ) from error

    def _claimed(
        self, launch: Launch, key: str, stack: contextlib.ExitStack, admission: Admission | None
    ) -> tuple[StoredRun, int | None]:
        """The run of a key, and the held lock of one that has to be started now."""
        taken: list[int] = []

        def made(run_id: str) -> Job:
            job = prepare(launch, run_id).job
            if admission is not None:
                job = admission.stamped(job)
            _hold(RunFiles(self._workspace.runs / run_id), stack, taken)
            return job

        try:
            run, new = self._workspace.claim_run(
                key, launch.procedure, made, admission.admit if admission else None
            )
        except OSError as error:
            raise no_disk(self._workspace.runs, error) from error
        if not new and run.state is RunState.SUBMITTING:
            _hold(RunFiles(self._workspace.runs / run.run_id), stack, taken)
            run = self._workspace.run(run.run_id)  # read again under the lock
        return run, taken[0] if taken and run.state is RunState.SUBMITTING else None

    def _start(
        self, run: StoredRun, launch: Launch, chosen: Chosen, lock: int, admission: Admission | None
    ) -> None:
        folder = self._workspace.runs / run.run_id
        try:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(mode=0o700)
            prepared = prepare(launch, run.run_id)
            kept = {"approval": run.job.approval, "cap_s": run.job.cap_s}
            job = prepared.job.model_copy(
                update={"engine": self.name, "confinement": str(chosen), **(kept if admission else {})}
            )
            job = write_run(prepared.model_copy(update={"job": job}), folder)
            if admission is not None:
                job = admission.written(job, folder)
            self._workspace.start_run(job)
            self._supervise(folder, chosen, lock)
        except BaseException as error:
            shutil.rmtree(folder, ignore_errors=True)
            with contextlib.suppress(UsageError):
                self._workspace.end_run(run.run_id, RunState.REMOVED, f"not started: {error}"[:200])
            RunFiles(folder).remove()
            if isinstance(error, OSError):
                raise no_disk(folder, error) from error
            raise

    def _supervise(self, folder: Path, chosen: Chosen, lock: int) -> None:
        """Start the supervisor; it goes into the background and holds the lock from then on."""
        command = [sys.executable, "-I", "-m", _SUPERVISOR, str(folder), chosen.kind, str(self._slots)]
        passed = {name: os.environ[name] for name in _PASSED if name in os.environ}
        try:
            env = {"PATH": os.defpath, "LANG": "C.UTF-8"} | passed
            in_background(command, env, pass_fds=(lock,), limit_s=_START_LIMIT_S)
        except OSError as error:
            raise BuildError(
                f"the supervisor of {folder.name} did not start: {error}", "run it again"
            ) from error

    def _active(self, run: StoredRun) -> Status:
        known = RunFiles(self._workspace.runs / run.run_id).supervision()
        running = known is not None and known.phase == files.RUNNING
        return Status(
            run_id=run.run_id,
            state=State.RUNNING if running else State.QUEUED,
            reason="" if running else _WAITS[known is not None and known.phase == files.READING],
            nodes=(os.uname().nodename,) if running else (),
            submitted=run.created,
            started=known.since if known is not None and running else "",
        )

    def _ended(self, run: StoredRun) -> Status:
        ending = self._ending(run)
        return Status(
            run_id=run.run_id,
            state=final_state(run),
            reason=run.reason,
            exit_code=ending.code,
            signal=ending.signal,
            failed_rank=ending.failed_rank,
            nodes=(os.uname().nodename,) if ending.started else (),
            submitted=run.created,
            started=ending.started,
            ended=run.ended or "",
        )

    def _ending(self, run: StoredRun) -> Ending:
        """What the supervisor wrote; nothing for a run without a folder."""
        path = self._workspace.runs / run.run_id / "exit" / "job.json"
        if run.state is RunState.SEALED and path.is_file():
            return Ending.model_validate(read_json(path))
        return Ending(outcome="")


def no_disk(path: Path, error: OSError) -> BuildError:
    """What to say when a run folder cannot be written."""
    return BuildError(
        f"the run folder {path} cannot be written: {error.strerror or error}",
        "free space there, or set PLUMBLINE_HOME to a folder that you can write",
    )


def _hold(run: RunFiles, stack: contextlib.ExitStack, taken: list[int]) -> None:
    """Take the run's lock until the stack ends, unless somebody holds it."""
    lock = run.take_lock()
    if lock is not None:
        stack.callback(os.close, lock)
        taken.append(lock)
