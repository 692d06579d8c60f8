"""Verdicts made by hand, as the first checks state them: for tests of command line and report."""

from checks.verdict import (
    Caught,
    Coverage,
    Evidence,
    Injection,
    Measurement,
    Outcome,
    Part,
    Place,
    Problem,
    Verdict,
    combine,
    part_of,
)

HOSTILE = {
    "clear screen": "a\x1b[2Jb",
    "clipboard": "a\x1b]52;c;cm0gLXJmIC8=\x07b",
    "carriage return": "row 3\rall good",
    "8-bit CSI": "a\x9b2Jb",
    "bidi override": "a\u202eb\u202c",
    "tag characters": "a\U000e0041\U000e0042b",
    "zero width": "a\u200bb",
    "forged line": "x\n✓ pass  data  everything holds",
    "markup": "[bold red]x[/bold red] <script>alert(1)</script> | `x` **y**",
}
"""What a record may hold to deceive a reader, by name."""

_SHA = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"


def data_fail(problems: int = 14) -> Verdict:
    wrong = [
        Problem(
            code="token-wrongly-supervised",
            message="a token of a user turn is supervised",
            place=Place(row=37 * n % 400, turn=2, token=40 + 17 * n % 90),
            expected="-100",
            found=f"{1000 + n}",
            next_step="mask the user turns: set assistant_only_loss in the recipe",
        )
        for n in range(problems)
    ]
    unlabelled = [
        Problem(
            code="stop-unlabelled",
            message="no stop token of the supervised turn is labelled",
            place=Place(row=row, turn=1),
            expected="<|return|> (200002)",
            found="-100",
        )
        for row in (3, 90, 211)
    ]
    parts = (
        part_of("ids/content", [], coverage=Coverage(judged=400, total=400, unit="rows")),
        part_of("ids/order", [], coverage=Coverage(judged=400, total=400, unit="rows")),
        Part(
            name="ids/packing", outcome=Outcome.NOT_EVALUATED, applicable=False, reason="rows are not packed"
        ),
        Part(
            name="ids/epochs",
            outcome=Outcome.NOT_EVALUATED,
            reason="the dump has no epoch",
            coverage=Coverage(judged=0, total=2, unit="epochs"),
        ),
        part_of(
            "labels",
            wrong,
            coverage=Coverage(judged=388, total=400, unit="rows"),
            measurements=(
                Measurement(name="tokens that differ", value=14, bound=0, unit="tokens", rule="EXACT"),
                Measurement(name="supervised share", value=0.4371, unit="of tokens"),
            ),
            limit=12,
        ),
        part_of("stop", unlabelled, coverage=Coverage(judged=400, total=400, unit="rows")),
    )
    return Verdict(
        check="data",
        outcome=combine(part.outcome for part in parts if part.applicable),
        reason="labels: a token of a user turn is supervised at row 0, turn 2, token 40 (and 13 more)",
        next_step="mask the user turns: set assistant_only_loss in the recipe",
        target={"release": "tiny gpt-oss", "framework": "transformers 5.24.0", "workload": "400 rows"},
        settings={"columns": {}, "packing": "none", "supervise": "all", "date": "2026-11-30"},
        reference="the release's template, and its tokenizer.json loaded with tokenizers",
        parts=parts,
        injected=(
            Injection(fault="stop token unlabelled", result=Caught.CAUGHT, detail="row 0, turn 1"),
            Injection(fault="labels off by one", result=Caught.CAUGHT, detail="row 0, token 12"),
            Injection(fault="packed boundary ignored", result=Caught.NOT_APPLICABLE, detail="not packed"),
        ),
        evidence=(
            Evidence(path="/data/rows-0-000.safetensors", sha256=_SHA, size=1_482_112, role="rows"),
            Evidence(path="/data/workload.jsonl", sha256=_SHA[::-1], size=220_481, role="workload"),
        ),
        stand_ins=("a third-party copy of the template stands in for the official one",),
        system_version="0.1.0-6c649354f00d+dev",
        run_id="rows-0001",
        started="2026-11-30T12:00:00+00:00",
        seconds=12.4,
    )


