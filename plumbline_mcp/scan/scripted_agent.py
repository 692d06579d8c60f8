"""A coding agent as a script: it takes a target through a scan over MCP.

It is told the target's path and nothing else. What it does follows from what the tools answer, so the same
script reports whatever the target holds; it imports nothing of Plumbline.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import anyio
from mcp import Client

Answer = dict[str, Any]
Told = Callable[[float, float | None, str], None]
Leaves = Callable[[str, str], bool]
"""Given a ticket that is pending and its action: whether the agent is to go on without a decision."""

_POLL_S = 0.3
_WAIT_S = 5
_MOST_TITLE = 180


class ToolRefused(Exception):
    """A tool answered with an error; its sentence says what to do."""

    def __init__(self, tool: str, said: str) -> None:
        """``said`` is the tool's own sentence."""
        super().__init__(f"{tool}: {said}")
        self.tool, self.said = tool, said


@dataclass
class Work:
    """What the agent did, in its order."""

    verdicts: list[Answer] = field(default_factory=list)
    findings: list[Answer] = field(default_factory=list)
    tickets: list[str] = field(default_factory=list)
    stopped: str = ""
    """Why it went no further; empty when it came to the end."""
    not_reached: list[str] = field(default_factory=list)
    """Tools of the checks that were not called."""
    unfound: list[str] = field(default_factory=list)
    """Failing verdicts that no finding came of, each with the tool's reason."""


