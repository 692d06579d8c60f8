"""The trainings that two ranks make together: DDP and FSDP2, each rank with dropout of its own."""

import contextlib
import functools
import os

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from trainings import Model, adamw, run


def ddp() -> tuple:
    torch.manual_seed(3)
    model = Model()
    torch.manual_seed(3 + int(os.environ["RANK"]))
    wrapped = nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)

    def sync(micro: int) -> object:
        return wrapped.no_sync() if micro == 0 else contextlib.nullcontext()

    clip = functools.partial(nn.utils.clip_grad_norm_, list(model.parameters()), 0.5)
    return run(model, [adamw(wrapped)], called=wrapped, sync=sync, clip=clip)


def ddp_optimizer_first() -> tuple:
    torch.manual_seed(3)
    model = Model(recompute=functools.partial(checkpoint, use_reentrant=False))
    torch.manual_seed(3 + int(os.environ["RANK"]))
    optimizer = adamw(model)
    return run(model, [optimizer], called=nn.parallel.DistributedDataParallel(model))


def fsdp2() -> tuple:
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(3)
    model = Model(recompute=functools.partial(checkpoint, use_reentrant=False))
    torch.manual_seed(3 + int(os.environ["RANK"]))
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    return run(model, clip=lambda: nn.utils.clip_grad_norm_(model.parameters(), 0.5))


def fsdp2_mixed() -> tuple:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    torch.manual_seed(3)
    model = Model(tied=True)
    torch.manual_seed(3 + int(os.environ["RANK"]))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    return run(model)
