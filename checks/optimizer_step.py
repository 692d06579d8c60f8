"""The optimizer-step check: the loss is the mean over supervised tokens, and each update is the recipe's."""

from typing import ClassVar, Literal

from checks.check import Check, Context, Progress
from checks.optimization.case import StepCase
from checks.optimization.faults import FAULTS, smallest_slice
from checks.optimization.opening import StepInputs, open_case
from checks.optimization.parts import judge_steps
from checks.verdict import Part


class OptimizerStepCheck(Check[StepInputs, StepCase]):
    """Is the loss the mean over the supervised tokens, and each update the one that the recipe defines?

    A run records a few of its steps in full: per token log-probability and the gradient at the logits,
    inputs and output gradients of two linear layers, gradients before and after clipping, parameters and
    optimizer state before and after. Plumbline recomputes from these, in float64 and from the recipe's
    settings alone: the loss over the global batch, what each token weighs in the gradient that the
    optimizer gets, the clipped gradient, the learning rate of every step, and every parameter's update.
    Of every step it reads which trained modules were in eval mode: their dropout and batch norm then do
    not act, and no number shows it. What rounding may change is bounded by a derivation, in units of the
    dtype that each step computes in.

    Parts: ranks, supervision, groups, modes, gradient, weights, loss, adapters, clip, schedule, update,
    state, lost_updates. ``adapters`` names a LoRA scaling that is not the recipe's, because a wrong scaling
    changes what an update does and shows in no other part: loss, gradients and updates all agree with it.
    """

    name: ClassVar[str] = "optimizer_step"
    title: ClassVar[str] = "Optimizer step"
    question: ClassVar[str] = (
        "Is the loss the mean over the supervised tokens, and is each update the one that the recipe defines?"
    )
    reference: ClassVar[str] = (
        "loss, gradient, clipping, schedule and update recomputed in float64 from the recipe's settings;"
        " the optimizers from their papers and documentation"
    )
    rule: ClassVar[str] = (
        "every token weighs 1/N of the global batch; one norm over all shards; the schedule's rate; every"
        " parameter held once and decayed as declared; no trained module in eval mode whose dropout or batch"
        " norm would act; every element within the update's own rounding"
    )
    training: ClassVar[Literal["none", "one step", "run"]] = "one step"
    records: ClassVar[tuple[str, ...]] = ("steps.jsonl", "events.jsonl", "model.jsonl", "step-*.safetensors")
    pattern: ClassVar[int] = 4
    example: ClassVar[str] = "plumbline check optimizer_step --run RUN"
    order: ClassVar[int] = 50
    inputs = StepInputs
    faults = FAULTS

    def open(self, inputs: StepInputs, progress: Progress) -> StepCase:
        """Read the recipe and what every rank recorded."""
        return open_case(inputs, progress)

    def context(self, inputs: StepInputs, case: StepCase) -> Context:
        """The run, its recipe and the evidence."""
        return case.context

    def judge(self, case: StepCase, progress: Progress) -> list[Part]:
        """Every part of the verdict."""
        return judge_steps(case, progress)

    def smallest(self, case: StepCase) -> StepCase:
        """One full step of every rank with a few small parameters and a witness."""
        return smallest_slice(case)


CHECK = OptimizerStepCheck()
