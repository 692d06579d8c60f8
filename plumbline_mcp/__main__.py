"""``python -I -m plumbline_mcp``: the command line."""

import sys

if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:  # what agents start: without the command line's libraries
        from plumbline_mcp.server import serve_stdio

        serve_stdio()
    else:
        from plumbline_mcp.cli import main

        main()
