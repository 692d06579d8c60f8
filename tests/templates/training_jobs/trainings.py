"""The trainings: each returns its model and optimizers after a few steps."""

import contextlib
import copy
import functools
import io
import os

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_ as imported_early
from torch.utils.checkpoint import checkpoint

VOCABULARY, WIDTH, LENGTH = 61, 16, 10
WORLD = int(os.environ.get("WORLD_SIZE", "1"))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)
        self.dropout = nn.Dropout(0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.dropout(F.gelu(self.up(self.norm(x)))))


class Model(nn.Module):
    """Returns logits; with labels the mean loss too, as a dictionary."""

    def __init__(self, tied: bool = False, recompute: object = None) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.recompute = recompute
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, input_ids: torch.Tensor, labels: "torch.Tensor | None" = None) -> object:
        x = self.embedding(input_ids)
        for block in self.blocks:
            x = self.recompute(block, x) if self.recompute else block(x)
        logits = self.head(self.norm(x))
        if labels is None:
            return logits
        return {"loss": mean_loss(logits, labels), "logits": logits}


def mean_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits[:, :-1].reshape(-1, VOCABULARY).float(), labels[:, 1:].reshape(-1))


def batch() -> "tuple[torch.Tensor, torch.Tensor]":
    """Ids, and labels without the first two positions."""
    ids = torch.randint(0, VOCABULARY, (2, LENGTH))
    labels = ids.clone()
    labels[:, :2] = -100
    return ids, labels


def adamw(model: nn.Module, **more: object) -> torch.optim.Optimizer:
    return torch.optim.AdamW(
        [
            {"params": [value for value in model.parameters() if value.ndim > 1], "weight_decay": 0.1},
            {"params": [value for value in model.parameters() if value.ndim < 2], "weight_decay": 0.0},
        ],
        lr=1e-3,
        **more,
    )


def loop(
    called: nn.Module,
    optimizers: "list[torch.optim.Optimizer]",
    *,
    steps: int = 3,
    accumulation: int = 2,
    clip: object = None,
    context: object = contextlib.nullcontext,
    outside: bool = False,
    sync: object = None,
) -> None:
    """A plain loop: accumulate, clip, step."""
    for _ in range(steps):
        for micro in range(accumulation):
            ids, labels = batch()
            with sync(micro) if sync else contextlib.nullcontext():
                with context():
                    inside = not outside
                    loss = called(ids, labels=labels)["loss"] if inside else mean_loss(called(ids), labels)
                (loss / accumulation).backward()
        if clip:
            clip()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


def run(
    model: nn.Module,
    optimizers: "list[torch.optim.Optimizer] | None" = None,
    called: object = None,
    **how: object,
) -> tuple:
    optimizers = optimizers or [adamw(model)]
    loop(model if called is None else called, optimizers, **how)
    return model, optimizers


# One rank


def dropout_and_clipping() -> tuple:
    model = Model()
    return run(model, clip=lambda: nn.utils.clip_grad_norm_(model.parameters(), 0.5))


def loss_outside() -> tuple:
    return run(Model(tied=True), outside=True)


def clip_imported_early() -> tuple:
    model = Model()
    return run(model, clip=lambda: imported_early(model.parameters(), 0.5))


def clip_in_two_parts() -> tuple:
    model = Model()

    def clip() -> None:
        norm = nn.utils.get_total_norm([value.grad for value in model.parameters()])
        nn.utils.clip_grads_with_norm_(model.parameters(), 0.5, norm)

    return run(model, clip=clip)


def autocast_bfloat16() -> tuple:
    return run(Model(), context=lambda: torch.autocast("cpu", torch.bfloat16))


def bfloat16_in_place() -> tuple:
    return run(Model().bfloat16())


def output_converted() -> tuple:
    """As accelerate does for mixed precision: forward is wrapped, logits leave as float32."""
    model = Model()
    inner = model.forward

    def forward(*args: object, **kwargs: object) -> object:
        with torch.autocast("cpu", torch.bfloat16):
            output = inner(*args, **kwargs)
        return {name: value.float() for name, value in output.items()}

    model.forward = forward
    return run(model)


def checkpoint_new() -> tuple:
    return run(Model(recompute=functools.partial(checkpoint, use_reentrant=False)))


def checkpoint_reentrant() -> tuple:
    return run(Model(recompute=functools.partial(checkpoint, use_reentrant=True)))


def checkpoint_selective() -> tuple:
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    def policy(context: object, operator: object, *args: object, **kwargs: object) -> object:
        kept = operator in (torch.ops.aten.addmm.default, torch.ops.aten.mm.default)
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    contexts = functools.partial(create_selective_checkpoint_contexts, policy)
    return run(Model(recompute=functools.partial(checkpoint, use_reentrant=False, context_fn=contexts)))


