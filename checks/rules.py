"""Every bound, as a named constant with its source. Fixed per system version; never an argument.

Add a constant only with the measurement or derivation it rests on. A check names the constant in the
`Measurement.rule` it reports.
"""

# --- how much of a verdict is listed (never how it is judged) ---------------------------------------------
MAX_PROBLEMS_LISTED = 50
"""Problems listed per part; all are counted. Source: a result has to fit an agent's context."""

# --- data: how much an untrusted template, workload or dump may ask for -------------------------------------
RENDER_SECONDS = 5.0
"""One render of one conversation. Source: the slowest of 43 real templates took 0.014 s on 80 messages."""
RENDER_KILL_SECONDS = 20.0
"""Processor seconds of one render after which the kernel ends the worker: four times the time limit, so that
only a single step of Python that a signal cannot end gets there."""
MAX_TEMPLATE_INTEGER_BITS = 2**16
"""Bits of a product or power in a template, or of what is divided. Source: templates count messages; one such
operation takes microseconds."""
RENDER_MEMORY_BYTES = 2**30
"""Memory beyond what the process holds. Source: a render holds a few copies of its output (limit below)."""
MAX_RENDERED_CHARACTERS = 2**26
"""Characters of one rendered conversation. Source: 64 times a context of one million tokens of one
character.
"""
MAX_TEMPLATE_BYTES = 2**20
"""Size of a chat template. Source: the largest of 53 real templates has 17 kB."""
RENDER_TIMEOUTS = 3
"""Conversations on which a template may run out of time before it is given up."""
MAX_TOKENIZER_BYTES = 2**28
"""Size of tokenizer.json. Source: the largest real one met has 27.9 MB."""
MAX_WORKLOAD_BYTES = 2**32
"""Size of a workload file; it is held in memory."""
MAX_LINE_BYTES = 2**27
"""One line of a JSONL file. Source: a row of one million tokens with ids and labels takes 20 MB."""
MAX_ROWS = 4_000_000
"""Rows of a workload or sequences of a dump."""
MAX_TOKENS = 2**29
"""Tokens of a dump or of the reference held in memory (int32: 2 GiB each for ids and labels)."""
CLEAN_ROW_TRIES = 64
"""Rows tried when looking for a clean one to inject faults into; it changes no judgement of the input."""

# --- export -------------------------------------------------------------------------------------------------
TRAINED_CHANGE = 0.5
"""Largest relative change ||found - original|| / ||original|| of one tensor that training explains.

Derivation: a tensor put in another's place, transposed, permuted or re-initialised at the same norm is at
sqrt(2), a negated one at 2, a zeroed or doubled one at 1. Fine-tuning moves a matrix by a few percent. One
half keeps a factor of two from the nearest fault.
"""
TRAINED_SHARE = 0.5
"""Share of the floating-point tensors that must differ before an export looks trained.

Derivation: an optimizer step moves every trained tensor, a fault in an exporter touches one kind of tensor;
of the seven to nine matrices of a decoder layer one kind is well below one half.
"""
SCALED_BY = 0.02
"""A tensor that is its original times 1 +- 0.02 or more, in the same direction, was scaled, not trained.

Derivation: weight decay alone multiplies by (1 - lr * decay)^steps: 0.1 percent in 1000 steps with a
learning rate of 1e-5 and a decay of 0.1.
"""
SAME_DIRECTION_RESIDUAL = 2.0**-7
"""Residual, relative to the whole, below which a difference is one factor or one added constant.

Derivation: rounding to bfloat16 leaves at most 2^-8 (its unit roundoff) per element; twice that.
"""
COARSE_GRID_FACTOR = 1.5
"""The original holds more than so many times the distinct values of a grid on which the export lies.

Derivation: a grid of b bits gives at most 2^b distinct values a block; a block of the original with half as
many again is no such block itself, so something rounded it. It changes what a reason says, never an outcome.
"""
COARSE_GRID_ELEMENTS = 2**20
"""Elements of one tensor in which distinct values are counted. Source: 64 blocks of 128 x 128, a tenth of a
second to sort."""
COARSE_GRID_TENSORS = 8
"""Tensors looked at for a coarser grid, the largest ones. Source: a quantiser takes every large matrix."""
LARGEST_MATRIX_TRANSPOSED = 8192
"""Side of the largest square matrix that is looked at transposed (256 MiB in float32)."""
MERGE_ROUNDINGS = 3
"""Roundings of the update s*B*A to the export's dtype on its way into a merged weight.

Derivation: at most the product, its scaling and its cast are rounded to the working dtype before the sum is
rounded once: |found - (W + sBA)| <= u|W + sBA| + 3u|sBA| + (2u' + (r + 2)v) s|B||A|, with u the unit roundoff
of the export's dtype, v of float32 (r products are summed in it, blocked or not: Higham 2002, section 3.1),
and u' = u where the adapter is stored wider than the export and may be cast first, else 0. First order;
terms of second order are covered by MERGE_SLACK.
"""
MERGE_SLACK = 1.02
"""Factor on the merge bound for products of roundings: (1 + 2^-8)^4 < 1.016 for bfloat16."""
RELOAD_BYTES = 2 * 2**30
"""Weights up to this size are loaded for the reload; larger ones on the meta device: names and shapes."""
FULL_DIGEST_BYTES = 64 * 2**20
"""Files up to this size are evidence by the SHA-256 of all bytes, larger weight files by their header's.

Source: hashing costs more than comparing; the tensors themselves are compared bit for bit.
"""

# --- image: limits of the probe (never how it is judged) ----------------------------------------------------
PROBE_TIME_LIMIT_S = 300
"""A probe hashes one framework's files: half a second for 4,600 files of transformers 5.24 on a local disk,
two orders more on a cold network file system."""
PROBE_MAX_BYTES = 64 * 2**20
"""A probe's answer. Source: 0.6 MB for transformers 5.24 beside 45 distributions; a hundred times that."""
BYTECODE_BATCH = 200
"""Sources whose byte code one interpreter compares. Source: the 2,912 of transformers 5.24 take 6 s of one
core, so a batch takes 0.4 s: progress is seen, and starting an interpreter (20 ms) is a twentieth of it."""
BYTECODE_WORKERS = 8
"""Interpreters that compare byte code at once, at most: each holds one source's code objects."""
