"""What is known between two optimizer steps, and of one step under way."""

import torch
from plumbline_recorder.adapters import Adapters
from plumbline_recorder.health import Health
from plumbline_recorder.logit_record import LogitRecord
from plumbline_recorder.micro_batches import MicroBatch
from plumbline_recorder.optimizer_record import settings_of
from plumbline_recorder.step_file import StepFile
from plumbline_recorder.witnesses import Witnesses


class Window:
    """What happened since the last optimizer step."""

    def __init__(self, step: int, full: bool) -> None:
        """``full``: tensors are written too."""
        self.step, self.full = step, full
        self.batches: "list[tuple[MicroBatch, LogitRecord | None]]" = []
        self.lines: "list[dict[str, object]]" = []
        self.written = 0
        self.file: "StepFile | None" = None
        self.witnesses: "Witnesses | None" = None
        self.adapters: "Adapters | None" = None
        self.clips: "list[dict[str, object]]" = []
        self.raw: "dict[str, float] | None" = None
        self.used: "dict[str, float]" = {}
        self.loss_scale: "float | None" = None
        self.stepped: "set[int]" = set()
        self.left_out: "dict[int, object]" = {}  # optimizers that a gradient scaler did not let step, by id

    @property
    def over(self) -> bool:
        """Whether an optimizer stepped or was left out: the next forward pass belongs to another window."""
        return bool(self.stepped or self.left_out)

    def follow(self, root: "torch.nn.Module", health: Health) -> None:
        """Listen to the layers that are followed for this window."""
        if self.witnesses is None:
            self.witnesses, self.adapters = Witnesses(root, health), Adapters(root, health)

    def let_go(self) -> None:
        """Stop listening."""
        for followed in (self.adapters, self.witnesses):  # the last one to listen stops first
            if followed is not None:
                followed.remove()


class Step:
    """One call of an optimizer's ``step``."""

    def __init__(self, optimizer: object, number_: int, names: "list[list[str]]") -> None:
        """``names``: of its parameters, by group."""
        self.optimizer, self.number, self.names = optimizer, number_, names
        self._parameters = [value for group in optimizer.param_groups for value in group["params"]]
        self.settings = [settings_of(group) for group in optimizer.param_groups]
        self.holds_others = False

    @property
    def held(self) -> "list[tuple[str, torch.Tensor]]":
        """Every (name, parameter)."""
        names = [name for group in self.names for name in group]
        return list(zip(names, self._parameters))  # noqa: B905 - Python 3.9 has no strict
