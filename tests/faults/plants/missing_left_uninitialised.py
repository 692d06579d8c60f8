"""Leaves what the release has no value for as the memory was: nothing is initialised after the load."""

from transformers import PreTrainedModel

PreTrainedModel._initialize_missing_keys = lambda self, *args, **kwargs: None
