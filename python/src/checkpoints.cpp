// SPDX-License-Identifier: Apache-2.0
#include <pybind11/functional.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/torch.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "fsdp/checkpoint/loader.hpp"
#include "fsdp/checkpoint/optimizer_state.hpp"
#include "fsdp/checkpoint/safetensors_writer.hpp"
#include "fsdp/checkpoint/saver.hpp"
#include "fsdp/checkpoint/weights.hpp"
#include "fsdp/optim/ema.hpp"
#include "fsdp/optim/flat_optimizer.hpp"
#include "python/src/bind.hpp"

namespace fsdp::python {

namespace {

using NamedValues = std::map<std::string, archive::Values>;

/// An optimizer of torch.optim as checkpoints see it, by way of an object of Python:
/// python/fsdp/_optimizer_state.py.
class PythonState : public checkpoint::OptimizerState {
 public:
  explicit PythonState(py::object object) : object_(std::move(object)) {}
  ~PythonState() override {
    const py::gil_scoped_acquire locked;
    object_ = py::object();
  }
  PythonState(const PythonState&) = delete;
  PythonState& operator=(const PythonState&) = delete;

  std::string kind() const override { return call<std::string>("kind"); }
  std::vector<checkpoint::StateShard> shards() const override {
    std::vector<checkpoint::StateShard> shards;
    for (auto& [parameter, state, values] :
         call<std::vector<std::tuple<std::string, std::string, at::Tensor>>>("shards")) {
      shards.push_back({parameter, state, values});
    }
    return shards;
  }
  std::map<std::string, std::int64_t> steps() const override {
    return call<std::map<std::string, std::int64_t>>("steps");
  }
  NamedValues options() const override { return call<NamedValues>("options"); }
  void allocate(const checkpoint::StoredStates& stored) override { tell("allocate", stored); }
  void set_steps(const std::map<std::string, std::int64_t>& steps) override {
    tell("set_steps", steps);
  }
  void set_options(const NamedValues& options) override { tell("set_options", options); }

 private:
  template <class Result>
  Result call(const char* method) const {
    const py::gil_scoped_acquire locked;
    return object_.attr(method)().cast<Result>();
  }
  template <class Argument>
  void tell(const char* method, const Argument& argument) {
    const py::gil_scoped_acquire locked;
    object_.attr(method)(argument);
  }

  py::object object_;
};

/// What is saved of an optimizer: one of this library, an object that stands for one of torch's, or
/// None; with averages where there are any.
std::unique_ptr<checkpoint::OptimizerState> state_of(const py::object& optimizer, optim::Ema* ema) {
  std::unique_ptr<checkpoint::OptimizerState> state;
  if (py::isinstance<optim::FlatOptimizer>(optimizer)) {
    state = checkpoint::state_of(optimizer.cast<optim::FlatOptimizer&>());
  } else if (!optimizer.is_none()) {
    state = std::make_unique<PythonState>(optimizer);
  }
  return ema == nullptr ? std::move(state) : checkpoint::with_averages(std::move(state), *ema);
}

std::unique_ptr<checkpoint::Saver> make_saver(std::string directory, const Sharded& sharded,
                                              const py::object& optimizer, optim::Ema* ema,
                                              int keep, std::int64_t max_file_bytes) {
  auto state = state_of(optimizer, ema);
  const py::gil_scoped_release unlocked;
  return std::make_unique<checkpoint::Saver>(
      std::move(directory), sharded, std::move(state),
      checkpoint::SaverOptions{.keep = keep, .max_file_bytes = max_file_bytes});
}

void save(checkpoint::Saver& saver, std::int64_t step, NamedValues values,
          std::map<std::string, std::string> documents) {
  saver.save(step, {.values = std::move(values),
                    .rng = checkpoint::rng_state(),
                    .documents = std::move(documents)});
}

checkpoint::LoadReport load(const std::string& path, Sharded& sharded, const py::object& optimizer,
                            optim::Ema* ema, bool strict, bool verify, bool optimizer_options,
                            bool rng) {
  const auto state = state_of(optimizer, ema);
  const py::gil_scoped_release unlocked;
  auto report = checkpoint::load(
      path, sharded, state.get(),
      {.strict = strict, .verify = verify, .optimizer_options = optimizer_options});
  if (rng) {
    checkpoint::set_rng_state(report.rng);
  }
  return report;
}

checkpoint::LoadReport load_weights(const std::string& path, Sharded& sharded,
                                    const std::string& adapter, bool strict,
                                    const std::optional<checkpoint::NameOf>& name_of) {
  const py::gil_scoped_release unlocked;
  return checkpoint::load_weights(
      path, sharded,
      {.name_of = name_of.value_or(checkpoint::NameOf()), .adapter = adapter, .strict = strict});
}

}  // namespace

void bind_checkpoints(py::module_& module) {
  using checkpoint::LoadReport;
  py::class_<LoadReport>(module, "LoadReport")
      .def_readonly("path", &LoadReport::path)
      .def_readonly("step", &LoadReport::step)
      .def_readonly("values", &LoadReport::values)
      .def_readonly("entries", &LoadReport::entries)
      .def_readonly("missing", &LoadReport::missing)
      .def_readonly("unexpected", &LoadReport::unexpected)
      .def_readonly("mismatched", &LoadReport::mismatched)
      .def("__repr__", [](const LoadReport& report) {
        return "LoadReport(path=\"" + report.path + "\", step=" + std::to_string(report.step) +
               ", entries=" + std::to_string(report.entries) + ")";
      });
  py::class_<checkpoint::Saver>(module, "Saver")
      .def(py::init(&make_saver), py::arg("directory"), py::arg("sharded"), py::arg("optimizer"),
           py::arg("ema"), py::arg("keep"), py::arg("max_file_bytes"), py::keep_alive<1, 4>(),
           py::keep_alive<1, 5>())
      .def("save", &save, py::arg("step"), py::arg("values"), py::arg("documents"), Unlocked())
      .def("wait", &checkpoint::Saver::wait, Unlocked())
      .def("claim", &checkpoint::Saver::claim, py::arg("patience_s"), Unlocked())
      .def_property_readonly("directory", &checkpoint::Saver::directory);
  module.def("load", &load, py::arg("path"), py::arg("sharded"), py::arg("optimizer"),
             py::arg("ema"), py::arg("strict"), py::arg("verify"), py::arg("optimizer_options"),
             py::arg("rng"));
  module.def("load_weights", &load_weights, py::arg("path"), py::arg("sharded"), py::arg("adapter"),
             py::arg("strict"), py::arg("name_of"));
  module.def(
      "save_safetensors",
      [](const Sharded& sharded, const std::string& path,
         const std::map<std::string, std::string>& metadata) {
        checkpoint::save_safetensors(sharded, path, metadata);
      },
      py::arg("sharded"), py::arg("path"), py::arg("metadata"), Unlocked());
}

}  // namespace fsdp::python
