// Rules about order: between pipes of a core (MTE2 -> V, V -> MTE3, reuse either way, within MTE2 and MTE3,
// S), and between cores.
#pragma once

namespace {

RULE(order_in) {
  TPipe pipe;
  TBuf<TPosition::VECIN> in;
  pipe.InitBuffer(in, 1024);
  LocalTensor<float> t = in.Get<float>();
  DataCopy(t, global<float>(x), 256);
  SetFlag<HardEvent::MTE2_V>(0);
  if (!broken) WaitFlag<HardEvent::MTE2_V>(0);
  Adds(t, t, 1.0f, 256);
  if (broken) WaitFlag<HardEvent::MTE2_V>(0);
}
RULE(order_out) {
  TPipe pipe;
  TBuf<TPosition::VECOUT> out;
  pipe.InitBuffer(out, 1024);
  LocalTensor<float> t = out.Get<float>();
  Duplicate(t, 1.0f, 256);
  if (broken)
    PipeBarrier<PIPE_V>();
  else
    PipeBarrier<PIPE_ALL>();
  DataCopy(global<float>(y), t, 256);
}
RULE(order_reuse_out) {
  TPipe pipe;
  TBuf<TPosition::VECOUT> out;
  pipe.InitBuffer(out, 1024);
  LocalTensor<float> t = out.Get<float>();
  Duplicate(t, 1.0f, 256);
  SetFlag<HardEvent::V_MTE3>(0);
  WaitFlag<HardEvent::V_MTE3>(0);
  DataCopy(global<float>(y), t, 256);
  if (!broken) {
    SetFlag<HardEvent::MTE3_V>(0);
    WaitFlag<HardEvent::MTE3_V>(0);
  }
  Duplicate(t, 2.0f, 256);
}
RULE(order_reuse_in) {  // a prefetch over a tile that is still being read
  TPipe pipe;
  TBuf<TPosition::VECIN> in;
  Calc calc;
  pipe.InitBuffer(in, 1024);
  pipe.InitBuffer(calc, 1024);
  LocalTensor<float> t = in.Get<float>();
  DataCopy(t, global<float>(x), 256);
  SetFlag<HardEvent::MTE2_V>(0);
  WaitFlag<HardEvent::MTE2_V>(0);
  Adds(calc.Get<float>(), t, 1.0f, 256);
  if (!broken) {
    SetFlag<HardEvent::V_MTE2>(0);
    WaitFlag<HardEvent::V_MTE2>(0);
  }
  PipeBarrier<PIPE_MTE2>();
  DataCopy(t, global<float>(x), 256);
}
RULE(order_mte2) {
  TPipe pipe;
  TBuf<TPosition::VECIN> in;
  pipe.InitBuffer(in, 1024);
  DataCopy(in.Get<float>(), global<float>(x), 256);
  if (!broken) PipeBarrier<PIPE_MTE2>();
  DataCopy(in.Get<float>(), global<float>(x), 256);
}
RULE(order_mte3) {
  TPipe pipe;
  Out out;
  pipe.InitBuffer(out, 1, 1024);
  LocalTensor<float> t = out.AllocTensor<float>();
  Duplicate(t, 1.0f, 256);
  out.EnQue(t);
  t = out.DeQue<float>();
  DataCopy(global<float>(y), t, 256);
  DataCopyPad(global<float>(y)[broken ? 255 : 0], t, {broken, 4, 0, 0, 0});
  out.FreeTensor(t);
}
RULE(order_gm) {  // reading back what was written
  TPipe pipe;
  Out out;
  TBuf<TPosition::VECIN> in;
  pipe.InitBuffer(out, 1, 1024);
  pipe.InitBuffer(in, 1024);
  LocalTensor<float> t = out.AllocTensor<float>();
  Duplicate(t, 1.0f, 256);
  send(out, t, y, 1024);
  if (!broken) {
    SetFlag<HardEvent::MTE3_MTE2>(0);
    WaitFlag<HardEvent::MTE3_MTE2>(0);
  }
  DataCopy(in.Get<float>(), global<float>(y), 256);
}
RULE(order_scalar) {
  Scratch s;
  if (!broken) {
    SetFlag<HardEvent::V_S>(0);
    WaitFlag<HardEvent::V_S>(0);
  }
  s.t.GetValue(0);
}
// Two cores. y is written in halves, or by both at one byte; or a core reads what the other writes.
void write_tile(GM_ADDR y, int64_t first, int64_t bytes) {
  TPipe pipe;
  Out out;
  pipe.InitBuffer(out, 1, 1024);
  LocalTensor<float> t = out.AllocTensor<float>();
  Duplicate(t, float(GetBlockIdx()), 256);
  send(out, t, y + first, bytes);
}
RULE(cores_write) { write_tile(y, GetBlockIdx() * 511, broken && GetBlockIdx() == 0 ? 512 : 511); }
RULE(cores_read) {
  if (GetBlockIdx() == 0)
    write_tile(y, 0, 4);
  else
    global<int32_t>(y).GetValue(broken ? 0 : 1);
}
RULE(cores_read_first) {
  if (GetBlockIdx() == 1)
    write_tile(y, 0, 4);
  else
    global<int32_t>(y).GetValue(broken ? 0 : 1);
}
RULE(order_gm_overwritten) {
  TPipe pipe;
  TQueBind<TPosition::VECIN, TPosition::VECOUT, 1> through;
  Out out;
  pipe.InitBuffer(through, 1, 1024);
  pipe.InitBuffer(out, 1, 1024);
  LocalTensor<float> a = through.AllocTensor<float>(), b = out.AllocTensor<float>();
  DataCopy(a, global<float>(y), 256);
  if (!broken) {  // the queue's event makes MTE3 wait for the load
    through.EnQue(a);
    a = through.DeQue<float>();
  }
  Duplicate(b, 1.0f, 256);
  send(out, b, y, 1024);
  through.FreeTensor(a);
}
RULE(order_scalar_write) {
  Scratch s;
  SetFlag<HardEvent::V_S>(0);
  WaitFlag<HardEvent::V_S>(0);
  s.t.SetValue(0, 1.0f);
  if (!broken) {
    SetFlag<HardEvent::S_V>(0);
    WaitFlag<HardEvent::S_V>(0);
  }
  Adds(s.t, s.t, 1.0f, 8);
}
RULE(order_through) {  // MTE2 -> MTE3 without computing
  TPipe pipe;
  TQueBind<TPosition::VECIN, TPosition::VECOUT, 2> through;
  pipe.InitBuffer(through, 2, 1024);
  for (int i = 0; i < 4; ++i) {
    LocalTensor<float> t = through.AllocTensor<float>();
    DataCopy(t, global<float>(x), 256);
    if (!broken) {
      through.EnQue(t);
      t = through.DeQue<float>();
    }
    DataCopyPad(global<float>(y)[i * 64], t, {1, 256, 0, 0, 0});
    through.FreeTensor(t);
  }
}

}  // namespace