def compiled() -> tuple:
    model = Model()
    return run(model, called=torch.compile(model, backend="aot_eager"))


def compiled_in_place() -> tuple:
    model = Model()
    model.compile(backend="aot_eager")
    return run(model)


def closure() -> tuple:
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        ids, labels = batch()

        def again(ids: torch.Tensor = ids, labels: torch.Tensor = labels) -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(ids, labels=labels)["loss"]
            loss.backward()
            return loss

        optimizer.step(again)
    return model, [optimizer]


def pair(model: nn.Module) -> "list[torch.optim.Optimizer]":
    """An optimizer of the blocks' matrices and one of the rest."""
    matrices = [
        value for name, value in model.named_parameters() if name.endswith(("up.weight", "down.weight"))
    ]
    held = {id(value) for value in matrices}
    rest = [value for value in model.parameters() if id(value) not in held]
    kind = getattr(torch.optim, "Muon", torch.optim.SGD)
    return [kind(matrices, lr=1e-3), torch.optim.AdamW(rest, lr=1e-3)]


def two_optimizers() -> tuple:
    model = Model()
    return run(model, pair(model))


class Container(torch.optim.Optimizer):
    """As torchtitan's: an optimizer that steps others."""

    def __init__(self, parts: "list[torch.optim.Optimizer]") -> None:
        self.parts = parts
        super().__init__(
            [value for part in parts for group in part.param_groups for value in group["params"]], {}
        )

    def step(self, closure: object = None) -> None:
        for part in self.parts:
            part.step()


def container() -> tuple:
    model = Model()
    parts = [torch.optim.AdamW(list(block.parameters()), lr=1e-3) for block in model.blocks]
    loop(model, [Container(parts)])
    return model, parts


def stale_optimizer() -> tuple:
    """The parameters are replaced after the optimizer took them."""
    model = Model()
    optimizer = adamw(model)
    for block in model.blocks:
        block.up.weight = nn.Parameter(block.up.weight.detach().clone())
    return run(model, [optimizer])


