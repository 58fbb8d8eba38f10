"""A whole pass of a decoder as one compiled function, run by all threads at once.

Every thread runs `run` with the same arguments. The pass is a row of phases (see `phases`); what a phase writes, the next
one reads. Per layer:

| phase | a task is | does |
| --- | --- | --- |
| begin | some rows | the layer before's output norm and taps; norm; prepare for q/k/v |
| q/k/v product | a tile, some rows | product + bias |
| place | some rows, a key head | norm and turn queries and keys; store keys and values in their pages |
| attend | queries of a sequence, a key head | attention |
| prepare | some rows | prepare for the output product |
| output product | a tile, some rows | product + bias, added to the hidden state |
| middle | some rows | norm after attention; norm; prepare for the MLP |
| gate and up product | a tile, some rows | product + bias, activation, gating |
| prepare | some rows | prepare for the down product |
| down product | a tile, some rows | product + bias, added to the hidden state |

and after the last one the final norm with its taps, and the head's product for the rows whose logits are wanted. Where a
layer norms its sublayers' outputs, these go to a buffer of their own first.

How tasks are cut and who does them makes no difference to any number: all work is on single rows (`rows`), or on products
and attention whose rows stand for themselves (`gemm`, `paged`).

Hidden states, queries, products and logits are float32 throughout.
"""

# The types of compiled functions are numba's business.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np
from numba import carray, types
from numba.extending import intrinsic

from draftproof.models.kernels.compiling import compiled
from draftproof.models.kernels.gemm import prepare, product_ahead, tile_bytes
from draftproof.models.kernels.launching import on_team
from draftproof.models.kernels.packing import PANEL, TILE
from draftproof.models.kernels.paged import (
    BLOCK,
    TOGETHER,
    _address,
    _extent,
    _first_page,
    _get,
    _narrow,
    _put,
    _size,
    attend_task,
)
from draftproof.models.kernels.phases import add_release, done_of, load_acquire, take, taken_of, wait
from draftproof.models.kernels.rows import (
    add,
    cap,
    copy_narrow,
    copy_wide,
    gate_gelu,
    gate_silu,
    norm,
    turn,
)
from draftproof.models.kernels.weight_fields import (
    BIAS,
    DATA,
    DOWN,
    GATE_UP,
    OUTPUT,
    PADDED_IN,
    QKV,
    SCALES,
    TILES,
    WEIGHT_FIELDS,
)

# A layer's line: four weights, then addresses of norms (0 for none), then numbers.
(
    ATTENTION_NORM,
    MLP_NORM,
    AFTER_ATTENTION_NORM,
    AFTER_MLP_NORM,
    QUERY_NORM,
    KEY_NORM,
    WINDOW,
    ROPE,
) = range(4 * WEIGHT_FIELDS, 4 * WEIGHT_FIELDS + 8)
LAYER_FIELDS = 4 * WEIGHT_FIELDS + 8

# The model's own numbers.
(
    HIDDEN,
    INNER,
    HEADS,
    KV_HEADS,
    HEAD_DIM,
    KEY_WIDTH,
    VOCAB,
    ACTIVATION,
    EMBEDDING,
    FINAL_NORM,
) = range(10)
HEAD = 10
MODEL_FIELDS = HEAD + WEIGHT_FIELDS
# The model's own measures, float64.
EPSILON, EMBEDDING_SCALE, SCALING, FINAL_SOFTCAP = range(4)
REAL_FIELDS = 4

# What a pass works in: addresses.
(
    STATE,
    BRANCH,
    PROJECTED,
    MIXED,
    GATED,
    VALUES,
    VALUE_SCALES,
    VALUE_SUMS,
    LOGITS,
    FEATURES,
) = range(10)
PASS_FIELDS = 10

# A row: token, position, index among the wanted rows or -1, span.
TOKEN, POSITION, LOGIT_ROW, SPAN = range(4)
ROW_FIELDS = 4
# A span: as in `PagePlan`, then the storage its sequence lies in.
FIRST_ROW, COUNT, START, TABLE, STORAGE = range(5)
SPAN_FIELDS = 5
# A storage's layer: where keys and values begin, and numbers from page to page.
KEYS, PAGE_VALUES, PAGE_STRIDE = range(3)

