"""What the scanner's stages share: kinds of keys, ends of a scan, fields of an event, rows of the buffers."""

import numpy as np

# Kinds of a wanted key. Its entry in the table is kind + 256 * field.
INTEGER, NANOSECONDS, SHARE, SYMBOL, PHASE, CATEGORY, ARGUMENTS, SHAPES = range(8)
# How a scan ended.
END, CUT, ODD, FULL, REHASH, NEW_CATEGORY = range(6)
# Fields of an event, in the order of the scratch row.
FIELDS = (
    "phase", "category", "name", "start", "duration", "pid", "tid", "external_id", "external_id_before_1_12",
    "correlation", "device", "stream", "bytes", "occupancy", "sm_share", "collective", "in_nelems", "out_nelems",
    "group_size", "dtype", "group", "group_ranks", "group_desc", "seq", "peer",
)  # fmt: skip
# Classes of a category. Its entry is class + 16 * (activity or annotation).
UNSEEN, SKIPPED, IS_DEVICE, IS_LAUNCH, IS_HOST = -1, 0, 1, 2, 3
# The columns of the row buffers.
DEVICE_ROW = (
    "start", "duration", "name", "activity", "correlation", "external_id", "device", "stream", "bytes",
    "occupancy", "sm_share",
)  # fmt: skip
LAUNCH_ROW = ("start", "duration", "name", "thread", "correlation")
HOST_ROW = ("start", "duration", "name", "thread", "annotation", "external_id")
COLLECTIVE_ROW = ("row", *FIELDS[FIELDS.index("collective") :])
WIDTHS = (len(DEVICE_ROW), len(LAUNCH_ROW), len(HOST_ROW), len(COLLECTIVE_ROW), len(COLLECTIVE_ROW))
SLOTS = 128  # of each key table
SLOT_SHIFT = 57
SLOT_WORDS = 6


UNKNOWN = np.int64(np.iinfo(np.int64).min)
FIELD = {name: number for number, name in enumerate(FIELDS)}
# The scan's state between calls, by position in an array of int64.
AT_ENTRY, CUT_AT, KEYS, EVENT_MULTIPLIER, ARGUMENT_MULTIPLIER, CLASSES, CAPACITY, HAS_ESCAPES = range(8)
OUT, ROWS = 8, 14  # the first of the addresses and of the row counts of the row buffers
BEFORE = 19  # the first of the row counts before the last event
STATE = 24
SHAPES_SEEN = len(FIELDS) + 5  # in the scratch row: 1 if an operator had the dimensions of its inputs
SCRATCH = len(FIELDS) + 6  # after the fields: pid and tid as one key, the last pid, tid and thread, and the above
