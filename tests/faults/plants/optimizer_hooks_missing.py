"""A torch without the hooks around an optimizer's step that the recorder listens through."""

import importlib

module = importlib.import_module("torch.optim.optimizer")
del module.register_optimizer_step_post_hook
