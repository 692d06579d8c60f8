"""What an agent sees of each tool, kept as files that are reviewed as a diff."""
