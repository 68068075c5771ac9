// ACL: streams, events, host functions, synchronisation.
#include <map>
#include <vector>

#include "call.h"
#include "device.h"
#include "stream.h"

namespace emulated {
namespace {

struct Streams {
  std::mutex mutex;
  std::map<Stream*, std::shared_ptr<Stream>> all;
  std::map<int32_t, Stream*> defaults;  // what a null stream means, one a device
  int32_t next = 1;
};

Streams& streams() {
  static Streams& all = *new Streams;  // never destroyed: threads may outlive static objects
  return all;
}

Stream* make() {
  Streams& known = streams();
  auto made = std::make_shared<Stream>(known.next++, current_device());
  return known.all.emplace(made.get(), made).first->first;
}

aclError report(Stream& stream) {
  const auto failure = stream.take_failure();
  if (!failure) return ACL_SUCCESS;
  return fail(kTaskFailed, "stream " + std::to_string(stream.id()) + ": " + *failure);
}

aclError unknown(const char* call) {
  return fail(ACL_ERROR_RT_PARAM_INVALID, std::string(call) + ": unknown stream");
}

aclError synchronise(const std::shared_ptr<Stream>& stream) {
  stream->drain();
  return report(*stream);
}

}  // namespace

std::shared_ptr<Stream> stream_of(aclrtStream handle) {
  Streams& known = streams();
  const std::lock_guard lock(known.mutex);
  auto* stream = static_cast<Stream*>(handle);
  if (!stream) {
    Stream*& fallback = known.defaults[current_device()];
    if (!fallback) fallback = make();
    stream = fallback;
  }
  const auto found = known.all.find(stream);
  return found == known.all.end() ? nullptr : found->second;
}

aclError push(const char* call, aclrtStream handle, Task task) {
  const auto stream = stream_of(handle);
  if (!stream) return unknown(call);
  stream->push(std::move(task));
  return ACL_SUCCESS;
}

}  // namespace emulated

using emulated::Event;
using emulated::fail;
using emulated::stream_of;

