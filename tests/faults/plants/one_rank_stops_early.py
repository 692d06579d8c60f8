"""Each rank trains alone, and the second one makes a step less."""

import os

import transformers

RANK = int(os.environ["RANK"])
os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 1 + RANK)
os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"
os.environ.update({"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"})

_init = transformers.TrainingArguments.__post_init__


def post_init(self):
    self.data_seed += RANK
    self.max_steps -= RANK
    _init(self)


transformers.TrainingArguments.__post_init__ = post_init
