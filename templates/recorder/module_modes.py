"""Which parts of the model are in training mode in a forward pass, and which do not act because they are not.

A model that stays in eval mode trains on, without its dropout and with the running statistics of its batch
norms, and nothing else that is recorded shows it.
"""

import weakref

import torch
from plumbline_recorder.parameter_names import class_name, plain_name

LISTED = 32
"""Names of each kind that a line lists; the rest is counted."""
RATES = ("drop", "jitter")
"""Parts of the names under which modules keep the rate of what they do in training mode only."""


class ModuleModes:
    """The modes of a root's modules.

    All are looked at in full steps, where another root is called, and where the mode of the root changed, or
    of a module that did something in training mode only when all were looked at last.
    """

    def __init__(self) -> None:
        """No module was looked at yet."""
        self._root: "object | None" = None
        self._parts: "dict[str, torch.nn.Module]" = {}
        self._watched: "list[torch.nn.Module]" = []
        self._flags: "list[bool]" = []
        self._found: "dict[str, object]" = {}

    def take(self, root: "torch.nn.Module | None", walk: bool) -> "dict[str, object] | None":
        """The field ``modes`` of a micro-batch; without ``walk`` the last one where no mode changed since."""
        if root is None:
            return None
        same = not walk and self._root is not None and self._root() is root
        if not same or [part.training for part in self._watched] != self._flags:
            self._root, self._found = weakref.ref(root), self._look(root)
            self._watched = [root, *(part for part in self._parts.values() if acts_in_training(part))]
            self._flags = [part.training for part in self._watched]
            self._parts = {}
        return self._found

    def _look(self, root: "torch.nn.Module") -> "dict[str, object]":
        self._parts = dict(root.named_modules())
        turned = [plain_name(name) for name in self._parts if name and self._turns(name)]
        inactive = sorted(self._inactive(), key=lambda found: not found["trained"])
        return {
            "training": bool(root.training),
            "turned": turned[:LISTED],
            "turned_more": max(0, len(turned) - LISTED),
            "inactive": inactive[:LISTED],
            "inactive_more": max(0, len(inactive) - LISTED),
        }

    def _turns(self, name: str) -> bool:
        holder = self._parts[name.rpartition(".")[0]]
        return bool(self._parts[name].training) != bool(holder.training)

    def _inactive(self) -> "list[dict[str, object]]":
        found = []
        for name, part in self._parts.items():
            acts = None if part.training else acts_in_training(part)
            if acts is not None:
                setting, value = acts
                found.append(
                    {
                        "module": plain_name(name),
                        "class": class_name(part),
                        "setting": setting,
                        "value": value,
                        "trained": self._is_trained(name),
                    }
                )
        return found

    def _is_trained(self, name: str) -> bool:
        """Whether a module, or else the smallest around it with parameters, has one that is trained."""
        while True:
            parameters = list(self._parts[name].parameters())
            if parameters or not name:
                return any(value.requires_grad for value in parameters)
            name = name.rpartition(".")[0]


def acts_in_training(module: "torch.nn.Module") -> "tuple[str, float] | None":
    """(setting, value) of what a module does in training mode only; None where both modes are one.

    Known are torch's own modules, and of any other the rates that it keeps as floats of its own: modules that
    drop in a function (``attention_dropout``, ``layerdrop``, ``drop_prob``) or add noise (``jitter_noise``).
    """
    nn = torch.nn.modules
    if isinstance(module, nn.batchnorm._NormBase):  # noqa: SLF001 - the base of batch and instance norms
        return ("track_running_stats", 1.0) if module.track_running_stats else None
    if isinstance(module, torch.nn.RReLU):
        return ("upper", float(module.upper)) if module.upper != module.lower else None
    if isinstance(module, torch.nn.RNNBase) and module.num_layers < 2:
        return None  # its dropout lies between layers
    drops = "drop" in type(module).__name__.lower()
    for name, value in vars(module).items():
        is_rate = any(part in name.lower() for part in RATES) or (drops and name in ("p", "prob", "rate"))
        if is_rate and type(value) is float and value > 0:
            return name, value
    return None
