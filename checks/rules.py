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
LOSS_WEIGHT_ROUNDING = 2**-22
"""Relative difference of two recorded loss weights that are the same. Derivation: each is recorded in float32
and may hold a common factor that was rounded to it: four roundings of 2^-24 at most."""
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
MAX_MODEL_RECORDS = 4_000_000
"""Lines of one rank's model.jsonl or fills.jsonl. Source: the largest mixtures of experts have 100,000
tensors expert by expert; a run records them at a handful of moments.
"""
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

# --- load ---------------------------------------------------------------------------------------------------
BUFFER_ULPS = 4
"""Units in the last place between a computed buffer (rotary frequencies) and the reference's.

Derivation: 1 / base^(2i/d) is one power and one division; vectorised powers are within 1 unit (SLEEF, u10)
and the division rounds within half a unit, on each of the two sides: 3 units, and one for the scaled
variants' product. Where float32 is rounded to 16 bits afterwards, the two are at most one unit of that apart.
Frequencies of another base, or of half the dimensions, are off by percents.
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

# --- optimizer step -----------------------------------------------------------------------------------------
SUMMATION_DEVIATIONS = 8.0
"""Rounding of a sum of n terms: at most 8 sqrt(n) units of the accumulator, relative to the magnitudes' sum.

Source: Higham and Mary 2019, *A new approach to probabilistic rounding error analysis*, theorem 2.4: with
rounding errors of mean zero the bound lambda sqrt(n) u fails with probability 2 exp(-lambda^2 / 2), 3e-14 for
8. The worst case n u would be 0.012 at a vocabulary of 200,000 and hide a mean taken per rank; blocked and
pairwise summation, which kernels use, stay below sqrt(n).
"""
SMALLEST_NORMAL = 2.0**-126
"""What may be lost where squares underflow: the smallest normal float32 and bfloat16 (IEEE 754-2019), since
hardware may flush what is smaller to zero."""
MAX_RECORD_LINES = 2_000_000
"""Lines of a step or model record. Source: a step's line each for the longest runs met, one million steps."""
MAX_STEP_ELEMENTS = 2**27
"""Elements of one recorded tensor that is read whole (1 GiB in float64)."""
LOGIT_ROUNDING = 8.0 * 2.0**7 * 2.0**-24
"""Relative rounding of a sum of exponentials over the vocabulary in float32: 6.1e-5.

Derivation: SUMMATION_DEVIATIONS * sqrt(V / 16) * u with V = 2^18, above every vocabulary met, and 16
partial sums, the fewest that a vectorised kernel keeps; u = 2^-24. Measured on 73 clean trainings (15
recipes, three or four seeds, one and two ranks): losses use at most 0.01 of the bound, token weights 0.0002
of it in float32 and 0.18 in bfloat16. A doubled, halved or missing token weight is 2,000 and, in bfloat16,
60 times outside.
"""
LARGEST_LOGSUMEXP = 2.0**8
"""Size that a logsumexp is taken to have where a fused head does not give it, for its float32 rounding: 3e-5.

Derivation: the exponential of 89 is no float32 any more; at 2^8 a softmax saturated long before.
"""
MAX_TOKEN_WEIGHT_ERROR = 0.25
"""A token whose weight rounding may change by more than a quarter says nothing of it and is left out.

Derivation: a quarter is half of what a halved weight changes.
"""
GRADIENT_DEVIATIONS = 4.0
"""Rounding of a weight's gradient, in root mean square units: 4 times sqrt(sum of squares) of

u ||S_k|| and u ||S_1 + ... + S_k|| for each micro-batch k (the product and its accumulation are rounded to
the coarser of the gradient's and the computation's dtype), u_g ||S|| for each rank (the reduction), and
2^-24 sqrt(n) sqrt(sum_t |g_t|^2 |x_t|^2) (the n positions summed in float32).

Derivation: each rounding is at most u, relative, and errors of different elements are of mean zero, so the
norm of their sum concentrates below the root of the squares' sum; 4 leaves room for errors that go
together. Measured on 73 clean trainings: at most 0.12 of the bound (1e-6 in float32, 0.03 in bfloat16); a
lost micro-batch, rank or zeroing is beside the gradient by 0.8 to 1.6 of it, 24 times the bound and more.
"""
NORM_ROUNDING = 4.0 * 2.0**13 * 2.0**-24
"""Relative rounding of a gradient norm in float32: 2e-3.

Derivation: half (a square root) of SUMMATION_DEVIATIONS * sqrt(n / 16) * u with n = 2^30 elements of one
gradient, u = 2^-24. Where gradients are narrower, torch rounds each gradient's norm, their norm and the
factor to that dtype: three units more. A norm that counts one of two equal ranks alone is off by 0.29.
Measured on 73 clean trainings: at most 0.0001 of the bound in float32 and 0.48 in bfloat16.
"""
CLIP_EPSILON = 1e-6
"""What ``torch.nn.utils.clip_grad_norm_`` adds to the norm that it divides by (its documentation, 2.13)."""
LEARNING_RATE_ROUNDING = 2.0**-22
"""Largest error of a learning rate, relative to the recipe's highest: schedules are computed in float64; a
rate that is kept in a float32 tensor is rounded to 2^-24 of itself."""
ADAPTER_SCALING = 0.02
"""Largest relative error of an adapter's measured scaling.

Derivation: it is the ratio of two gradients that autograd computed one from the other: one multiplication,
and under autocast a cast of each to bfloat16: at most 3 units of 2^-8 relative for each element. A rank or
alpha that is off by one in 32 changes it by 0.03.
"""
RUNNING_ERROR_SLACK = 2.0
"""Factor on the running error bound of an update (Higham 2002, section 3.3).

Derivation: the bound follows one order of operations to first order; kernels that fuse, split or reorder
them (single tensor, foreach, fused) round at most as often. The factor covers products of roundings and the
order. Measured on 73 clean trainings: states use at most 0.36 of the bound; parameters 0.75 of it and of
half a unit in the last place, which one rounding alone takes half of. Half an update in float32 lies 2,500
times outside or more in the median; in bfloat16 at a learning rate of 1e-3 it is outside at 31 percent of
the weights and rounds to the same elsewhere.
"""
MUON_FLOORS = 2.0
"""How far beside the recipe's direction a Muon update may lie, in floors F measured on the same matrix.

Derivation: F = ||bf16 - fp64|| / ||fp64|| of the Newton-Schulz iteration. Another kernel rounds elsewhere:
two independent roundings lie sqrt(2) F apart; a momentum buffer in bfloat16 adds one more rounding of the
input. Along the direction an error of norm F changes the length by at most F.
"""
BLIND_SHARE = 0.5
"""A bound on the length of an update that reaches one half would pass a halved update."""
LOST_UPDATES = 0.01
"""Largest share of weights that float32 arithmetic would move and that did not move.

Derivation: of float32 parameters none are lost, by definition. Adam moves every weight by about the same, so
a lost share s leaves sqrt(s) of the update's norm out: a tenth at one percent.
"""
