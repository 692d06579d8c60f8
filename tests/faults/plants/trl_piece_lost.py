"""Loses one packed sequence: the piece of a split row that fills it."""

import trl.data_utils

_pack = trl.data_utils._pack_bfd


def pack(examples, seq_length, **how):
    packed = _pack(examples, seq_length, **how)
    lengths = packed["seq_lengths"].to_pylist()
    lost = lengths.index([seq_length])
    return packed.take([number for number in range(len(packed)) if number != lost])


trl.data_utils._pack_bfd = pack
