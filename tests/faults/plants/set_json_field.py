"""Sets one field of a JSON file. Arguments: folder, file, dotted field, new value as JSON."""

import json
import sys
from pathlib import Path

path = Path(sys.argv[1]) / sys.argv[2]
*parents, last = sys.argv[3].split(".")
content = json.loads(path.read_text(encoding="utf-8"))
place = content
for name in parents:
    place = place[name]
place[last] = json.loads(sys.argv[4])
path.write_text(json.dumps(content, indent=2), encoding="utf-8")
