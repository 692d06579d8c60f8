"""The recipe's own first steps with SFTTrainer: metrics only."""

from plumbline_binding.train_step import train

__all__ = ["train"]
