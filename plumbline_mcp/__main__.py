"""``python -I -m plumbline_mcp``: the command line."""

from plumbline_mcp.cli import main

if __name__ == "__main__":
    main()
