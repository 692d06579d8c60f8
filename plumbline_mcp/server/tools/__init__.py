"""One file a toolset; each has ``add_tools(toolset)``."""
