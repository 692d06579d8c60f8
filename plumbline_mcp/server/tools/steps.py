"""What a run recorded of its optimizer steps. Read in a worker."""

import json
from typing import Annotated, Any

from mcp.server.mcpserver import Context
from pydantic import Field

from plumbline_mcp.server import cursors
from plumbline_mcp.server.located import readable
from plumbline_mcp.server.progress import reported
from plumbline_mcp.server.toolset import Toolset
from plumbline_mcp.server.views import RESULT_LIMIT, Page, Scalar, View, size, take

_PAGE = 50
_TIME_LIMIT_S = 600.0


class MicroBatchView(View):
    """One forward and backward pass: what the model returned, and the value that backward started from."""

    rows: int | None
    tokens: int | None
    supervised: int | None = Field(description="tokens with a label")
    loss: Scalar = Field(
        description="as the model returned it: nats a token, or its share of the step's mean"
    )
    differentiated: Scalar = Field(
        description="what backward started from: this micro-batch's share of the step's token-mean, in nats; "
        "times the ranks where these average gradients. In a right run the shares add up to the step's loss"
    )


class GroupView(View):
    """A parameter group as of the step."""

    parameters: int
    untrusted_first: str | None = Field(description="its first parameter")
    learning_rate: Scalar
    weight_decay: Scalar


class StepView(View):
    """One optimizer step of one rank; norms are over the rank's own shards."""

    step: int
    epoch: Scalar
    untrusted_optimizer: str
    micro_batches_total: int
    micro_batches: tuple[MicroBatchView, ...]
    groups_total: int
    groups: tuple[GroupView, ...]
    clip_max_norm: Scalar
    clip_returned: Scalar
    gradient_norm_raw: Scalar = Field(description="before clipping")
    gradient_norm_used: Scalar = Field(description="as the optimizer saw it")
    untrusted_logged: dict[str, Scalar] = Field(description="what the framework logged for the step")
    tensors: str | None = Field(description="below ``folder``: the file with this step's tensors")


class StepsPage(Page):
    """Steps of one rank in their order; ``total`` counts all of them."""

    folder: str = Field(description="absolute path of the run")
    rank: int
    ranks: int
    untrusted_unavailable: tuple[str, ...] = Field((), description="what the recorder could not see")
    steps: tuple[StepView, ...]


def add_steps(toolset: Toolset) -> None:
    """Add ``steps_read``."""

    async def steps_read(
        ctx: Context,
        run: Annotated[str, Field(description="id or folder of a run that trained")],
        rank: Annotated[int, Field(ge=0)] = 0,
        cursor: str | None = None,
    ) -> StepsPage:
        """Read a run's optimizer steps: tokens, losses, learning rates, gradient norms, what was logged.

        Use it at the place an optimizer_step verdict names (step, rank).
        """
        from plumbline_mcp import workers

        arguments = {"run": run, "rank": rank}
        skip = cursors.offset(cursor, "steps_read", arguments)
        source = readable(toolset, run)
        async with reported(ctx) as progress:
            answer = await workers.call(
                "plumbline_mcp.server.reading.steps:read_steps",
                source | {"rank": rank, "skip": skip, "limit": _PAGE},
                progress=progress,
                timeout_s=_TIME_LIMIT_S,
            )
        return _page(answer, source["path"], arguments, skip)

    toolset.add(steps_read, StepsPage, title="Read training steps")


def _page(answer: dict[str, Any], folder: str, arguments: dict[str, Any], skip: int) -> StepsPage:
    head = StepsPage(
        total=answer["total"],
        folder=folder,
        rank=arguments["rank"],
        ranks=answer["ranks"],
        untrusted_unavailable=tuple(answer["unavailable"]),
        steps=(),
    )
    budget = RESULT_LIMIT - size(head) - 500
    views = [_clipped(StepView.model_validate(one), budget) for one in answer["steps"]]
    shown = take(views, budget)
    end = skip + len(shown)
    return head.model_copy(
        update={
            "steps": tuple(shown),
            "truncated": end < head.total,
            "cursor": cursors.encode("steps_read", arguments, end) if end < head.total else None,
            "next": _next(folder, shown),
        }
    )


def _next(folder: str, shown: list[StepView]) -> str:
    """The call that lists the tensors of the first step shown that has them."""
    tensors = next((step.tensors for step in shown if step.tensors), None)
    if tensors is None:
        return "no step of this page has its tensors recorded: see the other pages, if there are any"
    return f"tensors_read(path={json.dumps(f'{folder}/{tensors}', ensure_ascii=False)}, norms=true)"


def _clipped(step: StepView, budget: int) -> StepView:
    """A step whose lists fit; the totals say how many there are."""
    bare = step.model_copy(update={"micro_batches": (), "groups": ()})
    batches = take(step.micro_batches, max(0, budget - size(bare)) // 2)
    groups = take(step.groups, max(0, budget - size(bare)) // 2)
    return step.model_copy(update={"micro_batches": tuple(batches), "groups": tuple(groups)})
