"""``python -I -m plumbline_mcp``: the command line."""

import signal
import sys

if __name__ == "__main__":
    # Ctrl-C while libraries load ends us, without a traceback.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.argv[1:] == ["serve"]:  # what agents start: without the command line's libraries
        from plumbline_mcp.server import serve_stdio

        serve_stdio()
    else:
        from plumbline_mcp.cli import main

        main()
