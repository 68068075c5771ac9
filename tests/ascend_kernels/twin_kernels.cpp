// Kernels for the twin's own tests. Those that take `broken` (twin_rules*.h) keep a rule if it is 0 and break
// it, and no other, if it is 1.
#include <pybind11/pybind11.h>

#include "kernel_operator.h"
#include "twin/bindings.h"
#include "twin/launch.h"

using namespace AscendC;

namespace {

constexpr int32_t kCount = 256;  // elements of a tile here
using In = TQue<TPosition::VECIN, 1>;
using Out = TQue<TPosition::VECOUT, 1>;
using Calc = TBuf<TPosition::VECCALC>;

template <class T>
GlobalTensor<T> global(GM_ADDR address) {
  GlobalTensor<T> tensor;
  tensor.SetGlobalBuffer((__gm__ T*)address);
  return tensor;
}

template <class T>
LocalTensor<T> fetch(In& queue, GM_ADDR address, int64_t bytes) {
  LocalTensor<uint8_t> tensor = queue.AllocTensor<uint8_t>();
  DataCopyPad(tensor, global<uint8_t>(address), {1, bytes, 0, 0, 0}, {false, 0, 0, 0});
  queue.EnQue(tensor);
  return queue.DeQue<uint8_t>().ReinterpretCast<T>();
}

template <class T>
void send(Out& queue, LocalTensor<T>& tensor, GM_ADDR address, int64_t bytes) {
  queue.EnQue(tensor);
  LocalTensor<uint8_t> done = queue.DeQue<uint8_t>();
  DataCopyPad(global<uint8_t>(address), done, {1, bytes, 0, 0, 0});
  queue.FreeTensor(done);
}

// y = f(x) for n elements; bytes in UB and GM from the types' bits.
template <class D, class S, class F>
void map(GM_ADDR x, GM_ADDR y, int32_t n, F f) {
  TPipe pipe;
  In in;
  Out out;
  pipe.InitBuffer(in, 1, n * 4 + 32);
  pipe.InitBuffer(out, 1, n * 4 + 32);
  LocalTensor<S> source = fetch<S>(in, x, n * twin::kBits<S> / 8);
  LocalTensor<D> target = out.AllocTensor<D>();
  f(target, source, n);
  in.FreeTensor(source);
  send(out, target, y, n * twin::kBits<D> / 8);
}

template <class D, class S>
void cast(GM_ADDR x, GM_ADDR y, int32_t n, int32_t mode) {
  map<D, S>(x, y, n, [mode](auto& d, auto& s, int32_t count) { Cast(d, s, RoundMode(mode), count); });
}

#define CAST_KERNEL(name, D, S)                                                           \
  void name(GM_ADDR x, GM_ADDR y, int32_t n, int32_t mode) { cast<D, S>(x, y, n, mode); } \
  TWIN_KERNEL(name)
CAST_KERNEL(float_to_half, half, float);
CAST_KERNEL(float_to_bf16, bfloat16_t, float);
CAST_KERNEL(float_to_int16, int16_t, float);
CAST_KERNEL(half_to_float, float, half);
CAST_KERNEL(half_to_int4, int4b_t, half);
CAST_KERNEL(half_to_uint8, uint8_t, half);
CAST_KERNEL(half_to_int32, int32_t, half);
CAST_KERNEL(int4_to_half, half, int4b_t);
CAST_KERNEL(uint8_to_half, half, uint8_t);
CAST_KERNEL(bf16_to_float, float, bfloat16_t);
CAST_KERNEL(int16_to_int8, int8_t, int16_t);
CAST_KERNEL(int16_to_half, half, int16_t);
CAST_KERNEL(half_to_bf16, bfloat16_t, half);

// y = x * a + b in two roundings.
void scale_float(GM_ADDR x, GM_ADDR y, int32_t n, float a, float b) {
  map<float, float>(x, y, n, [=](auto& d, auto& s, int32_t count) {
    Muls(d, s, a, count);
    Adds(d, d, b, count);
  });
}
TWIN_KERNEL(scale_float);

void scale_half(GM_ADDR x, GM_ADDR y, int32_t n, float a, float b) {
  map<half, half>(x, y, n, [=](auto& d, auto& s, int32_t count) {
    Muls(d, s, half(a), count);
    Adds(d, d, half(b), count);
  });
}
TWIN_KERNEL(scale_half);

void scale_int16(GM_ADDR x, GM_ADDR y, int32_t n, int16_t a, int16_t b) {
  map<int16_t, int16_t>(x, y, n, [=](auto& d, auto& s, int32_t count) {
    Muls(d, s, a, count);
    Adds(d, d, b, count);
  });
}
TWIN_KERNEL(scale_int16);

// y = ~((x & 0x0ff0) | x) of 16 bits, and x >> shift, one behind the other.
void bits_int16(GM_ADDR x, GM_ADDR y, int32_t n, int16_t shift) {
  map<int16_t, int16_t>(x, y, n, [=](auto& d, auto& s, int32_t count) {
    Duplicate(d, int16_t(0x0ff0), count / 2);
    And(d, s, d, count / 2);
    Or(d, d, s, count / 2);
    Not(d, d, count / 2);
    ShiftRight(d[count / 2], s, shift, count / 2);
  });
}
TWIN_KERNEL(bits_int16);

// y = x < 0 ? x : 7 by CompareScalar and Select; both in chunks that a mask is whole in.
void select_float(GM_ADDR x, GM_ADDR y, int32_t n) {
  TPipe pipe;
  In in;
  Out out;
  Calc mask_buffer;
  pipe.InitBuffer(in, 1, n * 4);
  pipe.InitBuffer(out, 1, n * 4);
  pipe.InitBuffer(mask_buffer, n / 8);
  LocalTensor<float> s = fetch<float>(in, x, n * 4), d = out.AllocTensor<float>();
  LocalTensor<uint8_t> mask = mask_buffer.Get<uint8_t>();
  CompareScalar(mask, s, 0.0f, CMPMODE::LT, n);
  Select(d, mask, s, 7.0f, SELMODE::VSEL_TENSOR_SCALAR_MODE, n);
  in.FreeTensor(s);
  send(out, d, y, n * 4);
}
TWIN_KERNEL(select_float);

// y[i] = table[offsets[i] / 4]; x holds 64 table entries, then n byte offsets.
void gather_float(GM_ADDR x, GM_ADDR y, int32_t n) {
  TPipe pipe;
  In in;
  Out out;
  pipe.InitBuffer(in, 1, (64 + n) * 4);
  pipe.InitBuffer(out, 1, n * 4);
  LocalTensor<float> s = fetch<float>(in, x, (64 + n) * 4), d = out.AllocTensor<float>();
  Gather(d, s, s[64].ReinterpretCast<uint32_t>(), 0, n);
  in.FreeTensor(s);
  send(out, d, y, n * 4);
}
TWIN_KERNEL(gather_float);

// Rows of 64: y[r] = x[r] - x[0], by a repeat stride of 0; then row 0 of y is the sum of rows 0 and 1, in
// place.
void rows_float(GM_ADDR x, GM_ADDR y, int32_t rows) {
  map<float, float>(x, y, rows * 64, [=](auto& d, auto& s, int32_t) {
    Sub(d, s, s, 64, rows, {1, 1, 1, 8, 8, 0});
    Add(d, d, d[64], 64, 1, {1, 1, 1, 8, 8, 8});
  });
}
TWIN_KERNEL(rows_float);

// Rows of `bytes` out of rows of `stride` bytes, to a dense y. Each row is padded in UB.
void strided_copy(GM_ADDR x, GM_ADDR y, int32_t rows, int32_t bytes, int32_t stride) {
  TPipe pipe;
  TQueBind<TPosition::VECIN, TPosition::VECOUT, 1> through;
  pipe.InitBuffer(through, 1, rows * ((bytes + 31) / 32 * 32));
  LocalTensor<uint8_t> tensor = through.AllocTensor<uint8_t>();
  DataCopyPad(tensor, global<uint8_t>(x), {rows, bytes, stride - bytes, 0, 0}, {false, 0, 0, 0});
  through.EnQue(tensor);
  tensor = through.DeQue<uint8_t>();
  DataCopyPad(global<uint8_t>(y), tensor, {rows, bytes, 0, 0, 0});
  through.FreeTensor(tensor);
}
TWIN_KERNEL(strided_copy);

// Every second 64 bytes of x, to a dense y, by the calls that count blocks of 32 bytes.
void block_copy(GM_ADDR x, GM_ADDR y, int32_t rows) {
  TPipe pipe;
  In in;
  Out out;
  pipe.InitBuffer(in, 1, rows * 96);
  pipe.InitBuffer(out, 1, rows * 64);
  LocalTensor<float> s = in.AllocTensor<float>(), d = out.AllocTensor<float>();
  DataCopy(s, global<float>(x), DataCopyParams(rows, 2, 2, 1));
  in.EnQue(s);
  s = in.DeQue<float>();
  for (int32_t r = 0; r < rows; ++r) Adds(d[r * 16], s[r * 24], 0.0f, 16);
  in.FreeTensor(s);
  out.EnQue(d);
  d = out.DeQue<float>();
  DataCopy(global<float>(y), d, DataCopyParams(1, rows * 2, 0, 0));
  out.FreeTensor(d);
}
TWIN_KERNEL(block_copy);

// Rows of 5 halves, each with 3 halves of padding before and 8 behind it.
void padded_copy(GM_ADDR x, GM_ADDR y, int32_t rows, int32_t padded) {
  TPipe pipe;
  TQueBind<TPosition::VECIN, TPosition::VECOUT, 1> through;
  pipe.InitBuffer(through, 1, rows * 32);
  LocalTensor<half> t = through.AllocTensor<half>();
  DataCopyPad(t, global<half>(x), {rows, 10, 0, 0, 0},
              {padded == 1, padded ? 3 : 0, padded ? 8 : 0, half(9)});
  through.EnQue(t);
  t = through.DeQue<half>();
  DataCopyPad(global<half>(y), t, {1, rows * 32, 0, 0, 0});
  through.FreeTensor(t);
}
TWIN_KERNEL(padded_copy);

// y = 2 * x over tiles spread over the cores; with `ahead`, tile t + 1 is fetched before t is computed.
void tiles(GM_ADDR x, GM_ADDR y, int32_t count, int32_t buffers, int32_t ahead) {
  TPipe pipe;
  TQue<TPosition::VECIN, 2> in;
  TQue<TPosition::VECOUT, 2> out;
  constexpr int32_t kTile = 4096;
  pipe.InitBuffer(in, buffers, kTile * 4);
  pipe.InitBuffer(out, buffers, kTile * 4);
  const auto copy_in = [&](int64_t t) {
    LocalTensor<float> s = in.AllocTensor<float>();
    DataCopy(s, global<float>(x)[t * kTile], kTile);
    in.EnQue(s);
  };
  const int64_t step = GetBlockNum();
  if (ahead && GetBlockIdx() < count) copy_in(GetBlockIdx());
  for (int64_t t = GetBlockIdx(); t < count; t += step) {
    if (!ahead) copy_in(t);
    if (ahead && t + step < count) copy_in(t + step);
    LocalTensor<float> s = in.DeQue<float>(), d = out.AllocTensor<float>();
    for (int i = 0; i < 8; ++i) Muls(d, s, 2.0f, kTile);
    in.FreeTensor(s);
    out.EnQue(d);
    d = out.DeQue<float>();
    DataCopy(global<float>(y)[t * kTile], d, kTile);
    out.FreeTensor(d);
  }
}
TWIN_KERNEL(tiles);

}  // namespace

#include "twin_rules.h"
#include "twin_rules_order.h"
#include "twin_rules_queues.h"

PYBIND11_MODULE(_twin_tests, module) { twin::bind(module); }