def scaler_skips() -> tuple:
    """A gradient scaler leaves the first step out."""
    model = Model()
    optimizer = adamw(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    for step in range(4):
        ids, labels = batch()
        factor = 1e6 if step == 0 else 1.0
        scaler.scale(model(ids, labels=labels)["loss"] * factor).backward()
        scaler.step(optimizer)
        scaler.update(64.0 if step == 0 else None)
        optimizer.zero_grad()
    return model, [optimizer]


def scaler_skips_of_two() -> tuple:
    """Of two optimizers a gradient scaler leaves out both, then the first, then the second."""
    model = Model()
    optimizers = pair(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    for wrong in ([0, 1], [0], [1], [], []):
        ids, labels = batch()
        scaler.scale(model(ids, labels=labels)["loss"]).backward()
        for number in wrong:
            optimizers[number].param_groups[0]["params"][0].grad.view(-1)[0] = float("inf")
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
        for optimizer in optimizers:
            optimizer.zero_grad()
    return model, optimizers


def labels_kept_from_the_model() -> tuple:
    """As a Trainer with label smoothing: labels are popped from the batch, the loss is computed outside."""
    model = Model()
    optimizer = adamw(model)
    rows = [dict(zip(("input_ids", "labels"), (entry[0] for entry in batch()))) for _ in range(8)]  # noqa: B905
    for inputs in torch.utils.data.DataLoader(rows, batch_size=2):
        labels = inputs.pop("labels")
        logits = model(**inputs)
        logarithms = -torch.log_softmax(logits[:, :-1], dim=-1)
        on = labels[:, 1:] != -100
        chosen = logarithms.gather(-1, labels[:, 1:].clamp(min=0).unsqueeze(-1)).squeeze(-1)
        loss = (0.9 * chosen + 0.1 * logarithms.mean(-1))[on].sum() / on.sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, [optimizer]


labels_kept_from_the_model.settings = {"label_smoothing": 0.1}


def pickled_midway() -> tuple:
    """A copy and a pickle of the model carry nothing of the recorder."""
    model = Model()
    optimizer = adamw(model)
    loop(model, [optimizer], steps=1)
    copied, kept = copy.deepcopy(model), io.BytesIO()
    torch.save(model, kept)
    if b"plumbline" in kept.getvalue():
        raise RuntimeError("the pickle of the model names the recorder")
    loop(model, [optimizer], steps=1)
    return nn.ModuleList([model, copied]), [optimizer]


class Lora(nn.Module):
    """A LoRA layer as peft lays it out, with a wrong factor."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base_layer = base.requires_grad_(False)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(base.in_features, 4, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(4, base.out_features, bias=False)})
        nn.init.normal_(self.lora_B["default"].weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base_layer(x) + self.lora_B["default"](self.lora_A["default"](x)) * 1.75


def adapters() -> tuple:
    model = Model().requires_grad_(False)
    model.blocks[1].down = Lora(model.blocks[1].down)
    held = [value for value in model.parameters() if value.requires_grad]
    return run(model, [torch.optim.AdamW(held, lr=1e-3)])


class Fused(Model):
    """As a fused last layer: log-probabilities of the next tokens, masked, and no logits."""

    def forward(self, input_ids: torch.Tensor, labels: "torch.Tensor | None" = None) -> object:
        logits = super().forward(input_ids)
        wanted = labels[:, 1:]
        every = torch.log_softmax(logits[:, :-1], -1)
        found = every.gather(-1, wanted.clamp(min=0).unsqueeze(-1)).squeeze(-1).masked_fill(wanted < 0, 0)
        return {"loss": -found.sum() / (wanted >= 0).sum(), "log_probs": found}


def fused() -> tuple:
    return run(Fused())


def sampled() -> tuple:
    return run(Model())


sampled.settings = {"sample_elements": 100}


def metrics_only() -> tuple:
    return run(Model())


metrics_only.settings = {"record_steps": []}


def exchanged_midway() -> tuple:
    """Between two steps a parameter is replaced behind the optimizer's back, and a layer is added."""
    model = Model()
    optimizer = adamw(model)
    loop(model, [optimizer], steps=1)
    model.blocks[0].up.weight = nn.Parameter(model.blocks[0].up.weight.detach().clone())
    model.further = nn.Linear(2, 2)
    optimizer.add_param_group({"params": list(model.further.parameters())})
    loop(model, [optimizer], steps=1)
    return model, [optimizer]


exchanged_midway.settings = {"record_steps": []}


class Recurrent(nn.Module):
    """Parts that act in training mode only, each in its own way, and a frozen one."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.frozen = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.3)).requires_grad_(False)
        self.norm = nn.BatchNorm1d(LENGTH)
        self.one, self.two = (
            nn.LSTM(WIDTH, WIDTH, layers, batch_first=True, dropout=0.1) for layers in (1, 2)
        )
        self.rectifier, self.linear = nn.RReLU(), nn.RReLU(0.2, 0.2)
        self.attention_dropout, self.drop_last, self.layerdrop = 0.4, True, 0.0
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> object:
        x = self.norm(self.frozen(self.embedding(input_ids)))
        x = self.linear(self.rectifier(self.two(self.one(x)[0])[0]))
        logits = self.head(F.dropout(x, self.attention_dropout, self.training))
        return {"loss": mean_loss(logits, labels), "logits": logits}


def modes_that_turn() -> tuple:
    """Step 1 in training mode but for the frozen part, step 2 without two parts, step 3 in eval mode."""
    model = Recurrent()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model.frozen.eval()
    loop(model, [optimizer], steps=1)
    model.eval()
    model(*batch())  # an evaluation with gradients on: no backward pass goes through it
    model.train()
    model.norm.eval()
    model.two.eval()
    loop(model, [optimizer], steps=1)
    model.eval()
    loop(model, [optimizer], steps=1)
    return model, [optimizer]


# transformers


def transposed_layers() -> tuple:
    """GPT-2: its layers keep their weights as [in, out], and its head is tied to the embedding."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return run(GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_embd=WIDTH, n_layer=2, n_head=2)))


def trainer(**more: object) -> tuple:
    """A Trainer on a small Llama: rows with padding, two micro-batches a step."""
    import tempfile

    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    torch.manual_seed(3)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, attention_dropout=0.1, **shape))
    rows = []
    for length in torch.randint(5, LENGTH, (32,)).tolist():
        ids = torch.randint(0, VOCABULARY, (length,)).tolist()
        rest = LENGTH - length
        labels = [-100, -100, *ids[2:], *[-100] * rest]
        rows.append(
            {"input_ids": ids + [0] * rest, "labels": labels, "attention_mask": [1] * length + [0] * rest}
        )
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        max_steps=3,
        learning_rate=1e-3,
        max_grad_norm=0.5,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
        **more,
    )
    trained = Trainer(model=model, args=arguments, train_dataset=rows)
    trained.train()
    return model, [trained.optimizer]


def trainer_plain() -> tuple:
    return trainer()


def trainer_bfloat16() -> tuple:
    return trainer(bf16=True)


def trainer_smoothed() -> tuple:
    return trainer(label_smoothing_factor=0.1)


trainer_smoothed.settings = {"label_smoothing": 0.1}
