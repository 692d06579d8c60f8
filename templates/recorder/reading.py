"""Reads tensors without a trace: no dispatch mode sees it, no graph, no random number, no collective."""

import ctypes
import hashlib
import sys
from collections.abc import Iterator

import torch
from torch.utils._python_dispatch import _disable_current_modes

CHUNK = 1 << 24
"""Elements that are looked at in one go where a temporary copy is needed."""


class quiet:
    """A context for the recorder's own torch operations.

    Selective activation checkpointing and other dispatch modes replay what they see in the backward pass, so
    they must not see the recorder's reads. Where there is none, none is looked for: that takes longer than
    most reads.
    """

    __slots__ = ("_functions", "_modes", "_with_gradients")

    def __enter__(self) -> None:
        self._functions = torch._C.DisableTorchFunction()  # noqa: SLF001 - no public one
        self._functions.__enter__()
        self._modes = _disable_current_modes() if _has_modes() else None
        if self._modes is not None:
            self._modes.__enter__()
        self._with_gradients = torch.is_grad_enabled()
        torch._C._set_grad_enabled(False)  # noqa: SLF001 - as torch.no_grad does

    def __exit__(self, *raised: object) -> None:
        torch._C._set_grad_enabled(self._with_gradients)  # noqa: SLF001 - as above
        if self._modes is not None:
            self._modes.__exit__(*raised)
        self._functions.__exit__(*raised)


def _has_modes() -> bool:
    """Whether a dispatch mode is active; taken for granted where this torch does not say."""
    before = getattr(torch._ops, "_len_torch_dispatch_stack_pre_dispatch", None)  # noqa: SLF001 - no public one
    here = getattr(torch._C, "_len_torch_dispatch_stack", None)  # noqa: SLF001 - no public one
    return before is None or here is None or here() > 0 or before() > 0


def local(tensor: "torch.Tensor") -> "torch.Tensor":
    """The rank's own part of a tensor: a DTensor's local shard (without padding), any other tensor itself."""
    inner = getattr(tensor, "_local_tensor", None) if hasattr(tensor, "placements") else None
    found = (tensor if inner is None else inner).detach()
    return found if found.layout is torch.strided else found.to_dense()


def dtype_name(dtype: object) -> str:
    """``bfloat16`` for ``torch.bfloat16``."""
    return str(dtype).replace("torch.", "")


def buffer(tensor: "torch.Tensor") -> "tuple[torch.Tensor, object]":
    """The bytes of a plain tensor in C order, and the tensor on the CPU that owns them (keep it)."""
    if sys.byteorder == "big":
        raise RuntimeError("tensors are recorded on little-endian machines only")
    held = tensor.cpu().resolve_conj().resolve_neg().contiguous()
    size = held.numel() * held.element_size()
    return held, (ctypes.c_ubyte * size).from_address(held.data_ptr()) if size else b""


def digest(tensor: "torch.Tensor") -> str:
    """sha256 of the local bytes."""
    _held, raw = buffer(local(tensor))
    return hashlib.sha256(raw).hexdigest()


def flat_parts(tensor: "torch.Tensor") -> "Iterator[torch.Tensor]":
    """A plain tensor as flat pieces of at most `CHUNK` elements."""
    flat = tensor.reshape(-1)
    for start in range(0, flat.numel(), CHUNK):
        yield flat[start : start + CHUNK]


def computable(tensor: "torch.Tensor") -> "torch.Tensor":
    """The tensor in a dtype that has arithmetic: eight-bit floats have none."""
    return tensor.float() if tensor.is_floating_point() and tensor.element_size() == 1 else tensor


def is_number(tensor: "torch.Tensor") -> bool:
    """Whether elements are single floats (packed four-bit pairs are not)."""
    return (tensor.is_floating_point() or tensor.is_complex()) and "x2" not in dtype_name(tensor.dtype)


def nonfinite(tensor: "torch.Tensor") -> int:
    """How many local elements are NaN or infinite; 0 for integers and packed formats."""
    if not is_number(tensor):
        return 0
    parts = flat_parts(local(tensor))
    return sum(int((~torch.isfinite(computable(part))).sum()) for part in parts)


def square_sum(tensor: "torch.Tensor") -> float:
    """Sum of squares of the local elements, in float64."""
    parts = flat_parts(local(tensor))
    return sum(float(torch.linalg.vector_norm(computable(part), dtype=torch.float64)) ** 2 for part in parts)


def strided(tensor: "torch.Tensor", limit: int) -> "tuple[torch.Tensor, int]":
    """At most ``limit`` elements of a plain tensor (0: all of it): ``flat[::stride]``, and the stride."""
    count = tensor.numel()
    if limit <= 0 or count <= limit:
        return tensor, 1
    stride = -(-count // limit)
    return tensor.reshape(-1)[::stride], stride


def number(value: object) -> "float | None":
    """A one-element tensor or a number as a Python float, without any collective; None for anything else."""
    if isinstance(value, torch.Tensor):
        with quiet():
            value = local(value)
            return float(value) if value.numel() == 1 and value.device.type != "meta" else None
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
