"""How a packed weight, and a layer's four of them, lie in the arrays of numbers that compiled passes read."""

from __future__ import annotations

# A weight: five numbers from some index on.
DATA, SCALES, BIAS, PADDED_IN, TILES = range(5)
WEIGHT_FIELDS = 5

# A layer's line begins with four weights.
QKV, OUTPUT, GATE_UP, DOWN = (WEIGHT_FIELDS * i for i in range(4))
