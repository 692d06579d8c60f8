"""Steps of the transformers Trainer, some of them recorded in full."""

from plumbline_binding.training import train

__all__ = ["train"]
