"""Check image: does the job run the framework commit under test, with the dependencies it declares?"""

from pathlib import Path

from pydantic import Field

from checks.check import Check, Context, InjectedFault, Inputs, Progress
from checks.environments.case import ImageCase, open_case, with_bytecode
from checks.environments.faults import FAULTS, smallest
from checks.environments.judging import judge_commit, judge_files, judge_requirements
from checks.records.probe import probe
from checks.records.runs import file_evidence
from checks.references.packs import load_pack
from checks.verdict import DigestOf, Evidence, Part


class ImageInputs(Inputs):
    """Arguments of `check image`."""

    python: Path = Field(description="the job's interpreter, e.g. venv/bin/python; the probe runs in it")
    framework: str = Field(description="name of a built-in connection pack, or path of a pack folder")
    commit: str | None = Field(None, description="the commit under test, or the version of a released wheel")
    source: Path | None = Field(None, description="git checkout of the framework at that commit")
    lock: Path | None = Field(None, description="lock file whose versions have to be installed exactly")


class ImageCheck(Check[ImageInputs, ImageCase]):
    """The environment of a job is what its framework declares.

    A probe runs inside the job's own interpreter, isolated, and lists what is installed; it imports nothing
    of it. Three parts. *requirements*: every requirement that applies here is installed in a version that
    satisfies it, the requirements of requirements included; with a lock file, the locked version and no
    other; each says one version only, and its top-level modules are there and are what would be imported.
    *commit*: the installed code is the commit or version under test. *files*: no file of the framework
    differs from the digest that its RECORD, its conda package or its git commit holds, no importable file was
    added to its package folders, no cached byte code that Python would run differs from what its source
    compiles to in this interpreter (code objects are compared, headers are not trusted), and nothing runs at
    the interpreter's start that no distribution and no system package brought (`.pth` files, sitecustomize,
    usercustomize). Three limits: the interpreter is asked isolated, so what PYTHONPATH or a user's own
    site-packages (``~/.local``) would add to a job is not seen; files are compared for the framework, not for
    what it depends on, of which versions and modules are judged; and `_virtualenv.py`, which virtualenv and
    uv write without a record, is taken for theirs.

    A requirement that is declared and missing is a fail, also where the job seems to run without it: what
    falls back silently is what this check is for. There is no list of exceptions.
    """

    name = "image"
    title = "Image"
    question = "Does the job run the framework commit under test with the dependency versions it declares?"
    reference = "the framework's own declarations: metadata, lock and requirement files, RECORD or git tree"
    rule = "exact: each requirement satisfied (PEP 440, the job's markers), commit and files equal"
    training = "none"
    records = ()
    pattern = 2
    example = "plumbline check image --python venv/bin/python --framework transformers"
    order = 10
    inputs = ImageInputs
    faults: tuple[InjectedFault[ImageCase], ...] = FAULTS

    def open(self, inputs: ImageInputs, progress: Progress) -> ImageCase:
        """Probe the interpreter and read the declarations."""
        pack = load_pack(inputs.framework)
        about = pack.about.framework
        python = inputs.python.expanduser().absolute()
        progress(0, 4, f"step 1 of 4: listing what {inputs.python} holds")
        record, digest, size = probe(python, about.distributions, about.module)
        evidence = [
            Evidence(
                path=str(inputs.python), sha256=digest, size=size, role="probe", digest_of=DigestOf.ANSWER
            ),
            file_evidence(pack.folder / "pack.toml", "connection pack"),
        ]
        if inputs.lock is not None and inputs.lock.is_file():
            evidence.append(file_evidence(inputs.lock, "lock"))
        progress(1, 4, "step 2 of 4: reading the declarations")
        case = open_case(pack, record, inputs.commit, inputs.source, inputs.lock, tuple(evidence))
        progress(2, 4, "step 3 of 4: comparing byte code")
        return with_bytecode(case, python, progress)

    def context(self, inputs: ImageInputs, case: ImageCase) -> Context:
        """Framework, version, commit and interpreter."""
        target = {
            "framework": case.pack.name,
            "distribution": case.framework.name,
            "version": case.framework.version,
            "python": case.probe.python.version,
            "interpreter": case.probe.python.executable,
        }
        if case.commit:
            target["commit"] = case.commit
        settings = inputs.model_dump(mode="json", exclude_none=True)
        settings |= {"extras": list(case.pack.about.framework.extras), "pack_digest": case.pack.digest}
        return Context(target=target, settings=settings, evidence=case.evidence)

    def judge(self, case: ImageCase, progress: Progress) -> list[Part]:
        """Requirements, commit, files."""
        progress(3, 4, "step 4 of 4: judging requirements, commit and files")
        return [judge_requirements(case), judge_commit(case), judge_files(case)]

    def smallest(self, case: ImageCase) -> ImageCase:
        """The same environment with the one file that carries its bytes."""
        return smallest(case)


CHECK = ImageCheck()
