"""The recipe's own first steps with the transformers Trainer: metrics only."""

from plumbline_binding.training import train

__all__ = ["train"]
