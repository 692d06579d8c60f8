"""Findings: one root cause each, with its evidence; rebuilt from raw records, confirmed by a signature."""
