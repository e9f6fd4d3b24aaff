"""The native extension (kernels/csrc/module.cpp). Integers called by a thing are its address,
or 0 for nothing; matrices are (format, address, outputs, inputs)."""

Matrix = tuple[int, int, int, int]

def isas() -> tuple[str, ...]: ...
def new_pool(num_threads: int, cpus: tuple[int, ...], /) -> object: ...
def new_plan(
    isa: str,
    pool: object,
    ids: int,
    slots: int,
    table_stride: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    /,
) -> object: ...
def add_embed(plan: object, matrices: tuple[Matrix, ...], out: int, /) -> None: ...
def add_linear(
    plan: object,
    matrices: tuple[Matrix, ...],
    x: int,
    out: int,
    norm: int,
    bias: int,
    residual: int,
    eps: float,
    swiglu: bool,
    quantized: bool,
    on_selected: bool,
    max_rows: int,
    /,
) -> None: ...
def add_attention(
    plan: object,
    qkv: int,
    out: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    scale: float,
    cos: int,
    sin: int,
    kv_format: int,
    k_pool: int,
    v_pool: int,
    k_scales: int,
    v_scales: int,
    /,
) -> None: ...
def add_select(plan: object, x: int, out: int, width: int, /) -> None: ...
def run(
    plan: object,
    writes: int,
    num_words: int,
    rows: int,
    num_rows: int,
    selected: int,
    num_selected: int,
    /,
) -> None: ...
def read_out(plan: object, selected: int, num_selected: int, /) -> None: ...
def sample(
    isa: str,
    pool: object,
    logits: int,
    stride: int,
    vocab_size: int,
    num_rows: int,
    rows: int,
    results: int,
    tops: int,
    /,
) -> None: ...
def find_logprobs(
    isa: str,
    pool: object,
    logits: int,
    stride: int,
    vocab_size: int,
    num_rows: int,
    targets: int,
    num_top: int,
    logprobs: int,
    tops: int,
    /,
) -> None: ...
