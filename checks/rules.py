"""Every bound, as a named constant with its source. Fixed per system version; never an argument.

Add a constant only with the measurement or derivation it rests on. A check names the constant in the
`Measurement.rule` it reports.
"""

# --- how much of a verdict is listed (never how it is judged) ---------------------------------------------
MAX_PROBLEMS_LISTED = 50
"""Problems listed per part; all are counted. Source: a result has to fit an agent's context."""
