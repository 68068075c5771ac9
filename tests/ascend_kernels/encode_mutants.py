"""Wrong encode kernels."""

from __future__ import annotations

from tests.ascend_kernels.mutants import OVERLAP, VALUES, Mutant


def encode(name: str, caught: str, *edits: tuple[str, str], file: str = "encode.cpp") -> Mutant:
    return Mutant("encode", name, caught, file, edits)


HAND_OVER = "    metadata_.EnQue(out);\n    out = metadata_.template DeQue<uint8_t>();\n"
LOAD_THEN_ENCODE = "      if (following < t_.tiles) load(following);\n      encode(index, table);\n"
ENCODE_THEN_LOAD = "      encode(index, table);\n      if (following < t_.tiles) load(following);\n"

MUTANTS = [
    # Order between pipes.
    encode(
        "the sink's rows are stored without waiting for their load",
        "order: MTE3 reads the block",
        ("      queue_.EnQue(local);\n      local = queue_.DeQue<uint8_t>();\n", ""),
        file="page.h",
    ),
    encode(
        "metadata is stored without waiting for the vector unit",
        "order: MTE3 reads the block",
        (HAND_OVER, ""),
    ),
    encode(
        "metadata is handed over before its last part is written",
        "order: MTE3 reads the block",
        (HAND_OVER, ""),
        (
            "    if (t_.alg1) {\n      Adds(out.template",
            HAND_OVER + "    if (t_.alg1) {\n      Adds(out.template",
        ),
    ),
    encode(
        "metadata is written again while it is stored",
        "order: V writes the block",
        (
            "    metadata_.FreeTensor(out);\n",
            "    Duplicate(out.template ReinterpretCast<float>(), 0.0f, kLanes);\n    metadata_.FreeTensor(out);\n",
        ),
    ),
    encode(
        "a page is kept in a buffer that no queue hands over",
        "order: V reads the block",
        ("AscendC::TQue<TPosition::VECIN, 2> pages_;", "AscendC::TBuf<TPosition::VECIN> pages_;"),
        ("pipe.InitBuffer(pages_, 2, kPageBytes)", "pipe.InitBuffer(pages_, kPageBytes)"),
        ("pages_.template AllocTensor<uint8_t>()", "pages_.template Get<uint8_t>()"),
        ("    pages_.EnQue(x);\n", ""),
        ("pages_.template DeQue<T>()", "pages_.template Get<T>()"),
        ("    pages_.FreeTensor(x);\n", ""),
        (LOAD_THEN_ENCODE, ENCODE_THEN_LOAD),
    ),
    encode(
        "mu is stored where the page's maxima are",
        "order: MTE3 writes GM byte",
        ("payload[page.mu + lane * scalar]", "payload[page.gamma_max + lane * scalar]"),
    ),
    # Queues.
    encode(
        "a page is freed before it is coded",
        "use: the tensor was freed",
        ("    pages_.FreeTensor(x);\n", ""),
        (
            "    write_metadata(index, page, lane, gamma);\n",
            "    pages_.FreeTensor(x);\n    write_metadata(index, page, lane, gamma);\n",
        ),
    ),
    encode(
        "a page is loaded after it was enqueued",
        "use: the tensor is in a queue",
        ("    pages_.EnQue(x);\n", ""),
        ("    load_tokens(t_, x,", "    pages_.EnQue(x);\n    load_tokens(t_, x,"),
    ),
    encode(
        "residual codes are not enqueued", "queue: the queue is empty", ("    residual_codes_.EnQue(residual);\n", "")
    ),
    encode(
        "anchor codes are not freed",
        "queue: none of the queue's 2 buffers is free",
        ("    anchor_codes_.FreeTensor(anchor);\n", ""),
    ),
    encode(
        "metadata is enqueued twice",
        "queue: the tensor was in the queue before",
        (
            HAND_OVER,
            HAND_OVER + HAND_OVER,
        ),
    ),
    encode(
        "the next page is loaded into one buffer",
        "queue: none of the queue's 1 buffers is free",
        ("pipe.InitBuffer(pages_, 2, kPageBytes)", "pipe.InitBuffer(pages_, 1, kPageBytes)"),
    ),
    encode(
        "a page behind the last is loaded",
        "leak: a tensor was left in a queue",
        ("      if (following < t_.tiles) load(following);\n", "      load(following);\n"),
    ),
    encode(
        "thresholds are not freed",
        "leak: a tensor of a queue was not freed",
        ("    if constexpr (companded) table_.FreeTensor(table);\n", ""),
    ),
    encode(
        "nine buffers go out",
        "events: 9 TQue buffers",
        ("pipe.InitBuffer(metadata_, 2, kMetadataBytes)", "pipe.InitBuffer(metadata_, 5, kMetadataBytes)"),
    ),
    # Memory.
    encode(
        "a buffer is not initialised",
        "use: TBuf used before TPipe::InitBuffer",
        ("    pipe.InitBuffer(mask_, Chunks::kSize / 8);\n", ""),
    ),
    encode(
        "a third page",
        "capacity: ",
        ("pipe.InitBuffer(pages_, 2, kPageBytes)", "pipe.InitBuffer(pages_, 3, kPageBytes)"),
    ),
    encode(
        "room for half the values",
        "bounds: ",
        ("pipe.InitBuffer(values_, kElements * 4)", "pipe.InitBuffer(values_, kElements * 2)"),
    ),
    encode(
        "room for half a page",
        r"bounds: \d+ bytes of UB",
        ("kPageBytes = kEncodePage * kLanes * 2;", "kPageBytes = kEncodePage * kLanes;"),
    ),
    encode("half values between blocks", "align: UB byte", ("p[kElements]", "p[kElements + 8]")),
    encode("thresholds are loaded between blocks", "align: UB byte", ("raw[32]", "raw[16]")),
    encode(
        "codes are skipped by tokens, not by bytes", "align: UB byte", ("anchor[skip * kLanes / 2]", "anchor[skip]")
    ),
    encode(
        "rows behind the last token are measured",
        "undefined: reads UB byte",
        (
            "Cast(values, x[row * kLanes], RoundMode::CAST_NONE, rows * kLanes);",
            "Cast(values, x[row * kLanes], RoundMode::CAST_NONE, kElements);",
        ),
    ),
    encode(
        "the bound below all thresholds is not written",
        "undefined: reads UB byte",
        ("    Duplicate(table_, -1.0f, 8);\n", ""),
        file="coding.h",
    ),
    encode(
        "the page's maxima are not written",
        "undefined: copies UB byte",
        ("      Cast(out[kRow].template ReinterpretCast<T>(), gamma.high, RoundMode::CAST_RINT, kLanes);\n", ""),
    ),
    encode(
        "the last page is as long as the others",
        "bounds: GM",
        ("tokens = smaller(t.page, t.tokens - index * t.page)", "tokens = t.page"),
        file="page.h",
    ),
    encode(
        "codes are stored two rows apart",
        "order: MTE3 writes GM byte",
        ("pitch = t_.channels / 2;", "pitch = t_.channels;"),
    ),
    encode(
        "cores do the same tiles", "cores: GM byte", ("int32_t index = AscendC::GetBlockIdx();", "int32_t index = 0;")
    ),
    encode(
        "all slices of codes are stored in the first one's place",
        "order: MTE3 writes GM byte",
        ("* t_.channels + lane) / 2;", "* t_.channels) / 2;"),
    ),
    encode(
        "mu is stored from a buffer of the vector unit",
        "position: VECCALC -> GM",
        (
            "store_rows(payload[page.mu + lane * scalar], out[kMu],",
            "store_rows(payload[page.mu + lane * scalar], chunks_.mu.template ReinterpretCast<uint8_t>(),",
        ),
    ),
    # Instructions.
    encode(
        "a cast that A2 does not have, int16 to uint8",
        "cast: int16_t -> uint8_t",
        ("Cast(bytes, narrow, RoundMode::CAST_RINT, n)", "Cast(bytes, rounded, RoundMode::CAST_NONE, n)"),
        file="statistics.h",
    ),
    encode(
        "a rounding that A2 does not have",
        r"cast: .* is not in A2's table",
        ("Cast(p, rounded, RoundMode::CAST_NONE, n)", "Cast(p, rounded, RoundMode::CAST_ODD, n)"),
        file="coding.h",
    ),
    encode(
        "a type that Abs does not take",
        "type: int32_t",
        (
            "    Abs(magnitude, place, n);\n",
            "    Abs(bits, negative, n);\n",
        ),
        file="coding.h",
    ),
    encode(
        "more repeats than there are",
        "range: repeatTime",
        ("Max(dst, a, b, kLanes, rows, step)", "Max(dst, a, b, kLanes, rows * kBlocks, step)"),
        file="statistics.h",
    ),
    encode(
        "a stride in elements",
        "range: ",
        ("rows, UnaryRepeatParams{1, 1, kBlocks, 0}", "rows, UnaryRepeatParams{1, 1, kLanes * 4, 0}"),
    ),
    encode(
        "places are rounded in place",
        "overlap: source and destination overlap in part",
        (
            "linear_index(p, places, scratch_.template Get<int16_t>(), n)",
            "linear_index(p, places, p.template ReinterpretCast<int16_t>(), n)",
        ),
    ),
    encode(
        "a short chunk is padded by a row from the row before",
        "overlap: repeat 1 reads",
        ("Adds(values[rows * kLanes], first, 0.0f,", "Adds(values[rows * kLanes], values[(rows - 1) * kLanes], 0.0f,"),
        ("rows, UnaryRepeatParams{1, 1, kBlocks, 0}", "rows, UnaryRepeatParams{1, 1, kBlocks, kBlocks}"),
    ),
    encode(
        "a negative whole number becomes a byte",
        "range: negative",
        ("      Adds(mu, mu, 127.5f, n);", "      Adds(mu, mu, 0.0f, n);"),
        file="statistics.h",
    ),
    # Wrong in values only.
    encode(
        "sigma is rounded to the nearest",
        VALUES,
        ("round(sigma, sigma_bytes, RoundMode::CAST_CEIL, n)", "round(sigma, sigma_bytes, RoundMode::CAST_RINT, n)"),
        file="statistics.h",
    ),
    encode(
        "ties of places are rounded away from zero",
        VALUES,
        ("Cast(rounded, place, RoundMode::CAST_RINT, n)", "Cast(rounded, place, RoundMode::CAST_ROUND, n)"),
        file="coding.h",
    ),
    encode("a short chunk is not padded", VALUES, ("if (padded > rows) {", "if (padded > kGroup) {")),
    encode(
        "a short chunk's mean is divided by a whole one's tokens",
        VALUES,
        ("static_cast<float>(left < chunk ? left : chunk)", "static_cast<float>(chunk)"),
        file="statistics.h",
    ),
    encode(
        "means of large values overflow",
        VALUES,
        ("  Muls(x, x, 0x1p-10f, rows * kLanes);\n", ""),
        ("  Muls(dst, dst, 1024.0f, chunks * kLanes);\n", ""),
        file="statistics.h",
    ),
    encode(
        "tiny scales are not lifted",
        VALUES,
        ("CompareScalar(mask, scale, 0x1p-61f,", "CompareScalar(mask, scale, 0x1p-140f,"),
        file="statistics.h",
    ),
    encode("-0.0 stays", VALUES, ("    Adds(chunks_.low, chunks_.low, 0.0f, gamma.size());  // no -0.0\n", "")),
    encode(
        "residuals of the next anchor",
        VALUES,
        ("Adds(p, p, (half)-8.0f, n)", "Adds(p, p, (half)-7.0f, n)"),
        file="coding.h",
    ),
    encode(
        "thresholds on the negative side are passed when met",
        VALUES,
        ("    Add(bits, bits, negative, n);\n", ""),
        file="coding.h",
    ),
    encode(
        "the guess at a threshold is corrected once",
        VALUES,
        ("    correct(passed, magnitude, offset, level, 7 * 4, n);\n", "    Adds(passed, passed, -1, n);\n"),
        file="coding.h",
    ),
    encode(
        "codes of the sink's rows are not skipped",
        VALUES,
        ("anchor[skip * kLanes / 2], coded", "anchor, coded"),
    ),
    encode(
        "a run of rows crosses the end of a block",
        "bounds: GM",
        ("smaller(rows, t.block_size - row)}", "rows}"),
        file="page.h",
    ),
    # The same in codec pair.
    encode(
        "a scale that just does not exceed its partner's has a bit more",
        VALUES,
        ("CMPMODE::GT", "CMPMODE::GE"),
        file="pair_encoder.h",
    ),
    encode(
        "a channel's scale is compared with its own",
        VALUES,
        ("    exchange(partner, sums_);\n", "    Adds(partner, sums_, 0.0f, kLanes);\n"),
        file="pair_encoder.h",
    ),
    encode(
        "a chunk in the middle does not count",
        VALUES,
        (
            "if (kept > added) Adds(sums_[added * kLanes], sigma[added * kLanes],",
            "if (kept > added) Adds(sums_[added * kLanes], sigma,",
        ),
        file="pair_encoder.h",
    ),
    encode(
        "indices are not clamped",
        VALUES,
        ("    Min(index, index, most_, kRepeat, n / kRepeat, down);\n", ""),
        file="pair_encoder.h",
    ),
    encode(
        "the first channel has a bit less in the anchor",
        VALUES,
        ("Muls(part, scratch, 256.0f, kLanes)", "Muls(part, scratch, 128.0f, kLanes)"),
        file="pair_encoder.h",
    ),
    encode(
        "the widths of a tile's pairs are stored channel by channel",
        VALUES,
        ("UnaryRepeatParams{1, apart, 8, 8}", "UnaryRepeatParams{1, 1, 8, 8}"),
        file="pair_encoder.h",
    ),
    encode(
        "widths are chosen after metadata is handed over",
        "order: MTE3 reads the block",
        (
            "    if (t_.quarter) pairs().choose(chunks_.sigma, gamma.half, page.chunks, out[kWidths]);\n" + HAND_OVER,
            HAND_OVER + "    if (t_.quarter) pairs().choose(chunks_.sigma, gamma.half, page.chunks, out[kWidths]);\n",
        ),
    ),
    encode(
        "all slices of widths are stored in the first one's place",
        "order: MTE3 writes GM byte",
        ("payload[page.widths + lane / 4]", "payload[page.widths]"),
    ),
    # Right values, but no overlap.
    encode(
        "one page, loaded when the one before is done",
        OVERLAP,
        ("pipe.InitBuffer(pages_, 2, kPageBytes)", "pipe.InitBuffer(pages_, 1, kPageBytes)"),
        (LOAD_THEN_ENCODE, ENCODE_THEN_LOAD),
    ),
    encode(
        "a page is loaded after the one before has been coded",
        OVERLAP,
        (
            LOAD_THEN_ENCODE,
            "      encode(index, table);\n"
            "      AscendC::PipeBarrier<PIPE_ALL>();\n"
            "      if (following < t_.tiles) load(following);\n",
        ),
    ),
]
