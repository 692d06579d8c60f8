"""A plain torch training loop as a job's rank runs it, under the real recorder, with switches that break it.

Started as ``python plain_training.py HOOKS RANK WORLD_SIZE RENDEZVOUS SCENARIO...``: each scenario is a
folder with ``scenario.json``; records are written to its ``records/rank-00000``. Nothing of Plumbline is
imported but the recorder, as a copy named ``plumbline_recorder`` in the folder HOOKS.
"""

import contextlib
import itertools
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

VOCABULARY, WIDTH = 61, 16


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6).to(x.dtype) * self.weight


class LoraLinear(nn.Module):
    """An adapted layer with the attribute names of peft."""

    def __init__(self, base: nn.Linear, rank: int, scaling: float) -> None:
        super().__init__()
        self.base_layer = base
        self.lora_A = nn.ModuleDict({"default": nn.Linear(base.in_features, rank, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(rank, base.out_features, bias=False)})
        nn.init.normal_(self.lora_B["default"].weight, std=0.02)
        self.scaling = scaling

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base_layer(x) + self.lora_B["default"](self.lora_A["default"](x)) * self.scaling


class Conv1D(nn.Module):
    """A linear layer that keeps its weight as [in, out], with the attribute names of GPT-2's."""

    def __init__(self, outputs: int, inputs: int) -> None:
        super().__init__()
        self.nf, self.nx = outputs, inputs
        self.weight = nn.Parameter(torch.randn(inputs, outputs) / inputs**0.5)
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight + self.bias


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dropout = 0.0
        self.input_layernorm = RMSNorm(WIDTH)
        self.up_proj = nn.Linear(WIDTH, 2 * WIDTH, bias=True)
        self.down_proj = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = functional.gelu(self.up_proj(self.input_layernorm(x)))
        return x + self.down_proj(functional.dropout(inner, self.dropout) if self.drops else inner)

    @property
    def drops(self) -> bool:
        return self.training and self.dropout > 0


class TinyModel(nn.Module):
    """Tokens to logits; returns a loss as Hugging Face models do, divided by ``num_items_in_batch``."""

    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(2))
        self.norm = RMSNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.smoothing = 0.0
        self.detached = self.uneven = self.masked_too = False

    def forward(
        self, input_ids: torch.Tensor, labels: torch.Tensor, num_items_in_batch: float | None = None
    ) -> dict[str, torch.Tensor]:
        x = self.embed_tokens(input_ids)
        for layer in self.layers:
            x = layer(x.detach() if self.detached else x)
        logits = self.lm_head(self.norm(x))
        targets = labels[:, 1:].reshape(-1)
        losses = functional.cross_entropy(
            logits[:, :-1].float().reshape(-1, VOCABULARY),
            targets.clamp(min=0) if self.masked_too else targets,
            ignore_index=-100,
            reduction="none" if self.uneven else "sum",
            label_smoothing=self.smoothing,
        )
        total = losses
        if self.uneven:  # from half to one and a half, one on average
            on = losses[labels[:, 1:].reshape(-1) != -100]
            total = (on * torch.linspace(0.5, 1.5, len(on))).sum()
        count = (labels[:, 1:] != -100).sum() if num_items_in_batch is None else num_items_in_batch
        return {"loss": total / count, "logits": logits}


