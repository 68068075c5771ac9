// Rules about buffers, queues, flags and what UB holds; as in twin_rules.h.
#pragma once

namespace {

RULE(capacity) {
  TPipe pipe;
  Calc a, b;
  pipe.InitBuffer(a, 96 * 1024);
  pipe.InitBuffer(b, (broken ? 96 : 80) * 1024);
}
RULE(capacity_count) {
  TPipe pipe;
  Calc buffers[65];
  for (int i = 0; i < 64 + broken; ++i) pipe.InitBuffer(buffers[i], 32);
}
RULE(events) {
  TPipe pipe;
  In in[9];
  for (int i = 0; i < 8 + broken; ++i) pipe.InitBuffer(in[i], 1, 32);
}
RULE(queue_alloc) {
  TPipe pipe;
  In in;
  pipe.InitBuffer(in, 2, 32);
  LocalTensor<float> a = in.AllocTensor<float>();
  if (!broken) in.FreeTensor(a);
  LocalTensor<float> b = in.AllocTensor<float>(), c = in.AllocTensor<float>();
  in.FreeTensor(b);
  in.FreeTensor(c);
}
template <int32_t depth>
void enqueue_two() {
  TPipe pipe;
  TQue<TPosition::VECOUT, depth> out;
  pipe.InitBuffer(out, 2, 32);
  LocalTensor<float> a = out.template AllocTensor<float>(), b = out.template AllocTensor<float>();
  out.EnQue(a);
  out.EnQue(b);
  a = out.template DeQue<float>();
  b = out.template DeQue<float>();
  out.FreeTensor(a);
  out.FreeTensor(b);
}
RULE(queue_depth) { broken ? enqueue_two<1>() : enqueue_two<2>(); }
RULE(queue_empty) {
  TPipe pipe;
  Out out;
  pipe.InitBuffer(out, 1, 32);
  LocalTensor<float> a = out.AllocTensor<float>();
  if (!broken) out.EnQue(a);
  a = out.DeQue<float>();
  out.FreeTensor(a);
}
RULE(queue_other) {
  TPipe pipe;
  Out one, two;
  pipe.InitBuffer(one, 1, 32);
  pipe.InitBuffer(two, 1, 32);
  LocalTensor<float> a = one.AllocTensor<float>();
  (broken ? two : one).FreeTensor(a);
}
RULE(queue_twice) {
  TPipe pipe;
  Out out;
  pipe.InitBuffer(out, 1, 32);
  LocalTensor<float> a = out.AllocTensor<float>();
  out.FreeTensor(a);
  if (broken) out.FreeTensor(a);
}
RULE(leak_freed) {
  TPipe pipe;
  Out out;
  pipe.InitBuffer(out, 1, 32);
  LocalTensor<float> a = out.AllocTensor<float>();
  if (!broken) out.FreeTensor(a);
}
RULE(leak_queued) {
  TPipe pipe;
  Out out;
  pipe.InitBuffer(out, 1, 32);
  LocalTensor<float> a = out.AllocTensor<float>();
  out.EnQue(a);
  if (broken) return;
  a = out.DeQue<float>();
  out.FreeTensor(a);
}
RULE(leak_flag) {
  SetFlag<HardEvent::V_MTE3>(0);
  if (!broken) WaitFlag<HardEvent::V_MTE3>(0);
}
RULE(flag_twice) {
  SetFlag<HardEvent::V_MTE3>(0);
  SetFlag<HardEvent::V_MTE3>(broken ? 0 : 1);
  WaitFlag<HardEvent::V_MTE3>(0);
  WaitFlag<HardEvent::V_MTE3>(1);
}
RULE(flag_unset) {
  SetFlag<HardEvent::V_MTE3>(0);
  WaitFlag<HardEvent::V_MTE3>(broken ? 1 : 0);
}
RULE(flag_number) {
  SetFlag<HardEvent::V_MTE3>(broken ? 6 : 5);
  WaitFlag<HardEvent::V_MTE3>(broken ? 6 : 5);
}
RULE(use_freed) {
  TPipe pipe;
  Out out;
  pipe.InitBuffer(out, 1, 1024);
  LocalTensor<float> a = out.AllocTensor<float>();
  if (!broken) Duplicate(a, 1.0f, 8);
  out.FreeTensor(a);
  if (broken) Duplicate(a, 1.0f, 8);
}
RULE(use_queued) {
  TPipe pipe;
  Out out;
  pipe.InitBuffer(out, 1, 1024);
  LocalTensor<float> a = out.AllocTensor<float>();
  if (!broken) Duplicate(a, 1.0f, 8);
  out.EnQue(a);
  if (broken) Duplicate(a, 1.0f, 8);
  a = out.DeQue<float>();
  out.FreeTensor(a);
}
RULE(undefined_vector) {
  TPipe pipe;
  Calc buffer;
  pipe.InitBuffer(buffer, 1024);
  LocalTensor<float> t = buffer.Get<float>();
  Duplicate(t, 1.0f, broken ? 63 : 64);
  Adds(t, t, 1.0f, 64);
}
RULE(undefined_copy) {
  TPipe pipe;
  Out out;
  pipe.InitBuffer(out, 1, 1024);
  LocalTensor<float> t = out.AllocTensor<float>();
  Duplicate(t, 1.0f, broken ? 63 : 64);
  send(out, t, y, 256);
}
RULE(undefined_reused) {
  TPipe pipe;
  Out out;
  pipe.InitBuffer(out, 1, 1024);
  LocalTensor<float> t = out.AllocTensor<float>();
  Duplicate(t, 1.0f, 64);
  if (broken) {
    out.FreeTensor(t);
    t = out.AllocTensor<float>();
  }
  Adds(t, t, 1.0f, 64);
  out.FreeTensor(t);
}
RULE(position_in) {
  TPipe pipe;
  TBuf<TPosition::VECIN> in;
  Calc calc;
  pipe.InitBuffer(in, 1024);
  pipe.InitBuffer(calc, 1024);
  DataCopyPad(broken ? calc.Get<float>() : in.Get<float>(), global<float>(x), {1, 32, 0, 0, 0},
              {false, 0, 0, 0});
}
RULE(position_out) {
  TPipe pipe;
  In in;
  Out out;
  pipe.InitBuffer(in, 1, 1024);
  pipe.InitBuffer(out, 1, 1024);
  LocalTensor<float> a = fetch<float>(in, x, 1024), b = out.AllocTensor<float>();
  Adds(b, a, 0.0f, 256);
  out.EnQue(b);
  b = out.DeQue<float>();
  DataCopy(global<float>(y), broken ? a : b, 256);
  in.FreeTensor(a);
  out.FreeTensor(b);
}
RULE(use_early) {  // FreeTensor before the last reader
  TPipe pipe;
  In in;
  Calc calc;
  pipe.InitBuffer(in, 1, 1024);
  pipe.InitBuffer(calc, 1024);
  for (int i = 0; i < 4; ++i) {
    LocalTensor<float> t = fetch<float>(in, x, 1024);
    if (broken) in.FreeTensor(t);
    Adds(calc.Get<float>(), t, 1.0f, 256);
    if (!broken) in.FreeTensor(t);
  }
}
RULE(use_before) {
  TPipe pipe;
  Calc buffer;
  if (!broken) pipe.InitBuffer(buffer, 32);
  buffer.Get<float>();
}
RULE(use_empty) {
  Scratch s;
  LocalTensor<float> t;
  if (!broken) t = s.t;
  Adds(t, s.t, 1.0f, 8);
}
RULE(queue_before) {
  TPipe pipe;
  Out out;
  if (!broken) pipe.InitBuffer(out, 1, 32);
  LocalTensor<float> a = out.AllocTensor<float>();
  out.FreeTensor(a);
}
RULE(queue_init_twice) {
  TPipe pipe;
  Out one, two;
  pipe.InitBuffer(one, 1, 32);
  pipe.InitBuffer(broken ? one : two, 1, 32);
}
RULE(queue_part) {
  TPipe pipe;
  Out out;
  pipe.InitBuffer(out, 1, 1024);
  LocalTensor<float> a = out.AllocTensor<float>(), b = a[8];
  out.FreeTensor(broken ? b : a);
}
RULE(queue_again) {
  TPipe pipe;
  Out out;
  pipe.InitBuffer(out, 1, 1024);
  LocalTensor<float> a = out.AllocTensor<float>();
  out.EnQue(a);
  a = out.DeQue<float>();
  if (broken) out.EnQue(a);
  out.FreeTensor(a);
}
RULE(queue_free_queued) {
  TPipe pipe;
  Out out;
  pipe.InitBuffer(out, 1, 32);
  LocalTensor<float> a = out.AllocTensor<float>();
  out.EnQue(a);
  if (broken) out.FreeTensor(a);
  a = out.DeQue<float>();
  out.FreeTensor(a);
}
RULE(range_buffer) {
  TPipe pipe;
  Calc buffer;
  pipe.InitBuffer(buffer, broken ? 0 : 32);
}
RULE(range_queue) {
  TPipe pipe;
  Out out;
  pipe.InitBuffer(out, broken ? 0 : 1, 32);
}
RULE(flag_barrier) {
  if (broken)
    PipeBarrier<PIPE_S>();
  else
    PipeBarrier<PIPE_V>();
}
RULE(flag_queue) {
  TPipe pipe;
  In in;
  Out out;
  if (broken)
    pipe.InitBuffer(out, 1, 32);
  else
    pipe.InitBuffer(in, 1, 32);
  SetFlag<HardEvent::MTE3_V>(0);
  WaitFlag<HardEvent::MTE3_V>(0);
}

}  // namespace
