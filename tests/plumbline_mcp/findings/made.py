"""A finding without a run behind it, and answers to it: for tests of states and comparisons."""

from plumbline_mcp.findings.finding import Claim, Finding
from plumbline_mcp.findings.questions import Question, Submission
from plumbline_mcp.findings.records import Kept, StoredFinding, Verification, Way
from plumbline_mcp.findings.store import Findings
from plumbline_mcp.workspace import Workspace

CLAIM = Claim(
    check="optimizer_step",
    code="norm-differs",
    place={"rank": 1, "step": 3, "tensor": "model.layers.4.mlp.up_proj.weight"},
    values={"clip: gradient norm, step 3": 0.25},
    measured={"clip: clipped share": 0.5},
)
RIGHT = Submission(
    outcome="fail",
    place={"rank": 1, "step": 3, "tensor": "model.layers.4.mlp.up_proj.weight"},
    values={"clip: gradient norm, step 3": 0.25, "clip: clipped share": 0.5},
)


def propose(
    workspace: Workspace, claim: Claim = CLAIM, proposer: str = "proposer", framework: str = ""
) -> StoredFinding:
    """Store a finding that rests on a verdict that nobody looks up."""

    def make(finding_id: str, now: str) -> Finding:
        return Finding(
            id=finding_id,
            pattern=4,
            silent=True,
            title="Gradients are clipped by the local norm",
            cause="each rank clips by its own norm",
            fix="reduce the norm over all shards",
            cheapest_check="check optimizer_step",
            verdicts=("optimizer_step-0001",),
            verdict_sha256={"optimizer_step-0001": "0" * 64},
            claim=claim,
            framework=framework,
            proposer=proposer,
            created=now,
        )

    return Findings(workspace).propose(make)


def taken(
    workspace: Workspace, finding: str, principal: str = "verifier", way: Way = Way.AGENT
) -> Verification:
    """A question taken without a neutral copy."""
    store = Findings(workspace)
    prepared = (Question(check="optimizer_step"), Kept(folder="nowhere"))
    new = workspace.new_id("verification")
    return store.take(store.new_verification(finding, principal, way, new, prepared))