# A call: addresses, and how much lies there.
(
    COUNTERS,
    MODEL,
    REALS,
    LAYERS,
    NUM_LAYERS,
    OWN,
    ROWS,
    NUM_ROWS,
    TAPS,
    NUM_TAPS,
    SPANS,
    NUM_SPANS,
    TABLES,
    NUM_TABLES,
    TASKS,
    NUM_TASKS,
    STORAGES,
    NUM_STORAGES,
    ROPES,
    NUM_ROPES,
    NUM_WANTED,
) = range(21)
CALL_FIELDS = 21

LAYER_PHASES = 10
END_PHASES = 2

ADDING, STORING, GATING = range(3)
"""What becomes of a product: it is added to a buffer, stored, or two halves are gated into one."""

_ROWS_AT_ONCE = 96
"""Rows of one product task at most: so many prepared rows and a tile fit a core's own cache."""
_FEW_ROWS = 32
_STREAM = 49152
"""Bytes of weights that a thread reads in one go when rows are few: memory is fastest in long stretches."""
_LEAST_TASKS = 16
"""Into so many tasks a product is cut at least, so that threads finish together."""


def _array_at(entry):
    """Makes the function that gives the pointer for an address."""

    @intrinsic
    def pointer(context, address):
        def generate(context, builder, signature, arguments):
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return types.CPointer(entry)(types.int64), generate

    return pointer


_numbers_at, _measures_at = _array_at(types.int64), _array_at(types.float64)


@intrinsic
def _stored(context, kind):
    """A zero of the type that goes with a weight's: float32 for float32, else uint16, for bfloat16."""
    result = types.float32 if kind == types.float32 else types.uint16

    def generate(context, builder, signature, arguments):
        return context.get_constant(signature.return_type, 0)

    return result(kind), generate


def phases_of(layers: int) -> int:
    """Phases of a pass."""
    return layers * LAYER_PHASES + END_PHASES


@compiled()
def _rows_of_task(rows):
    """Rows that one task of row work takes."""
    return 1 if rows <= _FEW_ROWS else 4


@compiled()
def _chunk(rows):
    """Rows of one product task: equal parts of at most `_ROWS_AT_ONCE`."""
    parts = (rows + _ROWS_AT_ONCE - 1) // _ROWS_AT_ONCE
    return (rows + parts - 1) // parts


