// launch() for Python: arguments in, report out.
#include "twin/bindings.h"

#include <pybind11/stl.h>

#include <algorithm>

#include "twin/cost.h"
#include "twin/error.h"
#include "twin/launch.h"

namespace py = pybind11;

namespace twin {

namespace {

Argument argument(const py::handle& object) {
  if (object.is_none()) return {.is_buffer = true};
  if (py::isinstance<py::bytes>(object)) return {.value = py::cast<std::string>(object)};
  const auto [address, bytes] = py::cast<std::pair<uintptr_t, uint64_t>>(object);
  return {.is_buffer = true, .address = address, .bytes = bytes};
}

py::dict report(const CoreReport& core) {
  py::dict pipes;
  double cycles = 0;
  for (int i = 0; i < kPipes; ++i) {
    const PipeTotals& total = core.totals[i];
    py::dict one;
    one["instructions"] = total.instructions;
    one["repeats"] = total.repeats;
    one["bytes"] = total.bytes;
    one["cycles"] = total.busy;
    pipes[kPipeNames[i]] = one;
  }
  py::list timeline;
  for (const Event& event : core.events) {
    cycles = std::max(cycles, event.end);
    timeline.append(py::make_tuple(kPipeNames[event.pipe], event.name, event.start, event.end));
  }
  py::dict result;
  result["cycles"] = cycles;
  result["pipes"] = pipes;
  result["timeline"] = timeline;
  return result;
}

py::dict run(const std::string& kernel, int cores, const py::list& arguments) {
  std::vector<Argument> converted;
  for (const py::handle& object : arguments) converted.push_back(argument(object));
  py::list reports;
  double cycles = 0;
  for (const CoreReport& core : launch(kernel, cores, converted)) {
    const py::dict one = report(core);
    cycles = std::max(cycles, py::cast<double>(one["cycles"]));
    reports.append(one);
  }
  py::dict result;
  result["cycles"] = cycles;
  result["seconds"] = cycles / cost::kClockHz;
  result["cores"] = reports;
  return result;
}

}  // namespace

void bind(py::module_& module) {
  py::register_local_exception<TwinError>(module, "TwinError", PyExc_RuntimeError);
  module.def("kernels", &kernel_names, "Names of the kernels that launch() knows.");
  module.def("launch", &run, py::arg("kernel"), py::arg("cores"), py::arg("arguments"));
}

}  // namespace twin