class ScriptedAgent:
    """One scan of one target."""

    def __init__(self, client: Client, told: Told, leaves: Leaves = lambda ticket, action: False) -> None:
        """``told`` hears each step as (steps done, steps known of or None, what is done now)."""
        self.work = Work()
        self._client, self._told, self._leaves = client, told, leaves
        self._done, self._saying = 0, ""
        self._total: int | None = None
        self._states: dict[str, str] = {}
        self._checks: dict[str, Answer] = {}
        self._calls: list[Answer] = []

    async def scan(self, target: str) -> Work:
        """Task, checks without a job, its jobs, plan, its jobs, findings. Raises `ToolRefused`."""
        await self._call("scan_status", "looking at the workspace")
        listed = await self._call("check_list", "listing the checks")
        self._checks = {check["tool"]: check for check in listed["checks"]}
        task = await self._call("task_draft", "drafting the task", target=target)
        self._calls = list(task["calls"])
        if await self._judged_under(task):
            await self._planned(task)
        self.work.not_reached = [call["tool"] for call in self._calls]
        for verdict in self.work.verdicts:
            if verdict["outcome"] == "fail":
                try:
                    await self._found(verdict)
                except ToolRefused as refused:  # the verdicts and the other findings stand
                    self.work.unfound.append(f"{verdict['id']}: {refused}")
        await self._call("scan_status", "looking at what is left")
        return self.work

    # --- task and plan ----------------------------------------------------------------------------------

    async def _planned(self, task: Answer) -> None:
        """Draft the plan where checks are left that it has to cover, and run it."""
        if any(call["under"] == "plan" for call in self._calls):
            await self._judged_under(await self._call("plan_draft", "drafting the plan", task=task["ticket"]))

    async def _judged_under(self, draft: Answer) -> bool:
        """Have a draft signed, run its jobs and judge each at once; False where the scan ends."""
        self._expect(draft)
        if not await self._approved(draft):
            return False
        if "environment" in draft["covers"]:
            await self._start(draft, "environment")
        for call in [one for one in draft["calls"] if one["run_argument"] is None]:
            await self._judge(call, None)
        for job in draft["jobs"]:
            run = await self._run(draft, job["name"])
            if self._states[run] != "succeeded" and await self._refused(run):
                return False
            for call in [one for one in draft["calls"] if job["name"] in one["jobs"]]:
                await self._judge(call, run)
        return True

    async def _approved(self, draft: Answer) -> bool:
        """Wait until a person decided. Pending is not approved."""
        ticket = draft["ticket"]
        self.work.tickets.append(ticket)
        while True:
            view = await self._call(
                "approval_wait", f"waiting for {ticket} to be signed", ticket=ticket, max_s=_WAIT_S
            )
            if view["state"] != "pending":
                break
            if self._leaves(ticket, view["action"]):
                return False
        if view["state"] in ("approved", "used"):
            return True
        said = f": {view['untrusted_reason']}" if view["untrusted_reason"] else ""
        self.work.stopped = f"{view['action']} {ticket} is {view['state']}{said}"
        return False

    # --- jobs and checks --------------------------------------------------------------------------------

    async def _start(self, draft: Answer, job: str) -> Answer:
        return await self._call("job_start", f"starting {job}", ticket=draft["ticket"], job=job)

    async def _run(self, draft: Answer, job: str) -> str:
        """Start a job and wait for its end; the run that it left."""
        started = await self._start(draft, job)
        run = str(started["run_id"])
        while True:
            view = await self._call("job_status", f"running {job} ({run})", run_id=run)
            if view["state"] not in ("queued", "running"):
                self._states[run] = view["state"]
                return run
            await anyio.sleep(_POLL_S)

    async def _refused(self, run: str) -> bool:
        """Whether this run says that the framework does not start: no later job would."""
        status = await self._call("scan_status", f"seeing why {run} failed")
        dry_run = status["dry_run"]
        if not (dry_run and dry_run["run"] == run and dry_run["failed"]):
            return False
        said = dry_run["untrusted_said"] or "it said nothing"
        self.work.stopped = f"{run} ended {dry_run['ended']}: {said}"
        return True

    async def _judge(self, call: Answer, run: str | None) -> None:
        arguments = dict(call["arguments"])
        if run is not None and call["run_argument"]:
            arguments[call["run_argument"]] = run
        verdict = await self._call(call["tool"], f"calling {call['tool']}", **arguments)
        self.work.verdicts.append(verdict | {"tool": call["tool"]})
        self._calls = [one for one in self._calls if one["tool"] != call["tool"]]

    # --- findings ---------------------------------------------------------------------------------------

    async def _found(self, verdict: Answer) -> None:
        """Propose the cause of a failing verdict, have it rebuilt and put it before the reviewers.

        Place, values and evidence are the verdict's own: the tool takes them from it.
        """
        known = self._checks[verdict["tool"]]
        finding = await self._call(
            "finding_propose",
            f"proposing what {verdict['id']} shows",
            verdicts=[verdict["id"]],
            title=f"{known['name']}: {verdict['summary']}"[:_MOST_TITLE],
            pattern=known["pattern"],
            silent=self._states.get(verdict["run_id"] or "", "succeeded") == "succeeded",
            cause=f"framework as it is installed: {verdict['untrusted_reason']}",
            fix=verdict["next_step"] or "mend what the place names, then judge it again",
            cheapest_check=known["example"],
        )
        number = len(self.work.findings)
        self.work.findings.append(finding)
        name = finding["id"]
        finding = await self._call("finding_recompute", f"having {name} rebuilt", finding_id=name)
        self.work.findings[number] = finding
        if finding["state"] != "rebuilt":
            return
        finding = await self._call("finding_confirm", f"asking for {name} to be confirmed", finding_id=name)
        if finding["ticket"] and await self._approved(finding):
            finding = await self._call("finding_confirm", f"closing {name}", finding_id=name)
        self.work.findings[number] = finding

    # --- calling ----------------------------------------------------------------------------------------

    def _expect(self, draft: Answer) -> None:
        """A job or a check is a step; how many there are is known once they are drafted."""
        self._total = self._done + len(draft["jobs"]) + 2 * len(self._calls) + 2

    async def _call(self, tool: str, saying: str, **arguments: Any) -> Answer:
        """Call a tool. Raises `ToolRefused` with its sentence."""
        if saying != self._saying:
            self._saying, self._done = saying, self._done + 1
            self._total = None if self._total is None else max(self._total, self._done + 1)

        async def told(progress: float, total: float | None, message: str | None) -> None:
            part = min(progress / total, 0.99) if total else 0.0
            self._told(self._done - 1 + part, self._total, f"{saying}: {message}" if message else saying)

        self._told(self._done - 1, self._total, saying)
        answer = await self._client.call_tool(tool, arguments, progress_callback=told)
        if answer.is_error:
            said = " ".join(one.text for one in answer.content if one.type == "text")
            said = said.removeprefix(f"Error executing tool {tool}: ")
            raise ToolRefused(tool, said or "it gave no reason")
        if answer.structured_content is None:
            raise ToolRefused(
                tool, f"no structured answer: {json.dumps(answer.model_dump(mode='json'))[:200]}"
            )
        return dict(answer.structured_content)
