"""What a job costs, in whole thousandths of a node-hour, and how that is known.

Jobs of the same procedure and framework that ran to their end in this workspace are the measure: the longest
of the last ones. Where there is none, the procedure's time limit is: a job is ended at it.
"""

from pydantic import Field

from checks.verdict import Frozen
from plumbline_mcp.engines.admission import NODES, hours, millihours, run_seconds
from plumbline_mcp.engines.launching import Prepared
from plumbline_mcp.engines.procedures import load_procedure
from plumbline_mcp.workspace import RunOutcome, StoredRun, Workspace

_LAST_RUNS = 5


class Cost(Frozen):
    """The cost of one attempt of a job."""

    node_millihours: int = Field(ge=0, description="what it is expected to take")
    most_node_millihours: int = Field(ge=0, description="what it can take: it is ended at its time limit")
    estimated: str = Field(description="how that is known")


def cost_of(workspace: Workspace, prepared: Prepared) -> Cost:
    """The cost of a launch on this machine."""
    job, procedure = prepared.job, load_procedure(prepared.job.procedure)
    most = millihours([job.time_limit_s])
    where = f"{job.world_size} rank{'s' if job.world_size > 1 else ''} on {NODES} node"
    measured = _measured(workspace, prepared)
    if not measured:
        said = f"time limit {job.time_limit_s:g} s x {NODES} node ({where}; never run here). {procedure.cost}"
        return Cost(node_millihours=most, most_node_millihours=most, estimated=said)
    longest = max(run_seconds(workspace, run) for run in measured)
    known = ", ".join(run.run_id for run in measured)
    return Cost(
        node_millihours=min(millihours([longest]), most),
        most_node_millihours=most,
        estimated=f"the longest of {known}: {longest:.0f} s x {NODES} node ({where}). {procedure.cost}",
    )


def shown(node_millihours: int) -> str:
    """Node-hours for people."""
    return f"{hours(node_millihours)} node-hours"


def _measured(workspace: Workspace, prepared: Prepared) -> list[StoredRun]:
    """The last runs that are alike: procedure, framework, release, workload and number of ranks."""
    job = prepared.job
    sql = """select * from runs where procedure = :procedure and framework = :framework
        and outcome = :outcome and json_extract(job, '$.world_size') = :ranks order by rowid desc limit 50"""
    values = {
        "procedure": job.procedure,
        "framework": job.framework,
        "outcome": RunOutcome.SUCCEEDED.value,
        "ranks": job.world_size,
    }
    runs = [StoredRun.of(row) for row in workspace.query(sql, values)]
    return [run for run in runs if run.job.inputs == job.inputs][:_LAST_RUNS]