class OwnSGD(torch.optim.Optimizer):
    """Plain SGD; ``kind`` says how the result is rounded to the parameter, or what goes wrong with it."""

    def __init__(self, groups: list[dict[str, Any]], lr: float, kind: str) -> None:
        super().__init__(groups, {"lr": lr, "weight_decay": 0.0})
        self.kind = kind
        self.made = torch.Generator().manual_seed(0)

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for number, p in enumerate(group["params"]):
                exact = p.double() - group["lr"] * (p.grad.double() + group["weight_decay"] * p.double())
                if self.kind == "half":
                    exact = (p.double() + exact) / 2
                elif self.kind == "first_lost" and number == 0:
                    exact = p.double()
                elif self.kind in ("stochastic", "truncated"):
                    exact = self.narrowed(exact)
                elif self.kind == "kahan":
                    exact = self.with_lost(p, exact - p.double())
                elif self.kind == "never_added":
                    self.keep(
                        "lost", p, lambda lost, p=p, exact=exact: lost + exact - exact.to(p.dtype).double()
                    )
                elif self.kind == "averaged":
                    self.keep("average", p, lambda kept, p=p: 0.99 * kept + 0.01 * p.double())
                p.copy_(exact)

    def keep(self, key: str, p: nn.Parameter, changed: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """A state of the weight's shape and dtype that no step reads."""
        start = torch.zeros_like(p) if key == "lost" else p.detach().clone()
        self.state[p][key] = changed(self.state[p].get(key, start).double()).to(p.dtype)

    def with_lost(self, p: nn.Parameter, move: torch.Tensor) -> torch.Tensor:
        """The next value in the weight's dtype; what rounding takes is kept for the next step."""
        state = self.state[p]
        move = (move + state.setdefault("lost", torch.zeros_like(p)).double()).to(p.dtype).double()
        result = (p.double() + move).to(p.dtype).double()
        state["lost"] = (move - (result - p.double())).to(p.dtype)
        return result

    def narrowed(self, exact: torch.Tensor) -> torch.Tensor:
        """To bfloat16 up or down by chance, or always towards zero."""
        bits = exact.float().view(torch.int32)
        if self.kind == "stochastic":
            bits = bits + torch.randint(0, 1 << 16, bits.shape, generator=self.made, dtype=torch.int32)
        return (bits & ~0xFFFF).view(torch.float32).double()


def make_model(job: dict[str, Any]) -> TinyModel:
    torch.manual_seed(job["seed"])
    model = TinyModel()
    for layer in model.layers if job.get("transposed") else ():
        layer.up_proj, layer.down_proj = Conv1D(2 * WIDTH, WIDTH), Conv1D(WIDTH, 2 * WIDTH)
    if job.get("lora"):
        lora = job["lora"]
        for layer in model.layers:
            fault = job["fault"] == "adapter_scaling"
            scaling = 1.0 if fault else lora["alpha"] / lora["r"]
            layer.up_proj = LoraLinear(layer.up_proj, lora["r"], scaling)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_("lora_" in name)
    for name, parameter in model.named_parameters():
        if any(name.startswith(prefix.rstrip("*")) for prefix in job.get("frozen", [])):
            parameter.requires_grad_(job["fault"] == "frozen_trained")
    for layer in model.layers:
        layer.dropout = job.get("dropout", 0.0)
    if job["fault"] == "eval_mode":
        model.eval()
    for name in job.get("eval", []):
        model.get_submodule(name).eval()
    model.masked_too = job["fault"] == "masked_trained"
    model.uneven = job["fault"] == "uneven_tokens"
    model.detached = job["fault"] == "detached"
    model.smoothing = 0.0 if job["fault"] == "smoothing_left_out" else job.get("label_smoothing", 0.0)
    return model.to(getattr(torch, job.get("dtype", "float32")))


def make_rows(job: dict[str, Any], rank: int, world: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """(ids, labels) of each micro-batch: uneven numbers of supervised tokens."""
    made = torch.Generator().manual_seed(job["seed"] + 17)
    found = []
    for index in range(64 * world):
        length = 6 + int(torch.randint(0, 14, (), generator=made))
        ids = torch.randint(0, VOCABULARY, (2, length), generator=made)
        labels = ids.clone()
        labels[:, : 1 + int(torch.randint(0, length - 3, (), generator=made))] = -100
        if job["fault"] == "all_masked":
            labels[:] = -100
        if index % world == (0 if job["fault"] == "same_rows_alone" else rank):
            found.append((ids, labels))
    return found


def make_optimizer(job: dict[str, Any], model: nn.Module) -> torch.optim.Optimizer:
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    if job["fault"] == "stale" or job.get("masters"):
        named = [(name, nn.Parameter(p.detach().clone().float())) for name, p in named]
        for (_, new), old in zip(named, [p for p in model.parameters() if p.requires_grad], strict=True):
            new.model_parameter = old
    plain = [name for name, _ in named if "norm" in name or name.endswith("bias")]
    decay = job.get("weight_decay", 0.0)
    undecayed = decay if job["fault"] == "decay_on_norms" else 0.0
    if job["fault"] == "skipped_group":
        named = [entry for entry in named if "layers.0" not in entry[0]]
    groups: list[dict[str, Any]] = [
        {"params": [p for name, p in named if name not in plain], "weight_decay": decay},
        {"params": [p for name, p in named if name in plain], "weight_decay": undecayed},
    ]
    groups = [group for group in groups if group["params"]]
    rate, beta = job["learning_rate"], (job.get("beta1", 0.9), job.get("beta2", 0.999))
    momentum, extra = job.get("momentum"), job.get("implementation", {})
    made = {
        "adamw": lambda: torch.optim.AdamW(groups, lr=rate, betas=beta, **extra),
        "adam": lambda: torch.optim.Adam(groups, lr=rate, betas=beta, **extra),
        "sgd": lambda: torch.optim.SGD(
            groups, lr=rate, momentum=momentum or 0.0, nesterov=bool(job.get("nesterov")), **extra
        ),
        "torch-adafactor": lambda: torch.optim.Adafactor(groups, lr=rate),
        "muon": lambda: torch.optim.Muon(groups, lr=rate),
        "adafactor": lambda: _transformers_adafactor(groups, rate),
    }
    if job.get("own"):
        return OwnSGD(groups, rate, job["own"])
    name = "adam" if job["fault"] == "coupled_decay" else job["optimizer"]
    return made[name]()


def make_optimizers(job: dict[str, Any], model: nn.Module) -> list[torch.optim.Optimizer]:
    """One optimizer, or one for each of its groups."""
    whole = make_optimizer(job, model)
    return [type(whole)([group]) for group in whole.param_groups] if job.get("split") else [whole]


def _transformers_adafactor(groups: list[dict[str, Any]], rate: float) -> torch.optim.Optimizer:
    from transformers.optimization import Adafactor

    return Adafactor(groups, lr=rate, scale_parameter=False, relative_step=False)


def factor(job: dict[str, Any], position: int) -> float:
    total, warmup = job["steps"], job.get("warmup_steps", 0)
    schedule = job.get("schedule", "constant")
    if schedule == "constant":
        return 1.0
    if position < warmup:
        return position / max(1, warmup)
    if schedule == "constant_with_warmup":
        return 1.0
    done = (position - warmup) / max(1, total - warmup)
    return 1 - done if schedule == "linear" else 0.5 * (1 + math.cos(math.pi * done))


def parallel(job: dict[str, Any], model: nn.Module, world: int) -> nn.Module:
    layout = job.get("layout", "single" if world == 1 else "ddp")
    if layout == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        for layer in model.layers:
            fully_shard(layer)
        return fully_shard(model)
    if layout == "ddp" and job["fault"] not in ("unsynchronised", "same_rows_alone"):
        return nn.parallel.DistributedDataParallel(model)
    return model


def train(job: dict[str, Any], recorder: Any, rank: int, world: int) -> None:
    model = make_model(job)
    wrapped = parallel(job, model, world)
    optimizers = make_optimizers(job, model)
    schedules = [
        torch.optim.lr_scheduler.LambdaLR(each, lambda position: factor(job, position)) for each in optimizers
    ]
    scaler = torch.amp.GradScaler("cpu", enabled="scaler" in job, **job.get("scaler", {}))
    recorder.model(model, "start")
    rows = iter(itertools.cycle(make_rows(job, rank, world)))
    for step in range(1, job["steps"] + 1):
        batches = [next(rows) for _ in range(job.get("accumulation", 1))]
        if job["fault"] == "clipped_once" and step > 1:
            job = {**job, "max_grad_norm": 0.0}
        logged = one_step(job, wrapped, model, optimizers, scaler, batches, world)
        copies = [p for each in optimizers for group in each.param_groups for p in group["params"]]
        for copy in (copy for copy in copies if hasattr(copy, "model_parameter")):
            copy.grad = copy.model_parameter.grad.float()
        overflow(job, step, optimizers)
        left_out = scaled_step(scaler, optimizers)
        for copy in (copy for copy in copies if job.get("masters")):
            copy.model_parameter.data.copy_(copy.data)
            copy.model_parameter.grad = None
        moves = world if job["fault"] == "schedule_per_rank" else 1
        for schedule in schedules * (0 if left_out and job.get("schedule_waits") else moves):
            schedule.step()
        spoil(job, model, optimizers)
        if job["fault"] != "no_zero_grad":
            for p in copies:
                p.grad = None
        recorder.logged(step, {**logged, "learning_rate": schedules[0].get_last_lr()[0]})
    recorder.model(model, "end")


def spoil(job: dict[str, Any], model: nn.Module, optimizers: list[torch.optim.Optimizer]) -> None:
    """What goes wrong between two steps."""
    if job["fault"] == "state_cleared":
        for optimizer in optimizers:
            optimizer.state.clear()
    if job["fault"] == "weights_rounded":
        for p in model.parameters():
            p.data.copy_((p.data * 256).round() / 256)


def overflow(job: dict[str, Any], step: int, optimizers: list[torch.optim.Optimizer]) -> None:
    """Make a gradient infinite of each optimizer that ``overflows`` names with this step."""
    for at, number in job.get("overflows", []):
        if at == step:
            optimizers[number].param_groups[0]["params"][0].grad.view(-1)[0] = math.inf


def scaled_step(scaler: torch.amp.GradScaler, optimizers: list[torch.optim.Optimizer]) -> bool:
    """Step as the scaler does, and whether it left the step out."""
    scale = scaler.get_scale()
    for optimizer in optimizers:
        scaler.step(optimizer)
    scaler.update()
    return scaler.get_scale() < scale


def one_step(
    job: dict[str, Any],
    wrapped: nn.Module,
    model: nn.Module,
    optimizers: list[torch.optim.Optimizer],
    scaler: torch.amp.GradScaler,
    batches: list[tuple[torch.Tensor, torch.Tensor]],
    world: int,
) -> dict[str, float]:
    """Forward, backward and clipping of one global batch."""
    own = sum(int((labels[:, 1:] != -100).sum()) for _, labels in batches)
    count = torch.tensor(float(own))
    if world > 1:
        dist.all_reduce(count)
    total = 0.0
    fault = job["fault"]
    for index, (ids, labels) in enumerate(batches):
        last = index == len(batches) - 1
        synced = index == len(batches) - (2 if fault == "no_sync_off_by_one" else 1)
        waits = hasattr(wrapped, "no_sync") and world > 1 and not synced
        items = max(float(count), 1.0) / world
        scale = 1.0
        if fault == "not_a_number":
            scale = float("nan")
        elif fault == "mean_of_means":
            items, scale = None, 1 / len(batches)
        elif fault == "mean_per_rank":
            items = float(own)
        elif fault == "times_accumulation":
            scale = float(len(batches))
        with wrapped.no_sync() if waits else contextlib.nullcontext():
            loss = forward(job, wrapped, ids, labels, items) * scale
            if job.get("further_term"):
                square = model.embed_tokens.weight.pow(2).sum()
                loss = loss + job["further_term"] * square / len(batches)
            if not (fault == "last_micro_batch_lost" and last):
                scaler.scale(loss).backward()
        total += float(loss.detach())
    mean = torch.tensor(total)
    if world > 1:
        dist.all_reduce(mean)
    logged = {"loss": float(mean) / world * (2 if fault == "logged_doubled" else 1)}
    norm = clip(job, model, optimizers, scaler, world)
    return logged | ({} if norm is None else {"grad_norm": norm})


def forward(
    job: dict[str, Any], wrapped: nn.Module, ids: torch.Tensor, labels: torch.Tensor, items: float | None
) -> torch.Tensor:
    if job.get("autocast"):
        with torch.autocast("cpu", getattr(torch, job["autocast"])):
            return wrapped(input_ids=ids, labels=labels, num_items_in_batch=items)["loss"]
    return wrapped(input_ids=ids, labels=labels, num_items_in_batch=items)["loss"]


def clip(
    job: dict[str, Any],
    model: nn.Module,
    optimizers: list[torch.optim.Optimizer],
    scaler: torch.amp.GradScaler,
    world: int,
) -> float | None:
    largest, fault = job.get("max_grad_norm", 0.0), job["fault"]
    if not largest or fault == "not_clipped":
        return None
    if fault != "not_unscaled":
        for optimizer in optimizers:
            scaler.unscale_(optimizer)
    held = [p for p in model.parameters() if p.grad is not None]
    if fault == "local_norm":
        local = [p.grad.to_local() if hasattr(p.grad, "to_local") else p.grad for p in held]
        norm = torch.nn.utils.get_total_norm(local)
        for gradient in local:
            gradient.mul_(torch.clamp(largest / (norm + 1e-6), max=1.0))
        return float(norm)
    norm = torch.nn.utils.clip_grad_norm_(held, largest * (10 if fault == "clipped_to_another" else 1))
    return float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)


def main() -> None:
    hooks, rank, world, rendezvous, *folders = sys.argv[1:]
    sys.path.insert(0, hooks)
    sys.dont_write_bytecode = True
    torch.set_num_threads(1)
    if int(world) > 1:
        dist.init_process_group(
            "gloo", init_method=f"file://{rendezvous}", rank=int(rank), world_size=int(world)
        )
    from plumbline_recorder.training_recorder import TrainingRecorder

    for folder in folders:
        job = json.loads((Path(folder) / "scenario.json").read_text())
        records = Path(folder) / "records" / f"rank-{int(rank):05d}"
        records.mkdir(parents=True, exist_ok=True)
        recorder = TrainingRecorder(
            SimpleNamespace(records=records, job={"settings": job}, rank=int(rank), world_size=int(world))
        )
        recorder.install()
        try:
            train(job, recorder, int(rank), int(world))
        finally:
            recorder.close()
    if int(world) > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