extern "C" {

aclError aclrtCreateStreamWithConfig(aclrtStream* stream, uint32_t, uint32_t) {
  ACL_CALL();
  const std::lock_guard lock(emulated::streams().mutex);
  *stream = emulated::make();
  return ACL_SUCCESS;
}

aclError aclrtCreateStream(aclrtStream* stream) { return aclrtCreateStreamWithConfig(stream, 0, 0); }

aclError aclrtDestroyStream(aclrtStream stream) {
  ACL_CALL();
  const auto found = stream ? stream_of(stream) : nullptr;
  if (!found) return emulated::unknown(__func__);
  const std::lock_guard lock(emulated::streams().mutex);
  emulated::streams().all.erase(found.get());
  return ACL_SUCCESS;  // `found` joins the thread
}

aclError aclrtDestroyStreamForce(aclrtStream stream) { return aclrtDestroyStream(stream); }

aclError aclrtSynchronizeStream(aclrtStream stream) {
  ACL_CALL();
  const auto found = stream_of(stream);
  return found ? emulated::synchronise(found) : emulated::unknown(__func__);
}

// The time limit is not kept: nothing here hangs unless a test makes it.
aclError aclrtSynchronizeStreamWithTimeout(aclrtStream stream, int32_t) {
  return aclrtSynchronizeStream(stream);
}

aclError aclrtSynchronizeDevice() {
  ACL_CALL();
  std::vector<std::shared_ptr<emulated::Stream>> all;
  {
    const std::lock_guard lock(emulated::streams().mutex);
    for (const auto& [key, stream] : emulated::streams().all)
      if (stream->device() == emulated::current_device()) all.push_back(stream);
  }
  aclError result = ACL_SUCCESS;
  for (const auto& stream : all)
    if (const aclError code = emulated::synchronise(stream); code != ACL_SUCCESS) result = code;
  return result;
}

aclError aclrtSynchronizeDeviceWithTimeout(int32_t) { return aclrtSynchronizeDevice(); }

aclError aclrtStreamQuery(aclrtStream stream, aclrtStreamStatus* status) {
  ACL_CALL();
  const auto found = stream_of(stream);
  if (!found) return emulated::unknown(__func__);
  *status = found->idle() ? ACL_STREAM_STATUS_COMPLETE : ACL_STREAM_STATUS_NOT_READY;
  return ACL_SUCCESS;
}

aclError aclrtStreamGetId(aclrtStream stream, int32_t* id) {
  ACL_CALL();
  const auto found = stream_of(stream);
  if (!found) return emulated::unknown(__func__);
  *id = found->id();
  return ACL_SUCCESS;
}

// Continuing after a failed task is ACL's default, and all that the emulation does.
aclError aclrtSetStreamFailureMode(aclrtStream, uint64_t mode) {
  ACL_CALL();
  if (mode != ACL_CONTINUE_ON_FAILURE) ACL_REFUSE();
  return ACL_SUCCESS;
}

// torch_npu switches the report of overflows on at start-up; there are no operators that could report one.
aclError aclrtSetStreamOverflowSwitch(aclrtStream, uint32_t) {
  ACL_CALL();
  return ACL_SUCCESS;
}

aclError aclrtGetStreamOverflowSwitch(aclrtStream, uint32_t* flag) {
  ACL_CALL();
  *flag = 1;
  return ACL_SUCCESS;
}

aclError aclrtCreateEventExWithFlag(aclrtEvent* event, uint32_t) {
  ACL_CALL();
  *event = new Event;
  return ACL_SUCCESS;
}

aclError aclrtCreateEventWithFlag(aclrtEvent* event, uint32_t) {
  ACL_CALL();
  *event = new Event;
  return ACL_SUCCESS;
}

aclError aclrtDestroyEvent(aclrtEvent event) {
  ACL_CALL();
  delete static_cast<Event*>(event);
  return ACL_SUCCESS;
}

aclError aclrtRecordEvent(aclrtEvent event, aclrtStream stream) {
  ACL_CALL();
  const auto state = static_cast<Event*>(event)->state;
  const auto number = state->expect();
  const aclError code = emulated::push(__func__, stream, [=] { state->complete(number); });
  if (code != ACL_SUCCESS) state->complete(number);  // nobody else will
  return code;
}

// Records are numbered, so there is nothing to put back.
aclError aclrtResetEvent(aclrtEvent, aclrtStream) {
  ACL_CALL();
  return ACL_SUCCESS;
}

aclError aclrtStreamWaitEvent(aclrtStream stream, aclrtEvent event) {
  ACL_CALL();
  const auto state = static_cast<Event*>(event)->state;
  return emulated::push(__func__, stream, [state, number = state->expected()] { state->wait(number); });
}

aclError aclrtSynchronizeEvent(aclrtEvent event) {
  ACL_CALL();
  const auto state = static_cast<Event*>(event)->state;
  state->wait(state->expected());
  return ACL_SUCCESS;
}

aclError aclrtSynchronizeEventWithTimeout(aclrtEvent event, int32_t) { return aclrtSynchronizeEvent(event); }

aclError aclrtQueryEventStatus(aclrtEvent event, aclrtEventRecordedStatus* status) {
  ACL_CALL();
  const auto state = static_cast<Event*>(event)->state;
  *status = state->reached(state->expected()) ? ACL_EVENT_RECORDED_STATUS_COMPLETE
                                              : ACL_EVENT_RECORDED_STATUS_NOT_READY;
  return ACL_SUCCESS;
}

aclError aclrtQueryEventWaitStatus(aclrtEvent event, aclrtEventWaitStatus* status) {
  ACL_CALL();
  const auto state = static_cast<Event*>(event)->state;
  *status =
      state->reached(state->expected()) ? ACL_EVENT_WAIT_STATUS_COMPLETE : ACL_EVENT_WAIT_STATUS_NOT_READY;
  return ACL_SUCCESS;
}

aclError aclrtEventElapsedTime(float* milliseconds, aclrtEvent start, aclrtEvent end) {
  ACL_CALL();
  const uint64_t from = static_cast<Event*>(start)->state->microseconds();
  const uint64_t to = static_cast<Event*>(end)->state->microseconds();
  if (!from || !to)
    return fail(ACL_ERROR_RT_PARAM_INVALID, "aclrtEventElapsedTime: an event has not been recorded");
  *milliseconds = static_cast<float>(static_cast<int64_t>(to - from)) / 1000;
  return ACL_SUCCESS;
}

aclError aclrtEventGetTimestamp(aclrtEvent event, uint64_t* timestamp) {
  ACL_CALL();
  *timestamp = static_cast<Event*>(event)->state->microseconds();
  return ACL_SUCCESS;
}

// An exception of the function is the failure of its task: the next synchronisation reports it.
aclError aclrtLaunchHostFunc(aclrtStream stream, aclrtHostFunc function, void* argument) {
  ACL_CALL();
  return emulated::push(__func__, stream, [=] { function(argument); });
}

// Runs on the stream's own thread, so the stream is blocked meanwhile, as with ACL_CALLBACK_BLOCK.
aclError aclrtLaunchCallback(aclrtCallback function, void* argument, aclrtCallbackBlockType,
                             aclrtStream stream) {
  ACL_CALL();
  return emulated::push(__func__, stream, [=] { function(argument); });
}

// Callbacks need no thread that reports are sent to.
aclError aclrtSubscribeReport(uint64_t, aclrtStream) {
  ACL_CALL();
  return ACL_SUCCESS;
}

aclError aclrtUnSubscribeReport(uint64_t, aclrtStream) {
  ACL_CALL();
  return ACL_SUCCESS;
}

aclError aclrtProcessReport(int32_t) {
  ACL_CALL();
  return ACL_SUCCESS;
}

}  // extern "C"
