// Rules about operands and parameters. A kernel is (x, y, broken); x and y are kCount floats, and one that
// keeps its rule may write anything to y.
#pragma once

namespace {

// A scratch tile of zeros, for rules of the vector unit alone.
struct Scratch {
  TPipe pipe;
  Calc buffer;
  LocalTensor<float> t;
  explicit Scratch(int32_t bytes = kCount * 4) {
    pipe.InitBuffer(buffer, bytes);
    t = buffer.Get<float>();
    Duplicate(t, 0.0f, bytes / 4);
  }
};

#define RULE(name)                      \
  void name(GM_ADDR, GM_ADDR, int32_t); \
  TWIN_KERNEL(name);                    \
  void name([[maybe_unused]] GM_ADDR x, [[maybe_unused]] GM_ADDR y, int32_t broken)

RULE(align_vector) {
  Scratch s;
  Adds(s.t[broken ? 1 : 8], s.t[128], 1.0f, 8);
}
RULE(align_dma) {
  In in;
  TPipe pipe;
  pipe.InitBuffer(in, 1, 1024);
  LocalTensor<float> t = in.AllocTensor<float>();
  DataCopyPad(t[broken ? 4 : 8], global<float>(x), {1, 32, 0, 0, 0}, {false, 0, 0, 0});
  in.FreeTensor(t);
}
RULE(align_length) {
  In in;
  TPipe pipe;
  pipe.InitBuffer(in, 1, 1024);
  LocalTensor<float> t = in.AllocTensor<float>();
  DataCopy(t, global<float>(x), broken ? 12 : 16);
  in.FreeTensor(t);
}
RULE(align_element) {
  In in;
  TPipe pipe;
  pipe.InitBuffer(in, 1, 1024);
  LocalTensor<float> t = in.AllocTensor<float>();
  DataCopyPad(t, global<float>(x), {1, broken ? 34 : 36, 0, 0, 0}, {false, 0, 0, 0});
  in.FreeTensor(t);
}
RULE(align_compare) {
  Scratch s;
  Calc buffer;
  s.pipe.InitBuffer(buffer, 32);
  CompareScalar(buffer.Get<uint8_t>(), s.t, 0.0f, CMPMODE::GE, broken ? 65 : 64);
}
RULE(range_repeat) {
  Scratch s(256 * 32);
  Adds(s.t, s.t, 1.0f, 8, 255 + broken, {1, 1, 1, 1});
}
RULE(range_stride) {
  Scratch s(4096);
  Adds(s.t, s.t, 1.0f, 8, 1, {1, 1, 255 + broken, 1});
}
RULE(range_mask) {
  Scratch s;
  Adds(s.t, s.t, 1.0f, 64 + broken, 1, {1, 1, 8, 8});
}
RULE(range_blocks) {
  Out out;
  TPipe pipe;
  pipe.InitBuffer(out, 1, 4096 * 32);
  LocalTensor<uint8_t> t = out.AllocTensor<uint8_t>();
  DataCopyPad(t, global<uint8_t>(x), {4095 + broken, 0, 0, 0, 0}, {false, 0, 0, 0});
  out.FreeTensor(t);
}
RULE(range_padding) {
  In in;
  TPipe pipe;
  pipe.InitBuffer(in, 1, 1024);
  LocalTensor<float> t = in.AllocTensor<float>();
  DataCopyPad(t, global<float>(x), {1, 32, 0, 0, 0}, {true, 8 + broken, 0, 0.0f});
  in.FreeTensor(t);
}
RULE(range_shift) {
  Scratch s;
  LocalTensor<int16_t> t = s.t.ReinterpretCast<int16_t>();
  ShiftRight(t, t, int16_t(16 + broken), 16);
}
RULE(range_negative) {
  Scratch s;
  LocalTensor<half> h = s.t.ReinterpretCast<half>();
  Duplicate(h, half(broken ? -1.0f : 1.0f), 32);
  Cast(s.t[64].ReinterpretCast<uint8_t>(), h, RoundMode::CAST_RINT, 32);
}
RULE(range_overflow) {
  Scratch s;
  Duplicate(s.t, broken ? 65520.0f : 65519.0f, 32);
  Cast(s.t[64].ReinterpretCast<half>(), s.t, RoundMode::CAST_RINT, 32);
}
RULE(bounds_stride) {
  Scratch s(4096);
  Adds(s.t, s.t, 1.0f, 64, 4, {1, 1, broken ? 41 : 40, 8});
}
RULE(bounds_count) {
  Scratch s;
  Duplicate(s.t, 1.0f, kCount + broken);
}
RULE(bounds_get) {
  Scratch s;
  s.buffer.Get<float>(kCount + broken);
}
RULE(bounds_gm) {
  In in;
  TPipe pipe;
  pipe.InitBuffer(in, 1, kCount * 4);
  LocalTensor<float> t = in.AllocTensor<float>();
  DataCopy(t, global<float>(x)[broken ? 8 : 0], kCount);
  in.FreeTensor(t);
}
RULE(bounds_gm_write) {
  Scratch s;
  Out out;
  s.pipe.InitBuffer(out, 1, kCount * 4);
  LocalTensor<float> t = out.AllocTensor<float>();
  Duplicate(t, 1.0f, kCount);
  out.EnQue(t);
  t = out.DeQue<float>();
  DataCopyPad(global<uint8_t>(y)[broken], t.ReinterpretCast<uint8_t>(), {1, kCount * 4, 0, 0, 0});
  out.FreeTensor(t);
}
RULE(bounds_gather) {
  Scratch s;
  Duplicate(s.t.ReinterpretCast<uint32_t>(), uint32_t(broken ? 512 : 508), 8);
  Gather(s.t[8], s.t[128], s.t.ReinterpretCast<uint32_t>(), 0, 8);
}
RULE(overlap_part) {
  Scratch s(4096);
  Adds(s.t[broken ? 8 : 64], s.t, 1.0f, 64);
}
RULE(overlap_repeat) {
  Scratch s(4096);
  Adds(s.t[64], s.t, 1.0f, 64, 2, {1, 1, 8, broken ? 8 : 0});
}
RULE(overlap_widths) {
  Scratch s(4096);
  Cast(s.t, s.t[broken ? 0 : 256].ReinterpretCast<half>(), RoundMode::CAST_NONE, 64);
}
RULE(type_vector) {
  Scratch s;
  if (broken)
    Duplicate(s.t.ReinterpretCast<uint8_t>(), uint8_t(0), 32);
  else
    Duplicate(s.t.ReinterpretCast<uint16_t>(), uint16_t(0), 32);
}
RULE(cast_mode) {
  Scratch s;
  Cast(s.t[64].ReinterpretCast<bfloat16_t>(), s.t, broken ? RoundMode::CAST_NONE : RoundMode::CAST_RINT, 64);
}
RULE(align_nibble) {
  Scratch s;
  s.t.ReinterpretCast<int4b_t>()[broken ? 1 : 2];
}
RULE(align_gm) {
  In in;
  TPipe pipe;
  pipe.InitBuffer(in, 1, 1024);
  LocalTensor<float> t = in.AllocTensor<float>();
  DataCopy(t, global<float>(x + (broken ? 2 : 4)), 8);
  in.FreeTensor(t);
}
RULE(align_gather) {
  Scratch s;
  Duplicate(s.t.ReinterpretCast<uint32_t>(), uint32_t(broken ? 6 : 8), 8);
  Gather(s.t[8], s.t[128], s.t.ReinterpretCast<uint32_t>(), 0, 8);
}
RULE(range_length) {
  In in;
  TPipe pipe;
  pipe.InitBuffer(in, 1, 1024);
  LocalTensor<uint8_t> t = in.AllocTensor<uint8_t>();
  DataCopyPad(t, global<uint8_t>(x), {0, 2097151 + broken, 0, 0, 0}, {false, 0, 0, 0});
  in.FreeTensor(t);
}
RULE(range_count) {
  Scratch s;
  Adds(s.t, s.t, 1.0f, -broken);
}
RULE(range_nibbles) {
  Scratch s;
  Cast(s.t[64].ReinterpretCast<half>(), s.t.ReinterpretCast<int4b_t>(), RoundMode::CAST_NONE, 64 + broken);
}
RULE(range_block_stride) {
  Scratch s(4096);
  Adds(s.t, s.t, 1.0f, 64, 1, {broken ? 0 : 1, 1, 8, 8});
}
RULE(range_select) {
  Scratch s;
  Select(s.t[64], s.t[128].ReinterpretCast<uint8_t>(), s.t, 1.0f,
         broken ? SELMODE::VSEL_TENSOR_TENSOR_MODE : SELMODE::VSEL_TENSOR_SCALAR_MODE, 64);
}
RULE(bounds_offset) {
  Scratch s;
  s.t[kCount + broken];
}
RULE(bounds_ub) {  // the padding of a run counts
  In in;
  TPipe pipe;
  pipe.InitBuffer(in, 1, 96);
  LocalTensor<uint8_t> t = in.AllocTensor<uint8_t>();
  DataCopyPad(t, global<uint8_t>(x), {2, broken ? 33 : 31, 0, 0, 0}, {false, 0, 0, 0});
  in.FreeTensor(t);
}
RULE(bounds_scalar) {
  TPipe pipe;
  Calc buffer;
  pipe.InitBuffer(buffer, kCount * 4);
  buffer.Get<float>().SetValue(kCount - 1 + broken, 1.0f);
}
RULE(overlap_mask) {
  Scratch s;
  CompareScalar(s.t[broken ? 0 : 64].ReinterpretCast<uint8_t>(), s.t, 0.0f, CMPMODE::GE, 64);
}
RULE(overlap_gather) {
  Scratch s;
  Duplicate(s.t.ReinterpretCast<uint32_t>(), uint32_t(broken ? 32 : 64), 8);
  Gather(s.t[16], s.t[8], s.t.ReinterpretCast<uint32_t>(), 0, 8);
}
RULE(align_mask) {
  Scratch s;
  Select(s.t[64], s.t[broken ? 129 : 136].ReinterpretCast<uint8_t>(), s.t, 1.0f,
         SELMODE::VSEL_TENSOR_SCALAR_MODE, 64);
}
RULE(bounds_compare) {
  Scratch s;
  Calc apart, buffer;
  s.pipe.InitBuffer(apart, 256);
  s.pipe.InitBuffer(buffer, 64);
  CompareScalar(buffer.Get<uint8_t>(), s.t, 0.0f, CMPMODE::GE, broken ? 320 : 256);
}
RULE(overlap_select) {
  Scratch s;
  Select(s.t[64], s.t[broken ? 64 : 128].ReinterpretCast<uint8_t>(), s.t, 1.0f,
         SELMODE::VSEL_TENSOR_SCALAR_MODE, 64);
}
RULE(overlap_offsets) {
  Scratch s;
  Gather(s.t[broken ? 0 : 8], s.t[128], s.t.ReinterpretCast<uint32_t>(), 0, 8);
}

}  // namespace
