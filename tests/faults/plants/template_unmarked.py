"""Takes the generation marks out of a release's chat template; the text that it renders stays."""

import re
import sys
from pathlib import Path

path = Path(sys.argv[1], "chat_template.jinja")
text, count = re.subn(r"{%-?\s*(?:end)?generation\s*-?%}", "{#- -#}", path.read_text(encoding="utf-8"))
if not count:
    sys.exit("the template marks no generation")
path.write_text(text, encoding="utf-8")