def export_inconclusive() -> Verdict:
    problems = [
        Problem(
            code="transposed",
            outcome=Outcome.INCONCLUSIVE,
            message="equal to the original when transposed",
            place=Place(
                file="model-00001-of-00002.safetensors", tensor=f"model.layers.{n}.mlp.{kind}.weight"
            ),
            expected="[2880, 2880] row-major",
            found=f"max |Δ| {0.1 * (n + 1):.3f}",
            citation=f"docs/export.md, section {n}",
        )
        for n in range(6)
        for kind in ("down_proj", "up_proj")
    ]
    parts = (
        part_of("names", [], coverage=Coverage(judged=459, total=459, unit="tensors")),
        part_of(
            "values",
            problems,
            coverage=Coverage(judged=459, total=459, unit="tensors"),
            measurements=(
                Measurement(name="largest relative difference", value=3.2e-3, bound=1e-3, rule="CAST_BF16"),
                Measurement(name="elements that differ", value=2.0e-7, bound=1e-3, rule="CAST_BF16"),
                Measurement(name="signs of zero that differ", value=1204, unit="elements"),
            ),
            notes=("1204 zeros differ in sign only, which lr 0 explains",),
        ),
    )
    return Verdict(
        check="export",
        outcome=Outcome.INCONCLUSIVE,
        reason="values: looks trained",
        next_step="name the checkpoint that training ended with: --trained",
        target={"release": "tiny gpt-oss", "framework": "transformers 5.24.0", "export": "/out/export"},
        reference="own reading of the release's safetensors",
        parts=parts,
        injected=(Injection(fault="a dropped tensor", result=Caught.MISSED, detail="the judge saw nothing"),),
        system_version="0.1.0-6c649354f00d+dev",
        started="2026-11-30T12:01:00+00:00",
        seconds=3.0,
    )


def image_pass() -> Verdict:
    return Verdict(
        check="image",
        outcome=Outcome.PASS,
        reason="41 of 41 requirements, 2,210 of 2,210 files",
        target={
            "release": "tiny gpt-oss",
            "framework": "transformers 5.24.0",
            "python": "/opt/env/bin/python",
        },
        reference="the framework's own declarations",
        parts=(
            part_of("requirements", [], coverage=Coverage(judged=41, total=41, unit="requirements")),
            part_of("files", [], coverage=Coverage(judged=2210, total=2210, unit="files")),
        ),
        injected=(Injection(fault="a version one too old", result=Caught.CAUGHT, detail="package numpy"),),
        system_version="0.1.0-6c649354f00d+dev",
        started="2026-11-30T11:59:00+00:00",
        seconds=1.2,
    )


def hostile() -> Verdict:
    """Every free text of the verdict holds every hostile text."""
    evil = " ".join(HOSTILE.values())
    problem = Problem(
        code="content-differs",
        message=evil,
        place=Place(file=evil, tensor=evil, field=evil, row=1),
        expected=evil,
        found=evil,
        citation=evil,
        next_step=evil,
    )
    part = part_of(
        "ids/content",
        [problem, problem.model_copy(update={"message": "second", "found": None})],
        coverage=Coverage(judged=1, total=2, unit=evil),
        measurements=(
            Measurement(name=evil, value=2.0, bound=1.0, unit=evil, rule=evil, where=evil),
            Measurement(name="text", value=evil),
        ),
        notes=(evil,),
        reason=evil,
    )
    return Verdict(
        check="data",
        outcome=Outcome.FAIL,
        reason=evil,
        next_step=evil,
        target={evil: evil, "release": evil},
        settings={evil: [evil]},
        reference=evil,
        stand_ins=(evil,),
        parts=(part,),
        injected=(Injection(fault=evil, result=Caught.MISSED, detail=evil),),
        evidence=(Evidence(path=evil, sha256=evil, size=1, role=evil),),
        system_version=evil,
        run_id=evil,
        approval=evil,
        confinement=evil,
        started=evil,
    )
