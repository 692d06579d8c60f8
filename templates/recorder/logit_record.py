"""What a micro-batch's logits say, by position, and what weight the loss gave to each position.

With z the logits of a position in float32 and y its target: ``logprob`` = z[y] - logsumexp(z), ``logsumexp``,
``logit_mean`` (for a smoothed loss). With q the target distribution (one-hot, smoothed by the recipe's label
smoothing), d = softmax(z) - q and g the gradient that reached the logits, a loss that is a weighted mean of
cross-entropies has g = w d: ``token_weight`` = <g, d> / <d, d>, ``token_residual`` = |g - w d| / |g|.
Where nothing is supervised ``token_weight`` is |g|, which has to be 0.
"""

import torch
from plumbline_recorder.health import Health
from plumbline_recorder.micro_batches import MicroBatch
from plumbline_recorder.reading import CHUNK, dtype_name, local, quiet

CASTS = ("ToCopyBackward0", "_DDPSinkBackward", "CloneBackward0", "AliasBackward0")
"""What wrappers put behind the logits without changing a value; a loss inside the model does not see it."""


def positions(logits: "torch.Tensor") -> "list[tuple[int, slice]]":
    """(row, positions) blocks of [B, T, V] logits whose float32 copies stay small."""
    rows, length, size = logits.shape
    step = max(1, CHUNK // max(1, size))
    return [(row, slice(at, at + step)) for row in range(rows) for at in range(0, length, step)]


def normalizers(logits: "torch.Tensor") -> "torch.Tensor":
    """logsumexp of every position, float32 [B, T]."""
    with quiet():
        plain = local(logits)
        found = torch.empty(plain.shape[:-1], dtype=torch.float32, device=plain.device)
        for row, part in positions(plain):
            found[row, part] = torch.logsumexp(plain[row, part].float(), dim=-1)
        return found


def forward_values(logits: "torch.Tensor", targets: "torch.Tensor | None") -> "dict[str, torch.Tensor]":
    """``logit_mean`` and, with targets, ``logprob`` (0 where nothing is supervised), float32 [B, T] each."""
    with quiet():
        plain = local(logits)
        shape, device = plain.shape[:-1], plain.device
        found = {"logit_mean": torch.empty(shape, dtype=torch.float32, device=device)}
        if targets is not None:
            found["logprob"] = torch.zeros(shape, dtype=torch.float32, device=device)
        for row, part in positions(plain):
            values = plain[row, part].float()
            found["logit_mean"][row, part] = values.mean(dim=-1)
            if targets is not None:
                wanted, on = _wanted(targets[row, part], values)
                chosen = values.gather(-1, wanted.unsqueeze(-1)).squeeze(-1)
                found["logprob"][row, part] = torch.where(on, chosen - torch.logsumexp(values, -1), 0.0)
        return found


def gradient_values(
    logits: "torch.Tensor", gradient: "torch.Tensor", targets: "torch.Tensor", smoothing: float
) -> "dict[str, torch.Tensor]":
    """``token_weight`` and ``token_residual``, float32 [B, T] each."""
    with quiet():
        plain, slope = local(logits), local(gradient)
        found = {
            name: torch.zeros(plain.shape[:-1], dtype=torch.float32, device=plain.device)
            for name in ("token_weight", "token_residual")
        }
        for row, part in positions(plain):
            values, given = plain[row, part].float(), slope[row, part].float()
            wanted, on = _wanted(targets[row, part], values)
            away = torch.softmax(values, dim=-1) - smoothing / values.shape[-1]
            at = wanted.unsqueeze(-1)
            away.scatter_(-1, at, away.gather(-1, at) - (1.0 - smoothing))
            weight, residual = _projection(given, away)
            norm = torch.linalg.vector_norm(given, dim=-1, dtype=torch.float64)
            found["token_weight"][row, part] = torch.where(on, weight, norm).float()
            found["token_residual"][row, part] = torch.where(on, residual, 0.0).float()
        return found


def _wanted(targets: "torch.Tensor", values: "torch.Tensor") -> "tuple[torch.Tensor, torch.Tensor]":
    """Target ids with 0 where there is none, and where there is one."""
    targets = targets.to(values.device)
    on = (targets >= 0) & (targets < values.shape[-1])
    return torch.where(on, targets, 0).long(), on


def _projection(given: "torch.Tensor", away: "torch.Tensor") -> "tuple[torch.Tensor, torch.Tensor]":
    """w = <g, d> / <d, d> and |g - w d| / |g|, sums in float64; 0 where both are 0."""
    square = (away * away).sum(-1, dtype=torch.float64)
    product = (given * away).sum(-1, dtype=torch.float64)
    weight = torch.where(square > 0, product / square, 0.0)
    rest = given - weight.float().unsqueeze(-1) * away
    norm = torch.linalg.vector_norm(given, dim=-1, dtype=torch.float64)
    left = torch.linalg.vector_norm(rest, dim=-1, dtype=torch.float64)
    return weight, torch.where(norm > 0, left / norm, 0.0)


class LogitRecord:
    """Follows the logits of one micro-batch from the forward pass through the backward pass."""

    def __init__(self, batch: MicroBatch, smoothing: float, health: Health) -> None:
        """Take the normalizers now: the logits may be overwritten later."""
        self._batch, self._smoothing, self._health = batch, smoothing, health
        self._normalizers = normalizers(batch.logits)
        self._gradient_at = -1
        self.values: "dict[str, torch.Tensor]" = {"logsumexp": self._normalizers}
        self.missing = "no gradient reached the logits"

    def before_backward(self) -> None:
        """The labels are known now: take the log-probabilities and follow the gradient."""
        logits, targets = self._batch.logits, self._targets()
        self.values.update(forward_values(logits, targets))
        if targets is None or not logits.requires_grad:
            self.missing = "the labels are not known" if targets is None else "the logits need no gradient"
            return
        logits.register_hook(lambda gradient: self._took(0, gradient))
        node, depth = logits.grad_fn, 0
        while node is not None and node.name() in CASTS and node.next_functions:
            node, index = node.next_functions[0]
            depth += 1
            if node is not None and not node.name().endswith("AccumulateGrad"):
                node.register_prehook(_Follow(self, depth, index))

    def _targets(self) -> "torch.Tensor | None":
        targets = self._batch.targets()
        fits = targets is not None and targets.shape == self._batch.logits.shape[:-1]
        return targets if fits else None

    def _took(self, depth: int, gradient: "torch.Tensor | None") -> None:
        """The innermost place has the whole gradient: what the loss outside and inside the model gave."""
        with self._health.guard("the gradient of the logits"):
            self._take(depth, gradient)

    def _take(self, depth: int, gradient: "torch.Tensor | None") -> None:
        logits = self._batch.logits
        if logits is None or gradient is None or depth < self._gradient_at or gradient.shape != logits.shape:
            return
        if not torch.equal(normalizers(logits), self._normalizers):
            self.missing = "the logits were overwritten before the backward pass"
            return
        self._gradient_at, self.missing = depth, ""
        self._batch.logits_dtype = dtype_name(gradient.dtype)  # the model's own, before any conversion
        self.values.update(gradient_values(logits, gradient, self._targets(), self._smoothing))


class _Follow:
    """A hook on a node of the graph: sees the gradient of one of the node's outputs and changes nothing."""

    def __init__(self, record: LogitRecord, depth: int, index: int) -> None:
        self._record, self._depth, self._index = record, depth, index

    def __call__(self, gradients: "tuple[torch.Tensor | None, ...]") -> None:
        self._record._took(self._depth, gradients[self._index])  # noqa: SLF001 - a part of it
