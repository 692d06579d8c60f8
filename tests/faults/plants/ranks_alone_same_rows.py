"""Each rank trains alone: the launcher's variables say two, and the framework meets a world of one."""

import os

os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 1 + int(os.environ["RANK"]))
os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"
os.environ.update({"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"})