@compiled()
def linear(
    counters, phase, fields, at, own, rows, out, stride, columns, use, activation, softcap, room, kind
):
    """A product of all prepared rows with a weight.

    Args:
        counters, phase: whose tasks to take.
        fields, at: the weight is at ``fields[at : at + WEIGHT_FIELDS]``.
        own: the pass's addresses.
        rows: prepared rows.
        out, stride, columns: float32 ``[rows, stride]`` that receives the product, `columns` of them.
        use: `ADDING`, `STORING` or `GATING`; gating halves the columns.
        activation: of the gate.
        softcap: on what is stored; 0 for none.
        room: float32 array ``[chunk, TILE]`` of this thread's own.
        kind: of the weight.
    """
    taken, done = taken_of(counters, phase), done_of(counters, phase)
    padded_in, tiles = fields[at + PADDED_IN], fields[at + TILES]
    size, chunk = tile_bytes(padded_in, kind), _chunk(rows)
    together = 1
    if rows <= _FEW_ROWS:
        together = max(1, min(_STREAM // size, tiles // _LEAST_TASKS))
    groups = (tiles + together - 1) // together
    tasks = groups * ((rows + chunk - 1) // chunk)
    while True:
        task = take(taken)
        if task >= tasks:
            break
        first, tile = task // groups * chunk, task % groups * together
        count, end = min(chunk, rows - first), min(tiles, tile + together)
        while tile < end:
            ahead = tile + 1
            if ahead == end:
                # What this thread would get if it asked now, to be fetched from memory meanwhile.
                ahead = load_acquire(taken) % groups * together
            ahead = fields[at + DATA] + ahead * size
            _tile(
                fields,
                at,
                own,
                tile,
                first,
                count,
                out,
                stride,
                columns,
                use,
                activation,
                softcap,
                room,
                ahead,
                kind,
            )
            tile += 1
        add_release(done, 1)
    wait(done, tasks)


@compiled()
def _tile(
    fields, at, own, tile, first, count, out, stride, columns, use, activation, softcap, room, ahead, kind
):
    """One tile's product for `count` rows from `first` on; `ahead` is the address of the tile that comes next."""
    buffer = _address(room)
    values, scales, sums = own[VALUES], own[VALUE_SCALES], own[VALUE_SUMS]
    data, weight_scales, bias = fields[at + DATA], fields[at + SCALES], fields[at + BIAS]
    width = min(TILE, columns - tile * TILE)
    there, step = out + (first * stride + tile * TILE) * 4, stride
    straight = use == STORING and width == TILE
    if not straight:
        there, step = buffer, TILE
    product_ahead(
        data,
        weight_scales,
        fields[at + PADDED_IN],
        tile,
        values,
        scales,
        sums,
        first,
        count,
        there,
        step,
        ahead,
        kind,
    )
    for r in range(count):
        row = there + r * step * 4
        if bias != 0:
            add(row, bias + tile * TILE * 4, TILE // PANEL)
        if softcap > 0.0:
            cap(row, TILE // PANEL, np.float32(softcap))
        if use == GATING:
            to = out + ((first + r) * stride + tile * PANEL) * 4
            if activation == 0:
                gate_silu(row, row + PANEL * 4, to)
            else:
                gate_gelu(row, row + PANEL * 4, to)
        elif use == ADDING:
            add(out + ((first + r) * stride + tile * TILE) * 4, row, TILE // PANEL)
        elif not straight:
            for i in range(width):
                _put(out, (first + r) * stride + tile * TILE + i, _get(row, i, np.float32(0)))


@compiled()
def _begin(counters, phase, layer, model, reals, layers, own, rows, taps, stride, kind, half):
    """Look up the embeddings, or finish the layer before; then norm and prepare.

    `layer` may be the number of layers: then the norm is the final one, and only wanted rows are prepared.
    """
    taken, done = taken_of(counters, phase), done_of(counters, phase)
    count, step = rows.shape[0], _rows_of_task(rows.shape[0])
    tasks = (count + step - 1) // step
    hidden, last = model[HIDDEN], layer == layers.shape[0]
    epsilon, width = reals[EPSILON], taps.shape[0] * hidden
    norm_at = model[FINAL_NORM] if last else layers[layer, ATTENTION_NORM]
    padded_in = model[HEAD + PADDED_IN] if last else layers[layer, QKV + PADDED_IN]
    while True:
        task = take(taken)
        if task >= tasks:
            break
        for r in range(task * step, min(count, (task + 1) * step)):
            state, branch = own[STATE] + r * stride * 4, own[BRANCH] + r * stride * 4
            if layer == 0:
                source = model[EMBEDDING] + rows[r, TOKEN] * hidden * _size(half)
                copy_wide(source, state, hidden, np.float32(reals[EMBEDDING_SCALE]), half)
                for i in range(hidden, stride):
                    _put(state, i, np.float32(0))
            elif layers[layer - 1, AFTER_MLP_NORM] != 0:
                norm(branch, layers[layer - 1, AFTER_MLP_NORM], branch, hidden, epsilon)
                add(state, branch, stride // PANEL)
            # The last layer's output counts after the final norm.
            normed = branch
            norm(state, norm_at, normed, hidden, epsilon)
            for tap in range(taps.shape[0]):
                if layer > 0 and taps[tap] == layer - 1:
                    there = own[FEATURES] + (r * width + tap * hidden) * _size(half)
                    copy_narrow(normed if last else state, there, hidden, half)
            to = rows[r, LOGIT_ROW] if last else r
            if to >= 0:
                prepare(normed, hidden, padded_in, own[VALUES], own[VALUE_SCALES], own[VALUE_SUMS], to, kind)
        add_release(done, 1)
    wait(done, tasks)


@compiled()
def _middle(counters, phase, layer, model, reals, layers, own, count, stride, kind):
    """Finish the attention's output; then norm and prepare for the MLP."""
    taken, done = taken_of(counters, phase), done_of(counters, phase)
    step = _rows_of_task(count)
    tasks = (count + step - 1) // step
    hidden, epsilon = model[HIDDEN], reals[EPSILON]
    while True:
        task = take(taken)
        if task >= tasks:
            break
        for r in range(task * step, min(count, (task + 1) * step)):
            state, branch = own[STATE] + r * stride * 4, own[BRANCH] + r * stride * 4
            if layers[layer, AFTER_ATTENTION_NORM] != 0:
                norm(branch, layers[layer, AFTER_ATTENTION_NORM], branch, hidden, epsilon)
                add(state, branch, stride // PANEL)
            norm(state, layers[layer, MLP_NORM], branch, hidden, epsilon)
            padded_in = layers[layer, GATE_UP + PADDED_IN]
            prepare(branch, hidden, padded_in, own[VALUES], own[VALUE_SCALES], own[VALUE_SUMS], r, kind)
        add_release(done, 1)
    wait(done, tasks)


@compiled()
def _prepare_all(counters, phase, source, stride, width, padded_in, own, count, kind):
    """Prepare all rows of a buffer."""
    taken, done = taken_of(counters, phase), done_of(counters, phase)
    step = _rows_of_task(count)
    tasks = (count + step - 1) // step
    while True:
        task = take(taken)
        if task >= tasks:
            break
        for r in range(task * step, min(count, (task + 1) * step)):
            row = source + r * stride * 4
            prepare(row, width, padded_in, own[VALUES], own[VALUE_SCALES], own[VALUE_SUMS], r, kind)
        add_release(done, 1)
    wait(done, tasks)


@compiled()
def _place(
    counters, phase, layer, model, reals, layers, own, rows, spans, tables, storages, ropes, stride, half
):
    """Norm and turn queries and keys, in place; store keys and values."""
    taken, done = taken_of(counters, phase), done_of(counters, phase)
    kv_heads, dim, key_width = model[KV_HEADS], model[HEAD_DIM], model[KEY_WIDTH]
    group, epsilon = model[HEADS] // kv_heads, reals[EPSILON]
    count, step = rows.shape[0], _rows_of_task(rows.shape[0])
    tasks = (count + step - 1) // step * kv_heads
    query_norm, key_norm = layers[layer, QUERY_NORM], layers[layer, KEY_NORM]
    rope = ropes[layers[layer, ROPE]]
    while True:
        task = take(taken)
        if task >= tasks:
            break
        head, first = task % kv_heads, task // kv_heads * step
        for r in range(first, min(count, first + step)):
            position, span = rows[r, POSITION], rows[r, SPAN]
            angles = rope + position * dim * 4
            row = own[PROJECTED] + r * stride * 4
            for h in range(head * group, (head + 1) * group):
                query = row + h * dim * 4
                if query_norm != 0:
                    norm(query, query_norm, query, dim, epsilon)
                turn(query, dim // 2, angles)
            key = row + (model[HEADS] + head) * dim * 4
            value = key + kv_heads * dim * 4
            if key_norm != 0:
                norm(key, key_norm, key, dim, epsilon)
            turn(key, dim // 2, angles)
            place = storages[spans[span, STORAGE], layer]
            page = tables[spans[span, TABLE] + position // BLOCK] * place[PAGE_STRIDE]
            offset, page_head = position % BLOCK, page + head * key_width * BLOCK
            for d in range(dim):
                number = _get(key, d, np.float32(0))
                _put(place[KEYS], page_head + d * BLOCK + offset, _narrow(number, half))
            there = place[PAGE_VALUES] + (page_head + offset * key_width) * _size(half)
            copy_narrow(value, there, dim, half)
        add_release(done, 1)
    wait(done, tasks)


@compiled()
def _attend(
    counters,
    phase,
    layer,
    model,
    reals,
    layers,
    own,
    spans,
    tables,
    tasks,
    storages,
    stride,
    queries,
    mixed,
    states,
    scores,
    half,
):
    taken, done = taken_of(counters, phase), done_of(counters, phase)
    kv_heads, dim, width = model[KV_HEADS], model[HEAD_DIM], model[KEY_WIDTH]
    group, window = model[HEADS] // kv_heads, layers[layer, WINDOW]
    count = tasks.shape[0] * kv_heads
    upcoming = take(taken)
    while upcoming < count:
        # One task is held in advance, so that its first block can be fetched while the last of this one is worked on.
        task, head, upcoming = upcoming // kv_heads, upcoming % kv_heads, take(taken)
        span, row, first_query, last_query = _extent(spans, tasks, task)
        next_task, next_head = task, head
        if upcoming < count:
            next_task, next_head = upcoming // kv_heads, upcoming % kv_heads
        place = storages[spans[span, STORAGE], layer]
        next_place = storages[spans[tasks[next_task, 0], STORAGE], layer]
        following = _first_page(spans, tables, tasks, next_task, window) * next_place[PAGE_STRIDE]
        following = (following + next_head * width * BLOCK) * _size(half)
        attend_task(
            row,
            first_query,
            last_query,
            head,
            tables[spans[span, TABLE] :],
            own[PROJECTED],
            dim,
            stride,
            own[MIXED],
            place[KEYS],
            place[PAGE_VALUES],
            place[PAGE_STRIDE],
            next_place[KEYS] + following,
            next_place[PAGE_VALUES] + following,
            kv_heads,
            group,
            dim,
            width,
            dim,
            width,
            reals[SCALING],
            window,
            0.0,
            0,
            queries,
            mixed,
            states,
            scores,
            np.float32(0),
            half,
        )
        add_release(done, 1)
    wait(done, count)


@compiled()
def run(
    counters,
    model,
    reals,
    layers,
    own,
    rows,
    taps,
    spans,
    tables,
    tasks,
    storages,
    ropes,
    wanted,
    kind,
    head_kind,
):
    """One pass. Every thread calls this with the same arguments; it returns when the pass is over.

    Args:
        counters: address of int64 zeros ``[phases_of(layers), 16]``.
        model, reals: int64 ``[MODEL_FIELDS]`` and float64 ``[4]``: the model's numbers.
        layers: int64 ``[layers, LAYER_FIELDS]``.
        own: int64 ``[PASS_FIELDS]``: addresses of what the pass works in and writes.
        rows: int64 ``[rows, ROW_FIELDS]``.
        taps: int64 ``[taps]``: layers whose outputs are features, in order.
        spans: int64 ``[spans, SPAN_FIELDS]``.
        tables: int64, the page numbers of all sequences, one after the other.
        tasks: int64 ``[tasks, 3]``: how attention is cut, see `cut_tasks`.
        storages: int64 ``[storages, layers, 3]``.
        ropes: int64: where each table of cos and sin begins.
        wanted: rows whose logits are wanted.
        kind, head_kind: of the layers' weights and of the head's.

    Embedding, pages and features are float32 when the layers' weights are, else bfloat16.
    """
    half = _stored(kind)
    count = rows.shape[0]
    group = model[HEADS] // model[KV_HEADS]
    most = 0
    for task in range(tasks.shape[0]):
        most = max(most, (tasks[task, 2] - tasks[task, 1]) * group)
    queries = np.empty((most, model[HEAD_DIM]), np.float32)
    mixed = np.empty((most, model[KEY_WIDTH]), np.float32)
    states = np.empty((most, 3), np.float32)
    scores = np.empty((TOGETHER, BLOCK), np.float32)
    buffer = np.empty((_ROWS_AT_ONCE, TILE), np.float32)
    activation, hidden = model[ACTIVATION], model[HIDDEN]
    stride = (hidden + TILE - 1) // TILE * TILE
    head_width = model[HEADS] * model[HEAD_DIM]
    for layer in range(layers.shape[0]):
        line, phase = layers[layer], layer * LAYER_PHASES
        projected = line[QKV + TILES] * TILE
        _begin(counters, phase, layer, model, reals, layers, own, rows, taps, stride, kind, half)
        linear(
            counters, phase + 1, line, QKV, own, count, own[PROJECTED], projected, projected,
            STORING, activation, 0.0, buffer, kind,
        )  # fmt: skip
        _place(
            counters, phase + 2, layer, model, reals, layers, own, rows, spans, tables, storages, ropes,
            projected, half,
        )  # fmt: skip
        _attend(
            counters, phase + 3, layer, model, reals, layers, own, spans, tables, tasks, storages,
            projected, queries, mixed, states, scores, half,
        )  # fmt: skip
        _prepare_all(
            counters,
            phase + 4,
            own[MIXED],
            head_width,
            head_width,
            line[OUTPUT + PADDED_IN],
            own,
            count,
            kind,
        )
        normed = line[AFTER_ATTENTION_NORM] != 0
        linear(
            counters, phase + 5, line, OUTPUT, own, count, own[BRANCH] if normed else own[STATE], stride, stride,
            STORING if normed else ADDING, activation, 0.0, buffer, kind,
        )  # fmt: skip
        _middle(counters, phase + 6, layer, model, reals, layers, own, count, stride, kind)
        inner = line[DOWN + PADDED_IN]
        linear(
            counters, phase + 7, line, GATE_UP, own, count, own[GATED], inner, line[GATE_UP + TILES] * TILE,
            GATING, activation, 0.0, buffer, kind,
        )  # fmt: skip
        _prepare_all(counters, phase + 8, own[GATED], inner, model[INNER], inner, own, count, kind)
        normed = line[AFTER_MLP_NORM] != 0
        linear(
            counters, phase + 9, line, DOWN, own, count, own[BRANCH] if normed else own[STATE], stride, stride,
            STORING if normed else ADDING, activation, 0.0, buffer, kind,
        )  # fmt: skip
    phase = layers.shape[0] * LAYER_PHASES
    _begin(counters, phase, layers.shape[0], model, reals, layers, own, rows, taps, stride, head_kind, half)
    if wanted > 0:
        _head(counters, phase + 1, model, own, wanted, reals[FINAL_SOFTCAP], buffer, head_kind)


@compiled()
def _head(counters, phase, model, own, wanted, softcap, buffer, kind):
    vocab = model[VOCAB]
    linear(
        counters,
        phase,
        model,
        HEAD,
        own,
        wanted,
        own[LOGITS],
        vocab,
        vocab,
        STORING,
        0,
        softcap,
        buffer,
        kind,
    )


@compiled()
def _run_at(call, kind, head_kind):
    """`run` with the arguments that lie at an address, see `COUNTERS` and what follows."""
    at = carray(_numbers_at(call), (CALL_FIELDS,))
    count = at[NUM_LAYERS]
    run(
        at[COUNTERS],
        carray(_numbers_at(at[MODEL]), (MODEL_FIELDS,)),
        carray(_measures_at(at[REALS]), (REAL_FIELDS,)),
        carray(_numbers_at(at[LAYERS]), (count, LAYER_FIELDS)),
        carray(_numbers_at(at[OWN]), (PASS_FIELDS,)),
        carray(_numbers_at(at[ROWS]), (at[NUM_ROWS], ROW_FIELDS)),
        carray(_numbers_at(at[TAPS]), (at[NUM_TAPS],)),
        carray(_numbers_at(at[SPANS]), (at[NUM_SPANS], SPAN_FIELDS)),
        carray(_numbers_at(at[TABLES]), (at[NUM_TABLES],)),
        carray(_numbers_at(at[TASKS]), (at[NUM_TASKS], 3)),
        carray(_numbers_at(at[STORAGES]), (at[NUM_STORAGES], count, 3)),
        carray(_numbers_at(at[ROPES]), (at[NUM_ROPES],)),
        at[NUM_WANTED],
        kind,
        head_kind,
    )


@compiled()
def _head_at(call, kind, head_kind):
    """The bare LM head: logits of the float32 rows at `ROWS`, ``model[HIDDEN]`` wide. The address is as for `_run_at`."""
    at = carray(_numbers_at(call), (CALL_FIELDS,))
    model = carray(_numbers_at(at[MODEL]), (MODEL_FIELDS,))
    own = carray(_numbers_at(at[OWN]), (PASS_FIELDS,))
    room = np.empty((_ROWS_AT_ONCE, TILE), np.float32)
    rows, width = at[NUM_ROWS], model[HIDDEN]
    _prepare_all(at[COUNTERS], 0, at[ROWS], width, width, model[HEAD + PADDED_IN], own, rows, head_kind)
    _head(at[COUNTERS], 1, model, own, rows, 0.0, room, head_kind)


_team_run, _team_head = on_team(_run_at), on_team(_head_at)


@compiled()
def start_run(enter, threads, call, kind, head_kind):
    """`run` on a team of threads; see `launching`."""
    _team_run(enter, threads, call, kind, head_kind)


@compiled()
def start_head(enter, threads, call, kind, head_kind):
    """The LM head alone on a team of threads; see `launching`."""
    _team_head(enter, threads, call, kind, head_kind)
