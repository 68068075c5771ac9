"""Wrong decode kernels."""

from __future__ import annotations

from tests.ascend_kernels.mutants import OVERLAP, VALUES, Mutant


def decode(name: str, caught: str, *edits: tuple[str, str], file: str = "decode.cpp") -> Mutant:
    return Mutant("decode", name, caught, file, edits)


MUTANTS = [
    # Order between pipes.
    decode(
        "the sink's rows are stored without waiting for their load",
        "order: MTE3 reads the block",
        ("      queue_.EnQue(local);\n      local = queue_.DeQue<uint8_t>();\n", ""),
        file="page.h",
    ),
    decode(
        "values are handed to the store before they are computed",
        "order: MTE3 reads the block",
        (
            "      reconstruct(out, coarse,",
            "      out_.EnQue(out);\n      out = out_.template DeQue<T>();\n      reconstruct(out, coarse,",
        ),
        (
            "      out_.EnQue(out);\n      store(tile, row, rows);",
            "      store(tile, row, rows, out.template ReinterpretCast<uint8_t>());",
        ),
        (
            "int32_t row, int32_t rows) {\n    LocalTensor<uint8_t> out = out_.template DeQue<uint8_t>();",
            "int32_t row, int32_t rows, LocalTensor<uint8_t> out) {",
        ),
    ),
    decode(
        "metadata is kept in a buffer that no queue hands over",
        "order: MTE2 writes the block",
        ("anchor_codes_, residual_codes_, metadata_;", "anchor_codes_, residual_codes_;"),
        (
            "AscendC::TBuf<TPosition::VECCALC> values_",
            "AscendC::TBuf<TPosition::VECIN> metadata_;\n  AscendC::TBuf<TPosition::VECCALC> values_",
        ),
        ("pipe.InitBuffer(metadata_, 2, kMetadataBytes)", "pipe.InitBuffer(metadata_, kMetadataBytes)"),
        ("metadata_.template AllocTensor<uint8_t>()", "metadata_.template Get<uint8_t>()"),
        ("    metadata_.EnQue(metadata);\n", ""),
        ("metadata_.template DeQue<uint8_t>()", "metadata_.template Get<uint8_t>()"),
        ("    metadata_.FreeTensor(metadata);\n", ""),
    ),
    # Queues.
    decode(
        "anchor codes are freed early",
        "use: the tensor was freed",
        ("    anchor_codes_.FreeTensor(anchor);\n", ""),
        ("    for (int32_t row = tile.row;", "    anchor_codes_.FreeTensor(anchor);\n    for (int32_t row = tile.row;"),
    ),
    decode(
        "values are freed before they are stored",
        "use: the tensor was freed",
        ("    out_.FreeTensor(out);\n", ""),
        ("    const int32_t token = t_.start +", "    out_.FreeTensor(out);\n    const int32_t token = t_.start +"),
    ),
    decode(
        "metadata is loaded after it was enqueued",
        "use: the tensor is in a queue",
        ("    metadata_.EnQue(metadata);\n", ""),
        ("    load_rows(metadata[kSigma]", "    metadata_.EnQue(metadata);\n    load_rows(metadata[kSigma]"),
    ),
    decode(
        "residual codes are not enqueued", "queue: the queue is empty", ("      residual_codes_.EnQue(residual);\n", "")
    ),
    decode(
        "metadata is not freed",
        "queue: none of the queue's 2 buffers is free",
        ("    metadata_.FreeTensor(metadata);\n", ""),
    ),
    decode(
        "residual codes go back to the anchor's queue",
        "queue: the tensor is not of this queue",
        ("residual_codes_.FreeTensor(residual)", "anchor_codes_.FreeTensor(residual)"),
    ),
    decode(
        "anchor codes are freed twice",
        "queue: the tensor was freed",
        (
            "    anchor_codes_.FreeTensor(anchor);\n",
            "    anchor_codes_.FreeTensor(anchor);\n    anchor_codes_.FreeTensor(anchor);\n",
        ),
    ),
    decode(
        "a part of the metadata is enqueued",
        "queue: not the tensor that AllocTensor gave",
        ("metadata_.EnQue(metadata);", "metadata_.EnQue(metadata[kLane]);"),
    ),
    decode(
        "the next tile is loaded into one buffer",
        "queue: none of the queue's 1 buffers is free",
        ("pipe.InitBuffer(anchor_codes_, 2, kCodeBytes)", "pipe.InitBuffer(anchor_codes_, 1, kCodeBytes)"),
    ),
    decode(
        "levels are not freed",
        "leak: a tensor of a queue was not freed",
        ("    if (t_.companded || t_.quarter) table_.FreeTensor(table);\n", ""),
    ),
    decode(
        "a tile behind the last is loaded",
        "leak: a tensor was left in a queue",
        ("      if (following.rows) load(following);\n", "      load(following);\n"),
    ),
    decode(
        "eight buffers of codes",
        "events: ",
        ("pipe.InitBuffer(anchor_codes_, 2, kCodeBytes)", "pipe.InitBuffer(anchor_codes_, 6, kCodeBytes / 2)"),
    ),
    # Memory.
    decode(
        "a buffer is not initialised",
        "use: TBuf used before TPipe::InitBuffer",
        ("    pipe.InitBuffer(offsets_, kElements * 4);\n", ""),
    ),
    decode(
        "more UB than there is",
        "capacity: ",
        ("pipe.InitBuffer(values_, kElements * 4)", "pipe.InitBuffer(values_, kElements * 4 * 2)"),
    ),
    decode(
        "codes are unpacked behind the end of a buffer",
        "bounds: reaches UB byte",
        ("RoundMode::CAST_NONE, n);\n    return nibbles;", "RoundMode::CAST_NONE, 2 * n);\n    return nibbles;"),
    ),
    decode(
        "a load behind the end of a buffer",
        r"bounds: \d+ bytes of UB",
        (
            "static constexpr int32_t kCodeBytes = kDecodeChunks * kElements / 2;",
            "static constexpr int32_t kCodeBytes = kElements / 2;",
        ),
    ),
    decode(
        "centres are not on a block",
        "align: UB byte",
        ("center = parameters[Gamma::kParts * kDecodeLanes]", "center = parameters[Gamma::kParts * kDecodeLanes + 4]"),
    ),
    decode("levels are loaded between blocks", "align: UB byte", ("kHalf = 8 * 4, kRow", "kHalf = 4 * 4, kRow")),
    decode(
        "the page's maxima are not loaded",
        "undefined: reads UB byte",
        (
            "    load_rows(metadata[kLane], payload[page.gamma_max + tile.lane * wide], 1, tile.lanes * wide,\n"
            "              tile.lanes * wide);\n",
            "",
        ),
    ),
    decode(
        "a row of metadata too few",
        "undefined: reads UB byte",
        (
            "load_rows(metadata[kSigma], payload[page.sigma + lane * scalar], tile.chunks,",
            "load_rows(metadata[kSigma], payload[page.sigma + lane * scalar], tile.chunks - 1,",
        ),
    ),
    decode(
        "the last slice is as wide as the others", "cores: ", ("smaller(t_.lanes, t_.channels - tile.lane)", "t_.lanes")
    ),
    decode(
        "the last page is as long as the others",
        "bounds: GM",
        ("tokens = smaller(t.page, t.tokens - index * t.page)", "tokens = t.page"),
        file="page.h",
    ),
    decode(
        "cores do the same tiles", "cores: GM byte", ("Tile tile = next(AscendC::GetBlockIdx())", "Tile tile = next(0)")
    ),
    decode(
        "cores copy the same rows of the sink",
        "cores: GM byte",
        ("for (int32_t i = AscendC::GetBlockIdx(); i < total;", "for (int32_t i = 0; i < total;"),
        file="page.h",
    ),
    decode(
        "values are stored from a buffer of the vector unit",
        "position: VECCALC -> GM",
        (
            "store_tokens(t_, out, cache_,",
            "LocalTensor<uint8_t> direct = values_.template Get<uint8_t>();\n    store_tokens(t_, direct, cache_,",
        ),
    ),
    # Instructions.
    decode(
        "a cast that A2 does not have, uint8 to float",
        "cast: uint8_t -> float",
        ("      Cast(step, narrow, RoundMode::CAST_NONE, n);\n", "      Cast(step, sigma, RoundMode::CAST_NONE, n);\n"),
    ),
    decode(
        "a rounding that A2 does not have",
        r"cast: .* is not in A2's table",
        ("Cast(out, values, RoundMode::CAST_RINT, n)", "Cast(out, values, RoundMode::CAST_NONE, n)"),
    ),
    decode(
        "a mask of more lanes than a repeat has",
        "range: mask",
        (
            "Mul(values[lane], values[lane], step[lane], kLanes,",
            "Mul(values[lane], values[lane], step[lane], 2 * kLanes,",
        ),
    ),
    decode(
        "a stride in elements",
        "range: dstRepStride",
        ("const uint8_t pitch = lanes / 8;", "const int32_t pitch = 2 * lanes;"),
    ),
    decode(
        "nibbles are widened in place",
        "overlap: source and destination overlap in part",
        ("coarse = out.template ReinterpretCast<half>()", "coarse = values_.template Get<half>()"),
    ),
    decode(
        "levels are gathered over their offsets",
        "overlap: operands overlap that must be apart",
        ("offsets_.template Get<int32_t>()", "values.template ReinterpretCast<int32_t>()"),
    ),
    decode(
        "a flag by hand",
        "flag: queues between",
        (
            "      compute(tile, table);\n",
            "      AscendC::SetFlag<AscendC::HardEvent::MTE2_V>(0);\n"
            "      AscendC::WaitFlag<AscendC::HardEvent::MTE2_V>(0);\n"
            "      compute(tile, table);\n",
        ),
    ),
    # Wrong in values only.
    decode(
        "values are rounded down",
        VALUES,
        ("Cast(out, values, RoundMode::CAST_RINT, n)", "Cast(out, values, RoundMode::CAST_FLOOR, n)"),
    ),
    decode(
        "ties are rounded away from zero",
        VALUES,
        ("Cast(out, values, RoundMode::CAST_RINT, n)", "Cast(out, values, RoundMode::CAST_ROUND, n)"),
    ),
    decode("indices are not clamped", VALUES, ("      Maxs(coarse, coarse, (half)-7.5f, n);\n", "")),
    decode("the table is not permuted", VALUES, ("(1 - a) * kHalf]", "a * kHalf]")),
    decode("every chunk has the first one's scale", VALUES, ("step[at], rows, tile.lanes", "step, rows, tile.lanes")),
    decode("scales leave no room at the ends", VALUES, ("  Min(scale, scale, room, n);\n", ""), file="metadata.h"),
    decode(
        "centres are not clamped to the page's range",
        VALUES,
        ("    Min(part, part, gamma.high, kLanes, gamma.groups, gamma.each());\n", ""),
        file="metadata.h",
    ),
    decode(
        "the step is rounded once more",
        VALUES,
        (
            "      Mul(values[lane], values[lane], step[lane], kLanes, rows, down);\n",
            "      Mul(values[lane], values[lane], step[lane], kLanes, rows, down);\n"
            "      Cast(out, values, RoundMode::CAST_RINT, n);\n"
            "      Cast(values, out, RoundMode::CAST_NONE, n);\n",
        ),
    ),
    decode(
        "tokens before the first wanted are written",
        VALUES,
        ("larger(page.sink_rows, t_.first - page.first_token)", "page.sink_rows"),
    ),
    decode(
        "a run of rows crosses the end of a block",
        "cores: GM byte",
        ("smaller(rows, t.block_size - row)}", "rows}"),
        file="page.h",
    ),
    # The same in codec pair.
    decode(
        "levels of pairs are not clamped",
        VALUES,
        ("      Max(level[lane], level[lane], least_[lane], count, rows, down);\n", ""),
        file="pair_decoder.h",
    ),
    decode(
        "both channels of a pair have the first one's steps",
        VALUES,
        ("Muls(gap_[quarter_], power_, (half)8.0f,", "Muls(gap_[quarter_], up_, (half)8.0f,"),
        file="pair_decoder.h",
    ),
    decode(
        "the second channel's share of the residual is the first one's",
        VALUES,
        ("mask(bytes[3 * m], residual, low_, rows)", "mask(bytes[3 * m], residual, high_, rows)"),
        file="pair_decoder.h",
    ),
    decode(
        "a last odd row has no levels",
        "undefined: reads UB byte",
        ("      if (left)\n", "      if (left > 1)\n"),
        file="pair_decoder.h",
    ),
    decode(
        "all slices have the first one's widths",
        VALUES,
        ("payload[page.widths + tile.lane / 4]", "payload[page.widths]"),
    ),
    decode(
        "a width has no entry in the table of steps",
        "undefined: reads UB byte",
        ("bits < kMostBits", "bits + 1 < kMostBits"),
        file="pair_decoder.h",
    ),
    # Right values, but no overlap.
    decode(
        "one buffer of anchor codes, loaded when the one before is done",
        OVERLAP,
        ("pipe.InitBuffer(anchor_codes_, 2, kCodeBytes)", "pipe.InitBuffer(anchor_codes_, 1, kCodeBytes)"),
        (
            "      if (following.rows) load(following);\n      compute(tile, table);\n",
            "      compute(tile, table);\n      if (following.rows) load(following);\n",
        ),
    ),
    decode(
        "one buffer of values",
        OVERLAP,
        ("pipe.InitBuffer(out_, 2, kElements * 2)", "pipe.InitBuffer(out_, 1, kElements * 2)"),
    ),
    decode(
        "a barrier behind every tile",
        OVERLAP,
        ("      tile = following;\n", "      AscendC::PipeBarrier<PIPE_ALL>();\n      tile = following;\n"),
        (
            "      if (following.rows) load(following);\n      compute(tile, table);\n",
            "      compute(tile, table);\n"
            "      AscendC::PipeBarrier<PIPE_ALL>();\n"
            "      if (following.rows) load(following);\n",
        ),
    ),
]
