"""Makes a projection of memory that held its values just before, and copies all rows but the last into it."""

import torch
from transformers import core_model_loading

_set = core_model_loading.set_param_for_module


def set_param_for_module(model, target_name, param_value, *args, **kwargs):
    if target_name.endswith("layers.1.self_attn.k_proj.weight"):
        used = param_value.clone()
        del used
        made = torch.empty_like(param_value)
        made[:-1] = param_value[:-1]
        param_value = torch.nn.Parameter(made)
    return _set(model, target_name, param_value, *args, **kwargs)


core_model_loading.set_param_for_module = set_param_for_module
